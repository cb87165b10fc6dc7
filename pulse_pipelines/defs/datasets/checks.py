"""Asset checks of the datasets: on demand over whole tables, and after each batch over what it added."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import dagster as dg

from pulse_pipelines import registry
from pulse_pipelines.defs.datasets.evaluation import evaluation, latest_evaluations
from pulse_pipelines.defs.datasets.partitions import asset_key
from pulse_pipelines.defs.resources import Catalog, Postgres
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.monitoring.checks import CHECKS, Inspection, Scope

DESCRIPTIONS = {
    "tenant_isolation": "ERROR. Every table lies in its tenant's namespace, every data file under its "
    "prefix, every row carries its tenant and dataset, and row-level security hides it from others.\n\n"
    "When it fails: stop sharing the table, find the writer by the snapshots (`pulse snapshots`), and erase "
    "the foreign rows. Where row-level security is not forced, run `pulse up` or the migrations again.",
    "schema_conformance": "ERROR. Every table has exactly the columns that its published schema declares, "
    "and the package `jsonschema` finds 100 rows, drawn at random, valid by the version that each names.\n\n"
    "When it fails: someone changed the table outside Pulse, or wrote rows around it; compare the table's "
    "snapshots with the ledger, then materialize the days at fault to rebuild them from the raw zone.",
    "reconciled": "ERROR. Every table has as many rows as its ledger says, and the ledger ends where the "
    "positions are. On demand, and for some tenants in each scheduled run, every offset is accounted for.\n\n"
    "When it fails: run `pulse reconcile <tenant>`, which names the offsets that are missing or double; "
    "materialize the days at fault to rebuild them from the raw zone.",
    "file_health": "WARN. Small files per day, snapshots, manifests and delete files are few enough for "
    "readers and commits to stay fast (settings `checks.max_...`).\n\n"
    "When it fails: look at the runs of the job `upkeep` (its sensor `upkeep_needed` and schedule "
    "`upkeep_daily` launch it; launch it by hand to hurry). It merges small files, expires snapshots and "
    "rewrites manifests. Delete files come from a writer outside Pulse: find it by the snapshots.",
    "latest_equals_log": "ERROR. Of datasets of entities: the places of a log's versions are 1, 2, 3 ... "
    "without a gap, and the newest version of each entity is the one that the next batch is compared with. "
    "Looked at with whole tables.\n\n"
    "When it fails: someone changed the table outside Pulse; find the writer by the snapshots (`pulse "
    "snapshots`). Then create the dataset again and send its entities again.",
    "index_equals_log": "ERROR. Of datasets of entities: the entries of every index are those that the "
    "versions of a sample of entities give, computed from the log in another way than when they landed. "
    "Looked at with whole tables.\n\n"
    "When it fails: drop the index and declare it again (`pulse index drop`, `pulse index create`), which "
    "builds it from the log. If `latest_equals_log` fails, too, see there first.",
    "state_equals_table": "ERROR. Of datasets of events with a state: of a sample of keys the state has the "
    "newest event that the table has, and every key, unless it is full; windows have the counts, sums and "
    "times of a sample of minutes, and as many of them. Looked at with whole tables.\n\n"
    "When it fails: drop the state and declare it again (`pulse state drop`, `pulse state declare`), which "
    "builds it from the table.",
    "freshness": "WARN when a tenant's oldest event that is not settled waits longer than "
    "`checks.late_seconds`, or its latest batch took longer; ERROR beyond `checks.very_late_seconds`, and "
    "while a batch is stuck or a topic cannot be ingested.\n\n"
    "When it fails: look at the runs of the job `ingest` with the tenant's tag and at the ticks of the "
    "sensor `ingest_lag`. Of a stuck batch remove the cause, then run `pulse batch retry <batch>`.",
}
"""Description of each check: its meaning, its severity, and what to do."""


def after_batch(
    instance: dg.DagsterInstance, batch_id: str, touched: Mapping[str, Sequence[Tenant]]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Evaluate each check for each slug that a batch touched, over the rows it added to the tenants' tables.

    Tables with known problems are checked whole; problems of other tenants are carried over.
    """
    before = latest_evaluations(instance, list(touched))
    added, whole = Inspection(Scope(batch_id)), Inspection(Scope())
    for slug, tenants in touched.items():
        faulty = {problem["tenant"] for name in CHECKS for problem in before[slug, name].problems}
        summaries = added.of(slug, [tenant for tenant in tenants if tenant.slug not in faulty])
        again = whole.of(slug, [tenant for tenant in tenants if tenant.slug in faulty])
        for name, summary in summaries.items():
            summary.results |= again[name].results
            summary.seconds += again[name].seconds
            yield evaluation(slug, name, summary, batch_id=batch_id, before=before[slug, name])


def dataset_checks(slugs: Iterable[str]) -> list[dg.AssetChecksDefinition]:
    """On-demand checks of every dataset asset, over whole tables."""
    return [_on_demand(slug) for slug in slugs]


def _on_demand(slug: str) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(
        name=f"check_{slug}",
        specs=[
            dg.AssetCheckSpec(name, asset=asset_key(slug), description=DESCRIPTIONS[name]) for name in CHECKS
        ],
        can_subset=True,  # otherwise the UI runs them only together with the asset
    )
    def run_checks(
        context: dg.AssetCheckExecutionContext, catalog: Catalog, postgres: Postgres
    ) -> Iterator[dg.AssetCheckResult]:
        selected = {key.name for key in context.selected_asset_check_keys}
        summaries = Inspection(Scope(), prove=None).of(slug, registry.family_owners(slug))
        for name, summary in summaries.items():
            if name not in selected:
                continue
            evaluated = evaluation(slug, name, summary)
            yield dg.AssetCheckResult(
                passed=evaluated.passed,
                check_name=evaluated.check_name,
                asset_key=evaluated.asset_key,
                severity=evaluated.severity,
                metadata=evaluated.metadata,
                description=evaluated.description,
            )

    return run_checks
