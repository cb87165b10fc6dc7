"""Orphan files of curated tables, left behind by days that are replaced repeatedly."""

from datetime import timedelta

from pyiceberg.table import Table

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables import live_table, orphan_files
from pulse_resources import iceberg, object_store
from pulse_resources.iceberg import TableName

EVERY = 50
"""Commits of a table between two searches for orphans."""
MIN_AGE = timedelta(days=1)


def due(name: TableName, location: str) -> bool:
    """Whether the table, committed just now with this metadata, is due for a search."""
    snapshot = iceberg.load_table(name, location).current_snapshot()
    return snapshot is not None and (snapshot.sequence_number or 0) % EVERY == 0


def remove_orphan_files(tenant: Tenant, name: TableName, min_age: timedelta = MIN_AGE) -> int:
    """Remove orphans older than `min_age`, by the object store's clock; returns their number.

    Raises:
        OSError: the object store failed; only orphans were removed.
        Terminal: the table is gone.
    """

    def load_table() -> Table:
        return iceberg.load_table(name, live_table.current_location(tenant.tenant_id, name))

    objects = object_store.aged(load_table().location(), min_age)
    # Earlier snapshots are not queried: of earlier metadata only the files in the log are kept.
    return orphan_files.remove(tenant, load_table, objects, by_log=False).objects
