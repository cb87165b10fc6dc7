"""Maintenance state: what upkeep left of each day and table, compared with the ledger the next time.

Ledger totals and the table's pointer are read in one Postgres snapshot: the files counted here hold exactly
what the totals count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.moments import EPOCH_DAY
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import iceberg, postgres

LANDED = """
SELECT coalesce(sum(files), 0)::bigint, coalesce(sum(bytes), 0)::bigint FROM landings
WHERE tenant_id = %s AND dataset_id = %s AND day = %s
"""
SAVE_DAY = """
INSERT INTO upkeep_days (tenant_id, dataset_id, day, level, landed_files, landed_bytes, files, bytes)
VALUES (%(tenant)s, %(dataset)s, %(day)s, %(level)s, %(landed_files)s, %(landed_bytes)s, %(files)s, %(bytes)s)
ON CONFLICT (dataset_id, day) DO UPDATE SET level = EXCLUDED.level, landed_files = EXCLUDED.landed_files,
    landed_bytes = EXCLUDED.landed_bytes, files = EXCLUDED.files, bytes = EXCLUDED.bytes, compacted_at = now()
"""
SAVE_TABLE = """
INSERT INTO upkeep_tables (tenant_id, dataset_id, seen_at, snapshots, oldest_at, manifests)
VALUES (%(tenant)s, %(dataset)s, %(recorded)s, %(snapshots)s, %(oldest)s, %(manifests)s)
ON CONFLICT (dataset_id) DO UPDATE SET seen_at = EXCLUDED.seen_at, snapshots = EXCLUDED.snapshots,
    oldest_at = EXCLUDED.oldest_at, manifests = EXCLUDED.manifests
"""
SAVE_ORPHANS_REMOVED = (
    "UPDATE upkeep_tables SET swept_at = clock_timestamp() WHERE tenant_id = %s AND dataset_id = %s"
)

SAVE_TENANT = """
INSERT INTO upkeep_tenants AS u (tenant_id, swept_at, retained_at, own_at)
VALUES (%(tenant)s, %(cleaned)s, %(retained)s, %(tidied)s)
ON CONFLICT (tenant_id) DO UPDATE SET swept_at = coalesce(EXCLUDED.swept_at, u.swept_at),
    retained_at = coalesce(EXCLUDED.retained_at, u.retained_at), own_at = coalesce(EXCLUDED.own_at, u.own_at)
"""


@dataclass(frozen=True)
class DayFiles:
    """Data files of a day, with the files and bytes landed in it at the same moment."""

    table: Table
    files: tuple[DataFile, ...]
    landed_files: int
    landed_bytes: int

    @property
    def bytes(self) -> int:
        return sum(file.file_size_in_bytes for file in self.files)

    @property
    def rows(self) -> int:
        return sum(file.record_count for file in self.files)


def of_day(tenant: Tenant, dataset: Dataset, day: date) -> DayFiles:
    """Current files of a day of a table."""
    name = (tenant.namespace, dataset.slug)
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id, one_snapshot=True) as connection:
        location = iceberg.current_location(connection, name)
        values = [tenant.tenant_id, dataset.dataset_id, day]
        files, size = connection.execute(LANDED, values).fetchone() or (0, 0)
    table = iceberg.load_table(name, location)
    return DayFiles(table, tuple(files_of(table, [day])), files, size)


def files_of(table: Table, days: Sequence[date]) -> list[DataFile]:
    """Data files of some days in the current snapshot."""
    snapshot, day_numbers = table.current_snapshot(), {(day - EPOCH_DAY).days for day in days}
    return [
        entry.data_file
        for manifest in (snapshot.manifests(table.io) if snapshot else ())
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        if entry.data_file.partition[0] in day_numbers
    ]


def save_day(tenant: Tenant, dataset: Dataset, day: date, level: int, files: DayFiles) -> None:
    """Record what a compaction left of a day."""
    values = {
        "tenant": tenant.tenant_id,
        "dataset": dataset.dataset_id,
        "day": day,
        "level": level,
        "landed_files": files.landed_files,
        "landed_bytes": files.landed_bytes,
        "files": len(files.files),
        "bytes": files.bytes,
    }
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        connection.execute(SAVE_DAY, values)


def save_table(tenant: Tenant, dataset: Dataset, *, orphans_removed: bool) -> Table:
    """Record a table's current snapshots and manifests."""
    name = (tenant.namespace, dataset.slug)
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id, one_snapshot=True) as connection:
        location = iceberg.current_location(connection, name)
        (read_at,) = connection.execute("SELECT now()").fetchone() or (None,)
    table = iceberg.load_table(name, location)
    snapshot = table.current_snapshot()
    times = sorted(s.timestamp_ms for s in table.metadata.snapshots)
    values = {
        "tenant": tenant.tenant_id,
        "dataset": dataset.dataset_id,
        "recorded": read_at,
        "snapshots": len(table.metadata.snapshots),
        # The oldest ceased to be the current one when the next was made: its age counts from then.
        "oldest": datetime.fromtimestamp(times[1] / 1000, UTC) if len(times) > 1 else None,
        "manifests": len(snapshot.manifests(table.io)) if snapshot else 0,
    }
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        connection.execute(SAVE_TABLE, values)
        if orphans_removed:
            connection.execute(SAVE_ORPHANS_REMOVED, [tenant.tenant_id, dataset.dataset_id])
    return table


def save_tenant(
    tenant: Tenant,
    *,
    cleaned_at: datetime | None = None,
    retained_at: datetime | None = None,
    tidied_at: datetime | None = None,
) -> None:
    """Record when a tenant's raw zone was searched, its retention applied, its own tables tidied.

    None: unchanged.
    """
    values = {"tenant": tenant.tenant_id, "cleaned": cleaned_at, "retained": retained_at, "tidied": tidied_at}
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        connection.execute(SAVE_TENANT, values)


def database_time() -> datetime:
    """Postgres' clock, by which the ledger is dated."""
    with postgres.transaction("pulse_pipeline") as connection:
        row = connection.execute("SELECT now()").fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM has a row
    now: datetime = row[0]
    return now
