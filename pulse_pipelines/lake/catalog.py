"""Lookup of a tenant's namespaces and tables, in its own session, by a role that sees nothing else."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import names, paths
from pulse_pipelines.lake.errors import no_namespace, no_table, no_view
from pulse_pipelines.lake.names import EVENTS, Levels, stored
from pulse_resources import iceberg, postgres
from pulse_resources.iceberg import table_metadata
from pulse_resources.settings.service_settings import Role

ROLE: Role = "pulse_lake"
ALL = 10_000
"""Most names in an unpaged answer."""
TABLES = """
SELECT table_name FROM iceberg_catalog.iceberg_tables
WHERE catalog_name = %s AND table_namespace = %s AND coalesce(iceberg_type, 'TABLE') = %s
  AND table_name COLLATE "C" > %s
ORDER BY table_name COLLATE "C" LIMIT %s
"""
FIND = """
SELECT metadata_location FROM iceberg_catalog.iceberg_tables
WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s AND coalesce(iceberg_type, 'TABLE') = %s
"""
TENANT_TABLES = """
SELECT table_namespace, table_name, metadata_location FROM iceberg_catalog.iceberg_tables
WHERE catalog_name = %s AND starts_with(table_namespace, %s) AND coalesce(iceberg_type, 'TABLE') = 'TABLE'
ORDER BY table_namespace COLLATE "C", table_name COLLATE "C"
"""
EXISTS = "exists"
"""Property of every namespace, as in Iceberg's JDBC catalog; never shown to clients."""
NAMESPACES = """
SELECT namespace FROM iceberg_catalog.iceberg_namespace_properties
WHERE catalog_name = %s AND property_key = 'exists' AND starts_with(namespace, %s)
ORDER BY namespace COLLATE "C" LIMIT %s
"""
PROPERTIES = """
SELECT property_key, property_value FROM iceberg_catalog.iceberg_namespace_properties
WHERE catalog_name = %s AND namespace = %s
"""
_ABOUT = {"comment": "Datasets and their rollups; only Pulse writes them"}


class Kind(StrEnum):
    """Type of a catalog row."""

    TABLE = "TABLE"
    VIEW = "VIEW"


@dataclass(frozen=True)
class OwnTable:
    """A table in a namespace of the tenant's own."""

    namespace: Levels
    name: str
    row: iceberg.TableName
    """Its key in the catalog."""
    at: str
    """Location of its metadata when it was listed."""

    @property
    def location(self) -> str:
        """The folder that the catalog gave it."""
        return table_metadata.folder(self.at)

    @property
    def shown(self) -> str:
        """The name as it appears in messages."""
        return names.written(self.namespace, self.name)[:300]


@contextmanager
def _session(tenant: Tenant) -> Iterator[postgres.Connection]:
    """A transaction in the tenant's session with pipelined statements, since engines query often."""
    with postgres.pool(ROLE).connection() as connection, connection.pipeline(), connection.transaction():
        postgres.set_tenant(connection, tenant.tenant_id)
        yield connection


def namespaces(tenant: Tenant, parent: Levels = ()) -> list[Levels]:
    """List the namespaces directly below a parent, or at the root.

    Raises:
        NoSuchNamespace: there is no such parent.
    """
    root = names.tenant_root(tenant)
    if parent:
        properties(tenant, parent)
        if parent == EVENTS:
            return []
        root = f"{stored(tenant, parent)}."
    with postgres.tenant_transaction(ROLE, tenant.tenant_id) as connection:
        rows = connection.execute(NAMESPACES, [iceberg.CATALOG, root, ALL]).fetchall()
    below = [names.levels(tenant, name) for (name,) in rows if "." not in name.removeprefix(root)]
    return below if parent else [EVENTS, *below]


def properties(tenant: Tenant, namespace: Levels) -> dict[str, str]:
    """Load the properties of a namespace.

    One of the tenant's own has a `location`: where it has none, Trino does not stage a table that it creates,
    and then refuses the folder, which has the table's first metadata file.

    Raises:
        NoSuchNamespace: the tenant has none of this name.
    """
    if namespace == EVENTS:
        return dict(_ABOUT)
    if (place := stored(tenant, namespace)) is None:
        raise no_namespace(namespace)
    with _session(tenant) as connection:
        values = dict(connection.execute(PROPERTIES, [iceberg.CATALOG, place]).fetchall())
    if values.pop(EXISTS, None) is None:
        raise no_namespace(namespace)
    return {"location": paths.tenant_folder(tenant)} | values


def tables(
    tenant: Tenant, namespace: Levels, after: str = "", most: int = ALL, kind: Kind = Kind.TABLE
) -> Sequence[str]:
    """List the names of the tables, or views, in a namespace, sorted, from after a given name on.

    Raises:
        NoSuchNamespace: the tenant has none of this name.
    """
    properties(tenant, namespace)
    with postgres.tenant_transaction(ROLE, tenant.tenant_id) as connection:
        rows = connection.execute(
            TABLES, [iceberg.CATALOG, stored(tenant, namespace), kind, after, most]
        ).fetchall()
        return [name for (name,) in rows]


def tenant_tables(tenant: Tenant) -> list[OwnTable]:
    """All tables in the tenant's own namespaces, sorted by name; no views."""
    with postgres.tenant_transaction(ROLE, tenant.tenant_id) as connection:
        rows = connection.execute(TENANT_TABLES, [iceberg.CATALOG, names.tenant_root(tenant)]).fetchall()
    return [OwnTable(names.levels(tenant, place), name, (place, name), at) for place, name, at in rows]


def location(tenant: Tenant, namespace: Levels, table: str, kind: Kind = Kind.TABLE) -> str:
    """The location of the current metadata of a table or view.

    Raises:
        NoSuchTable, NoSuchView: the tenant has none of this name.
    """
    current = find(tenant, namespace, table, kind)
    if current is None:
        raise (no_table if kind is Kind.TABLE else no_view)(namespace, table)
    return current


def find(tenant: Tenant, namespace: Levels, table: str, kind: Kind = Kind.TABLE) -> str | None:
    """Like `location`; None if there is none."""
    place = stored(tenant, namespace)
    if place is None or not names.usable(table):
        return None
    with _session(tenant) as connection:
        row = connection.execute(FIND, [iceberg.CATALOG, place, table, kind]).fetchone()
    return None if row is None else str(row[0])
