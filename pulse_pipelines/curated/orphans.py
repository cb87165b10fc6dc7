"""Orphan files of curated tables: days that are replaced again and again leave files behind."""

from datetime import timedelta

from pyiceberg.table import Table

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables import live_table, orphan_files
from pulse_resources import iceberg, object_store
from pulse_resources.iceberg import TableName

EVERY = 50
"""Commits of a table between two searches."""
MIN_AGE = timedelta(days=1)


def due(name: TableName, location: str) -> bool:
    """Whether it is time to search the table whose metadata was committed just now."""
    snapshot = iceberg.load_table(name, location).current_snapshot()
    return snapshot is not None and (snapshot.sequence_number or 0) % EVERY == 0


def remove_orphan_files(tenant: Tenant, name: TableName, min_age: timedelta = MIN_AGE) -> int:
    """Remove orphans that are old enough, by the object store's clock; how many there were.

    Raises:
        OSError: the object store failed; what was removed were orphans.
        Terminal: the table is gone.
    """

    def look() -> Table:
        return iceberg.load_table(name, live_table.current_location(tenant.tenant_id, name))

    found = object_store.aged(look().location(), min_age)
    # What days used to come to, nobody asks: of earlier metadata only the files that the log names stay.
    return orphan_files.remove(tenant, look, found, by_log=False).objects
