"""Everywhere: erases a person from all datasets of a tenant, one after the other.

Each dataset gets an erasure of its own, with record and receipt. What this cannot erase is listed, with the
remedy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pulse_pipelines import registry
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import record, rows, run
from pulse_pipelines.erasure.own import tables as own_tables
from pulse_pipelines.erasure.own.table import Outcome
from pulse_pipelines.erasure.remains import deleted_slugs
from pulse_pipelines.erasure.run import ErasurePreview
from pulse_pipelines.erasure.subject import ENVELOPE, subject
from pulse_pipelines.tables import live_table
from pulse_resources.errors import NotFound, UserError


@dataclass(frozen=True)
class Everywhere:
    """One `<field>=<value>` resolved in each dataset of a tenant."""

    where: str
    """The condition as every dataset accepts it, whether or not it declares the property."""
    datasets: tuple[Dataset, ...]
    """Datasets to erase from."""
    entities: tuple[Dataset, ...]
    """Datasets whose entities are erased as a whole, by `_id` only."""

    @property
    def all_slugs(self) -> frozenset[str]:
        """Slugs of all datasets of the tenant."""
        return frozenset(dataset.slug for dataset in (*self.datasets, *self.entities))

    def no_dataset(self, slug: str) -> frozenset[str] | None:
        """The existing slugs, for the first dataset: its erasure also covers events for unknown datasets."""
        return self.all_slugs if slug == self.slugs[0] else None

    @property
    def slugs(self) -> list[str]:
        return [dataset.slug for dataset in self.datasets]


@dataclass(frozen=True)
class Omission:
    """Data that an erasure from all datasets does not cover, and the remedy."""

    what: str
    fix: str


def find(tenant: Tenant, where: str) -> Everywhere:
    """Resolve a condition in all datasets of a tenant.

    Raises:
        UserError: no dataset can be searched for it, or one declares a type that cannot be compared.
        NotFound: the tenant has no datasets.
    """
    owned = registry.list_datasets(tenant)
    if not owned:
        raise NotFound(
            "the tenant has no dataset",
            fix="To erase from tables of its own, create a dataset of events: an erasure from it covers them",
            tenant=tenant.slug,
        )
    name, equals, value = where.partition("=")
    is_path = name.partition(".")[0] in ("context", "data") and "." in name
    if equals and name and value and name not in ENVELOPE and not is_path:
        field = name.partition(".")[0]
        if not any(column.field == field for dataset in owned for column in dataset.columns):
            raise UserError(
                f"no dataset of the tenant declares a property {name!r}",
                fix=f"Write data.{name} to erase by a property that no schema declares",
                tenant=tenant.slug,
            )
        where = f"data.{where}"
    by_id = name == "event_id"
    of_events = tuple(dataset for dataset in owned if by_id or not dataset.of_entities)
    for dataset in owned:
        subject(dataset, where)
    return Everywhere(where, of_events, tuple(dataset for dataset in owned if dataset not in of_events))


def preview(tenant: Tenant, scope: Everywhere) -> dict[str, ErasurePreview]:
    """Count what the erasure would remove from each dataset now; changes nothing."""
    return {slug: run.preview(tenant, slug, scope.where, scope.no_dataset(slug)) for slug in scope.slugs}


def count_tenant_tables(tenant: Tenant, scope: Everywhere) -> list[Outcome]:
    """Count what the erasure would remove now from tables of the tenant's own that ask for it."""
    return own_tables.count(tenant, subject(scope.datasets[0], scope.where)) if scope.datasets else []


def tenant_table_outcomes(tenant: Tenant, receipts: Sequence[Mapping[str, Any]]) -> Sequence[Outcome]:
    """The outcome for each own table that asks for erasures, by the record of the first receipt."""
    for receipt in receipts[:1]:
        return own_tables.outcomes(record.find(tenant, receipt["erasure_id"]).steps)
    return ()


def erase(
    tenant: Tenant, scope: Everywhere, progress: Callable[[str], None] = lambda step: None
) -> list[dict[str, Any]]:
    """Erase from one dataset after the other; returns their receipts.

    Raises:
        as `run.erase`: the datasets before it are erased. Called again, it completes the rest.
    """
    receipts = []
    for slug in scope.slugs:

        def of_dataset(step: str, slug: str = slug) -> None:
            progress(f"{slug}: {step}")

        receipts.append(run.erase(tenant, slug, scope.where, of_dataset, scope.no_dataset(slug)))
    return receipts


def find_omissions(tenant: Tenant, scope: Everywhere, outcomes: Sequence[Outcome]) -> Iterator[Omission]:
    """Find data that is not erased: entity versions with the value, files of deleted datasets, own tables.

    Args:
        outcomes: of the own tables that ask for erasures.
    """
    for dataset in scope.entities:
        covered = subject(dataset, scope.where).covering(record.settled(tenant, dataset))
        files = live_table.of_current(partial(rows.matching, subject=covered), tenant, dataset)
        if count := sum(len(places) for _, places in files):
            command = f"pulse erase {tenant.slug} --dataset {dataset.slug} --where event_id=<_id>"
            fix = f"Erase each entity whole: {command}"
            yield Omission(f"{count:,} versions of entities in the dataset {dataset.slug}", fix)
    if deleted := [slug for slug in deleted_slugs(tenant) if slug not in scope.all_slugs]:
        fix = "They were not looked at. To erase from the raw zone, create a dataset of the slug, then erase"
        yield Omission(f"files of deleted datasets: {', '.join(deleted)}", fix)
    for outcome in outcomes:
        if outcome.reason is not None and outcome.has_column:
            fix = "Delete the rows there with an engine, then expire its snapshots"
            yield Omission(f"the tenant's own table {outcome.table}: {outcome.reason}", fix)
    if not scope.datasets and (asking := own_tables.asking(tenant)):
        fix = "Create a dataset of events: an erasure from it searches them"
        yield Omission(f"own tables: {', '.join(table.shown for table in asking)}", fix)
