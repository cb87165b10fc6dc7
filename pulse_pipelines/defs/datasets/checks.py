"""Asset checks of the datasets: evaluated for what each batch touched, and for all on demand."""

from collections.abc import Iterable, Iterator, Sequence

import dagster as dg

from pulse_pipelines import registry
from pulse_pipelines.defs.datasets.assets import asset_key
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import checks

DESCRIPTIONS = {
    "tenant_isolation": "Every table lies in its tenant's namespace, every data file under its prefix, "
    "every row carries its tenant and dataset, and row-level security hides it from other tenants. "
    "When it fails: stop sharing the table, find the writer by the batch in the metadata, and erase the "
    "foreign rows.",
    "schema_conformance": "Every table has exactly the columns that its published schema declares, and "
    "a sample of rows validates again. When it fails: someone changed the table outside Pulse, or "
    "wrote rows around it; compare the table's snapshots with the ledger.",
}


def evaluate(
    slug: str, tenants: Sequence[Tenant], batch_id: str | None = None
) -> Iterator[dg.AssetCheckEvaluation]:
    """One evaluation per check, over all given tenants."""
    for name in checks.CHECKS:
        yield _evaluation(name, slug, tenants, batch_id)


def _evaluation(
    name: str, slug: str, tenants: Sequence[Tenant], batch_id: str | None
) -> dg.AssetCheckEvaluation:
    numbers: dict[str, int] = {"tenants": len(tenants)}
    problems: list[str] = []
    for tenant in tenants:
        finding = checks.run(name, tenant, slug, batch_id)
        problems.extend(f"tenant {tenant.slug}: {problem}" for problem in finding.problems)
        for key, value in finding.numbers.items():
            numbers[key] = numbers.get(key, 0) + value
    metadata: dict[str, object] = {**numbers, "scope": batch_id or "whole tables"}
    if problems:
        metadata["problems"] = dg.MetadataValue.md("\n".join(f"- {p}" for p in problems[:50]))
    return dg.AssetCheckEvaluation(
        check_name=name,
        asset_key=asset_key(slug),
        passed=not problems,
        severity=dg.AssetCheckSeverity.ERROR,
        metadata=metadata,  # type: ignore[arg-type]
        description=problems[0] if problems else None,
    )


def dataset_checks(slugs: Iterable[str]) -> list[dg.AssetChecksDefinition]:
    """The checks of every dataset asset, to be run on demand over its whole tables."""
    return [_on_demand(slug) for slug in slugs]


def _on_demand(slug: str) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(
        name=f"check_{slug}",
        specs=[
            dg.AssetCheckSpec(name, asset=asset_key(slug), description=DESCRIPTIONS[name])
            for name in checks.CHECKS
        ],
    )
    def run_checks() -> Iterator[dg.AssetCheckResult]:
        owners = [t for t in registry.list_tenants() if _owns(t, slug)]
        for found in evaluate(slug, owners):
            yield dg.AssetCheckResult(
                passed=found.passed,
                check_name=found.check_name,
                asset_key=found.asset_key,
                severity=found.severity,
                metadata=found.metadata,
                description=found.description,
            )

    return run_checks


def _owns(tenant: Tenant, slug: str) -> bool:
    return any(dataset.slug == slug for dataset in registry.list_datasets(tenant))
