"""Removal of the folders of tenants' own tables: after a drop with its files, and of what was never entered.

A folder is recorded before its first file is removed, and stays recorded: `table_quotas.admit` no longer
enters a table in it. So a late writer gets an error, and not a table whose files are gone. Upkeep removes
what a process left when it died or ran out of time.
"""

import time
from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import metadata, paths, table_quotas
from pulse_pipelines.lake.catalog import ROLE
from pulse_resources import object_store, postgres
from pulse_resources.iceberg import table_metadata
from pulse_resources.object_store import Object
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.process.faults import fail_point
from pulse_resources.store_keys.vended import Mode

RECORD = "INSERT INTO lake_purges (tenant_id, location) VALUES (app_tenant(), %s) ON CONFLICT DO NOTHING"
DONE = "UPDATE lake_purges SET done_at = now() WHERE location = %s"
UNFINISHED = "SELECT location FROM lake_purges WHERE done_at IS NULL ORDER BY at"


def record(connection: postgres.Connection, location: str) -> None:
    """Record, in this transaction, that the files of a folder are to be removed."""
    connection.execute(RECORD, [location])


def remove(tenant: Tenant, location: str, until: float) -> bool:
    """Remove the files of a recorded folder, as `metadata.remove_all` does; returns whether it is done.

    Raises:
        as `metadata.remove_all`.
    """
    fail_point("lake.purge")
    if not metadata.remove_all(location, until):
        return False
    with postgres.tenant_transaction(ROLE, tenant.tenant_id) as connection:
        connection.execute(DONE, [location])
    return True


def finish(tenant: Tenant, seconds: float) -> int:
    """Remove what unfinished removals have left; returns the number of folders.

    Args:
        seconds: for all of them.
    """
    until = time.monotonic() + seconds
    with postgres.tenant_transaction(ROLE, tenant.tenant_id) as connection:
        folders = [location for (location,) in connection.execute(UNFINISHED).fetchall()]
    count = 0
    for number, location in enumerate(folders):
        if number and time.monotonic() > until:
            break
        count += remove(tenant, location, until)
    return count


def remove_abandoned(tenant: Tenant, min_age: timedelta, seconds: float) -> int:
    """Remove folders that never belonged to a table, while there is time; returns their number.

    These are folders of no table, with no metadata file that was committed: a client that staged a table
    wrote data only; a process that died left the first metadata file alone. All their files are at least
    `min_age` old, by the object store's clock. A table that was dropped without its files has more.

    Raises:
        as `metadata.remove_all`.
    """
    newest, until = object_store.store_time() - min_age, time.monotonic() + seconds
    count = 0
    for location, files in _folders(tenant).items():
        if time.monotonic() > until:
            break
        if _never_entered(files) and all(file.modified <= newest for file in files):
            with postgres.tenant_transaction(ROLE, tenant.tenant_id) as connection:
                locks.wait(connection, Lock.LAKE, tenant.tenant_id)  # as `table_quotas.admit` takes it
                unused = not table_quotas.in_use(connection, location)
                if unused:
                    record(connection, location)
            if unused:
                count += remove(tenant, location, until)
    return count


def _folders(tenant: Tenant) -> Mapping[str, list[Object]]:
    """The files in the folders of the tenant's own tables."""
    folders: dict[str, list[Object]] = defaultdict(list)
    root = paths.tenant_folder(tenant)
    for file in object_store.listed(root, metadata.file_system(tenant, Mode.READ)):
        location = f"{root}/{file.path.removeprefix(f'{root}/').partition('/')[0]}"
        if paths.is_location(tenant, location):
            folders[location].append(file)
    return folders


def _never_entered(files: list[Object]) -> bool:
    versions = [file for file in files if file.name.endswith(".metadata.json")]
    if not versions:
        return True
    return len(files) == 1 and table_metadata.version(files[0].path) == 0
