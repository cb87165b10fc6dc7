"""A tenant's namespaces and tables, looked up in its own session by a role that sees nothing else."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake.errors import no_namespace, no_table
from pulse_pipelines.lake.names import EVENTS, Levels, stored
from pulse_resources import iceberg, postgres
from pulse_resources.service_settings import Role

ROLE: Role = "pulse_lake"
TABLES = """
SELECT table_name FROM iceberg_catalog.iceberg_tables
WHERE catalog_name = %s AND table_namespace = %s AND coalesce(iceberg_type, 'TABLE') = 'TABLE'
  AND table_name COLLATE "C" > %s
ORDER BY table_name COLLATE "C" LIMIT %s
"""
ALL = 10_000
"""Names in an answer without pages."""


@contextmanager
def _session(tenant: Tenant) -> Iterator[postgres.Connection]:
    """A transaction in the tenant's session whose statements go out together: engines ask all the time."""
    with postgres.pool(ROLE).connection() as connection, connection.pipeline(), connection.transaction():
        postgres.set_tenant(connection, tenant.tenant_id)
        yield connection


def namespaces(parent: Levels = ()) -> list[Levels]:
    """The namespaces right below another one; at the root, what every tenant has.

    Raises:
        NoSuchNamespace: there is no such parent.
    """
    if not parent:
        return [EVENTS]
    check_namespace(parent)
    return []


def check_namespace(namespace: Levels) -> None:
    """Raise NoSuchNamespace where the tenant has none of this name."""
    if namespace != EVENTS:
        raise no_namespace(namespace)


def tables(tenant: Tenant, namespace: Levels, after: str = "", most: int = ALL) -> Sequence[str]:
    """Names of the tables in a namespace, those after a name, in order.

    Raises:
        NoSuchNamespace: the tenant has none of this name.
    """
    if (place := stored(tenant, namespace)) is None:
        raise no_namespace(namespace)
    with postgres.tenant_transaction(ROLE, tenant.tenant_id) as connection:
        rows = connection.execute(TABLES, [iceberg.CATALOG, place, after, most])
        return [name for (name,) in rows]


def location(tenant: Tenant, namespace: Levels, table: str) -> str:
    """Where the table's current metadata is.

    Raises:
        NoSuchTable: the tenant has none of this name.
    """
    place = stored(tenant, namespace)
    found = None
    if place is not None and "\0" not in table:
        with _session(tenant) as connection:
            found = iceberg.find_location(connection, (place, table))
    if found is None:
        raise no_table(namespace, table)
    return found
