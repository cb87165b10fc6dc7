"""Current tables of datasets, by slug and by the names in a query."""

from collections.abc import Sequence
from dataclasses import dataclass

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import CURATED, LATEST, Tenant
from pulse_pipelines.registry.datasets import find_in
from pulse_pipelines.tables import dataset_rows
from pulse_resources import iceberg, postgres
from pulse_resources.errors import Conflict, NotFound

CURRENT_OF_MANY = """
SELECT table_name, metadata_location FROM iceberg_catalog.iceberg_tables
WHERE catalog_name = %s AND table_namespace = %s AND table_name = ANY(%s)
"""
LOG = "SELECT generation, updated FROM entity_logs WHERE dataset_id = %s"
CURATED_TABLES = """
SELECT table_name FROM iceberg_catalog.iceberg_tables
WHERE catalog_name = %s AND table_namespace = %s AND starts_with(table_name, %s) ORDER BY table_name
"""


@dataclass(frozen=True)
class CurrentTable:
    dataset: Dataset
    metadata_location: str


@dataclass(frozen=True)
class CurrentLog(CurrentTable):
    """A dataset of entities, and the generation and last `_updated` of its log in that metadata."""

    generation: int
    updated: int


def current_table(tenant: Tenant, slug: str) -> CurrentTable:
    """A dataset and its table's current metadata, both resolved in the tenant's RLS session.

    A dataset of entities gives a `CurrentLog`.

    Raises:
        NotFound: the tenant has no such dataset.
        Terminal: the dataset's table is not in the catalog.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id, one_snapshot=True) as connection:
        return table_of(connection, tenant, slug)


def current_locations(tenant: Tenant, slugs: Sequence[str]) -> dict[str, str]:
    """Locations of the current metadata of several datasets' tables, by slug; without those that are gone."""
    values = [iceberg.CATALOG, tenant.namespace, list(slugs)]
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return dict(connection.execute(CURRENT_OF_MANY, values).fetchall())


def current_log(tenant: Tenant, slug: str) -> CurrentLog:
    """As `current_table`, for a dataset of entities, read at one moment.

    Raises:
        Conflict: it is a dataset of events; and what `current_table` raises.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id, one_snapshot=True) as connection:
        return log_of(connection, tenant, slug)


def log_of(connection: postgres.Connection, tenant: Tenant, slug: str) -> CurrentLog:
    """As `current_log`, in a session of the tenant's, whose reads should see one snapshot."""
    table = table_of(connection, tenant, slug)
    if not isinstance(table, CurrentLog):
        problem = "it is a dataset of events: it has no log of entities"
        raise Conflict(problem, tenant=tenant.slug, dataset=slug)
    return table


def table_of(connection: postgres.Connection, tenant: Tenant, slug: str) -> CurrentTable:
    """As `current_table`, in such a session."""
    dataset = find_in(connection, tenant, slug)
    location = iceberg.current_location(connection, (tenant.namespace, slug))
    row = connection.execute(LOG, [dataset.dataset_id]).fetchone()
    return CurrentLog(dataset, location, *row) if row else CurrentTable(dataset, location)


@dataclass(frozen=True)
class NamedTable:
    """A table that queries may name: a dataset's by its slug, a rollup's as `<slug>__<rollup>`.

    `<slug>__latest` is the latest state of a dataset of entities.
    """

    name: str
    dataset: Dataset
    """For a rollup's table the dataset that it is computed from."""
    metadata_location: str
    latest: bool = False
    """Whether it is the latest state in the dataset's own table."""

    @property
    def table(self) -> str:
        """Name of the table in the catalog."""
        return self.dataset.slug if self.latest else self.name


def named_tables(
    connection: postgres.Connection, tenant: Tenant, names: Sequence[str], optional: Sequence[str] = ()
) -> list[NamedTable]:
    """The current metadata of several tables of datasets and rollups.

    Args:
        connection: the tenant's session, in which all reads see one snapshot.
        optional: names that are skipped if there is no such table.

    Raises:
        NotFound: the tenant has no such dataset, or the dataset no such rollup or no latest state.
        Terminal: a dataset's table is not in the catalog.
    """
    tables = [_named(connection, tenant, name) or _missing(connection, tenant, name) for name in names]
    more = [_named(connection, tenant, name) for name in optional]
    return [*tables, *(table for table in more if table is not None)]


def _named(connection: postgres.Connection, tenant: Tenant, name: str) -> NamedTable | None:
    """The table of a name: a dataset's before an entity dataset's latest state before a rollup's."""
    for dataset in dataset_rows.read(
        connection, dataset_rows.OF_SLUG, [name]
    ):  # an old one, of a rollup's name
        return NamedTable(name, dataset, iceberg.current_location(connection, (tenant.namespace, name)))
    slug, _, rollup = name.rpartition(CURATED)
    if rollup == LATEST:
        for dataset in dataset_rows.read(connection, dataset_rows.OF_SLUG, [slug]):
            if dataset.of_entities:
                current = iceberg.current_location(connection, (tenant.namespace, slug))
                return NamedTable(name, dataset, current, latest=True)
    location = iceberg.find_location(connection, (tenant.namespace, name)) if slug and rollup else None
    if location is not None:
        for dataset in dataset_rows.read(connection, dataset_rows.OF_SLUG, [slug]):
            return NamedTable(name, dataset, location)
    return None


def _missing(connection: postgres.Connection, tenant: Tenant, name: str) -> NamedTable:
    """Raise the NotFound of a table that there is not."""
    slug, _, rollup = name.rpartition(CURATED)
    dataset = find_in(connection, tenant, slug if slug and rollup else name)
    if rollup == LATEST:
        raise NotFound("events have no latest state: entities have", tenant=tenant.slug, table=name)
    rows = connection.execute(CURATED_TABLES, [iceberg.CATALOG, *tenant.curated_table(dataset.slug, "")])
    names = ", ".join(table for (table,) in rows) or "no rollup yet"
    raise NotFound(
        "the dataset has no such rollup, or none of its days has been computed",
        fix=f"It has {names}",
        tenant=tenant.slug,
        table=name,
    )
