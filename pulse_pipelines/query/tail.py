"""Tail: follow the rows of a dataset as batches land them.

Only appends are read, so rows that compaction, backfills and erasures rewrite are not repeated. Where the
table's history does not go back to the last read, as after an erasure, offsets tell new rows from old.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.query import duckdb_pool, partial_table
from pulse_pipelines.query.snapshots import history, manifests, of_current
from pulse_resources import iceberg, postgres

POLL_S = 1.0
PLACE = ("_kafka_partition", "_offset")
ORDER = "ORDER BY _kafka_partition, _offset"
QUERY = f"SELECT * FROM {duckdb_pool.SCAN} {ORDER}"  # noqa: S608 - from constants
SINCE = f"""
SELECT rows.* FROM {duckdb_pool.SCAN} AS rows
LEFT JOIN unnest(?::STRUCT(p INT, o BIGINT)[]) AS t(seen) ON seen.p = _kafka_partition
WHERE _offset >= coalesce(seen.o, 0) {ORDER}
"""  # noqa: S608 - from constants
POSITIONS = "SELECT partition, settled_offset FROM ingest_positions WHERE tenant_id = %s"
Offsets = dict[int, int]
"""By partition the offset after the last event that was returned."""


def follow(tenant: Tenant, slug: str, pause: Callable[[], object] | None = None) -> Iterator[pa.Table]:
    """Yield the rows that land from now on, one append at a time, in the order of their offsets, endlessly.

    Args:
        pause: called between polls; None: sleep for a second.

    Raises:
        NotFound: the tenant has no such dataset, or it was deleted.
        Terminal: its table is gone or damaged.
        Transient: the object store does not answer.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        offsets = dict(connection.execute(POSITIONS, [tenant.tenant_id]).fetchall())
    return _follow(tenant, slug, of_current(_latest, tenant, slug), offsets, pause)


def _follow(
    tenant: Tenant, slug: str, sequence_number: int, offsets: Offsets, pause: Callable[[], object] | None
) -> Iterator[pa.Table]:
    while True:
        appends, sequence_number = of_current(
            partial(_appended, after=sequence_number, offsets=offsets), tenant, slug
        )
        for rows in appends:
            places = zip(*(rows.column(name).to_pylist() for name in PLACE), strict=True)
            for partition, offset in places:
                offsets[partition] = max(offsets.get(partition, 0), offset + 1)
            yield rows
        if pause is None:
            time.sleep(POLL_S)
        else:
            pause()


def _latest(metadata: TableMetadata) -> int:
    """The sequence number of the latest commit."""
    snapshot = metadata.snapshot_by_id(metadata.current_snapshot_id or -1)
    return (snapshot.sequence_number or 0) if snapshot else 0


def _appended(metadata: TableMetadata, after: int, offsets: Offsets) -> tuple[list[pa.Table], int]:
    """The rows of each append since a sequence number, oldest first, and the latest sequence number."""
    snapshots = list(history(metadata))
    fresh = [snapshot for snapshot in snapshots if (snapshot.sequence_number or 0) > after]
    # The rows that were read are gone.
    if fresh and len(fresh) == len(snapshots) and fresh[-1].sequence_number != 1:
        rows = _since(metadata, fresh[0], offsets)
        return [rows] if len(rows) else [], _latest(metadata)
    appends = [
        snapshot for snapshot in fresh if snapshot.summary and snapshot.summary.operation is Operation.APPEND
    ]
    return [_rows(metadata, append) for append in reversed(appends)], _latest(metadata)


def _rows(metadata: TableMetadata, append: Snapshot) -> pa.Table:
    """The rows that a snapshot added, with the table's current schema."""
    io = iceberg.file_io()
    files = [
        entry.data_file
        for manifest in manifests(append.manifest_list)
        if manifest.added_snapshot_id == append.snapshot_id
        for entry in manifest.fetch_manifest_entry(io)
        if entry.snapshot_id == append.snapshot_id
    ]
    with (
        duckdb_pool.connect() as connection,
        partial_table.of_files(metadata, append, metadata.current_schema_id, files) as location,
    ):
        return connection.execute(QUERY, [location]).to_arrow_table()


def _since(metadata: TableMetadata, snapshot: Snapshot, offsets: Offsets) -> pa.Table:
    """The rows of a snapshot from these offsets on, with the table's current schema."""
    offset_rows = [{"p": partition, "o": offset} for partition, offset in offsets.items()]
    with (
        duckdb_pool.connect() as connection,
        partial_table.of_files(metadata, snapshot, metadata.current_schema_id, None) as location,
    ):
        return connection.execute(SINCE, [location, offset_rows]).to_arrow_table()
