"""Registering, renaming and dropping a tenant's own tables and views."""

import time

import psycopg

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import catalog, metadata, namespaces, parsing, paths, purges, table_commits, updates
from pulse_pipelines.lake.catalog import ROLE, Kind
from pulse_pipelines.lake.errors import Malformed, NameTaken, no_table, no_view
from pulse_pipelines.lake.metadata import Metadata
from pulse_pipelines.lake.requests import Once
from pulse_pipelines.lake.table_commits import Name
from pulse_resources import iceberg, postgres
from pulse_resources.errors import Terminal
from pulse_resources.iceberg import table_metadata
from pulse_resources.iceberg.document_weight import TooLarge

PURGE_S = 1.0
"""Seconds to remove files of a dropped table, since other requests wait; upkeep removes the rest."""
DROP = """
DELETE FROM iceberg_catalog.iceberg_tables
WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s AND coalesce(iceberg_type, 'TABLE') = %s
RETURNING metadata_location
"""
RENAME = """
UPDATE iceberg_catalog.iceberg_tables SET table_namespace = %s, table_name = %s
WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s AND coalesce(iceberg_type, 'TABLE') = %s
"""


def register(
    tenant: Tenant, name: Name, kind: Kind, at: str, once: Once, *, overwrite: bool = False
) -> Metadata:
    """Register a table or view by its existing metadata: one of the tenant's own, dropped without its files.

    Args:
        overwrite: also if there is one of this name: from then on it has this metadata, of its own folder or
            of one that no table has; the files that it had stay, as those of a dropped table.

    Raises:
        Malformed: the file is not metadata of a table (or view), or it names files elsewhere.
        NameTaken, NoSuchNamespace, ReadOnly: as `table_commits.create`.
    """
    once.check(tenant)
    paths.check_metadata_file(tenant, at)  # before anything is read
    if not (overwrite and catalog.find(tenant, name.namespace, name.name, kind)):
        table_commits.check_new(tenant, name, kind)
    try:
        registered = metadata.read(tenant, at, bypass_cache=True)
        document = registered.document()
        if kind is Kind.TABLE:
            updates.check(parsing.table(document))
        else:
            parsing.check_view(document)
    except TooLarge as error:
        raise Malformed(error.message, fix=error.fix) from None
    except Terminal:
        raise Malformed("metadata-location names no metadata file") from None
    except updates.WRONG as error:
        raise updates.wrong(error) from None
    paths.check(tenant, document)
    if not paths.below(registered.location, at):
        raise Malformed("the metadata file is not in the folder of its table")
    return table_commits.enter(tenant, name, registered, kind, once, overwrite=overwrite)


def drop(tenant: Tenant, name: Name, kind: Kind, once: Once, *, purge: bool = False) -> None:
    """Drop a table or view; with `purge` also its files, those of a large table at the next upkeep.

    Raises:
        NoSuchTable, NoSuchView: there is none of this name.
        ReadOnly, NoSuchNamespace: as `namespaces.place_of`.
        OSError: the object store failed: the table is dropped, and upkeep removes the files that are left.
    """
    missing = (no_table if kind is Kind.TABLE else no_view)(name.namespace, name.name)
    place = namespaces.place_of(tenant, name.namespace)
    once.check(tenant)
    with postgres.tenant_transaction(ROLE, tenant.tenant_id) as connection:
        row = connection.execute(DROP, [iceberg.CATALOG, place, name.name, kind]).fetchone()
        if row is None:
            raise missing
        once.record(connection)
        location = table_metadata.folder(row[0])
        purge = purge and paths.is_location(tenant, location)
        if purge:
            purges.record(connection, location)
    if purge:
        purges.remove(tenant, location, time.monotonic() + PURGE_S)


def rename(tenant: Tenant, old: Name, new: Name, kind: Kind, once: Once) -> None:
    """Rename a table or view; its files stay where they are.

    Raises:
        NoSuchTable, NoSuchView: there is none of the old name.
        NameTaken: the new name is in use.
        ReadOnly, NoSuchNamespace, Malformed: as `table_commits.create`, for either name.
    """
    place = namespaces.place_of(tenant, old.namespace)
    once.check(tenant)
    catalog.location(tenant, old.namespace, old.name, kind)
    try:
        table_commits.check_new(tenant, new, kind)
    except NameTaken as error:
        raise _in_the_way(old, new, str(error.where["known"])) from None
    new_place = namespaces.place_of(tenant, new.namespace)
    with postgres.tenant_transaction(ROLE, tenant.tenant_id) as connection:
        once.record(connection)
        namespaces.hold(connection, new.namespace, new_place)
        try:
            with connection.transaction():
                moved = connection.execute(
                    RENAME, [new_place, new.name, iceberg.CATALOG, place, old.name, kind]
                ).rowcount
        except psycopg.errors.UniqueViolation:
            raise _in_the_way(old, new, "Something") from None
        if not moved:
            raise (no_table if kind is Kind.TABLE else no_view)(old.namespace, old.name)


def _in_the_way(old: Name, new: Name, existing: str) -> NameTaken:
    problem = f"Cannot rename {table_commits.shown(old)} to {table_commits.shown(new)}."
    return NameTaken(f"{problem} {existing.capitalize()} already exists")
