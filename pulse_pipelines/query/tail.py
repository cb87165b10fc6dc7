"""Tail: follow the rows of a dataset as batches land them.

Only appends are read, so rows that compaction, backfills and erasures rewrite are not repeated.
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
from pulse_resources import iceberg

LOOK_S = 1.0
QUERY = f"SELECT * FROM {duckdb_pool.SCAN} ORDER BY _kafka_partition, _offset"  # noqa: S608 - from constants


def follow(tenant: Tenant, slug: str, pause: Callable[[], object] | None = None) -> Iterator[pa.Table]:
    """Yield the rows that land from now on, one append at a time, in the order of their offsets, endlessly.

    Args:
        pause: called between polls; None: sleep for a second.

    Raises:
        NotFound: the tenant has no such dataset, or it was deleted.
        Terminal: its table is gone or damaged.
        Transient: the object store does not answer.
    """
    return _follow(tenant, slug, of_current(_latest, tenant, slug), pause)


def _follow(tenant: Tenant, slug: str, seen: int, pause: Callable[[], object] | None) -> Iterator[pa.Table]:
    while True:
        appends, seen = of_current(partial(_appended, after=seen), tenant, slug)
        yield from appends
        if pause is None:
            time.sleep(LOOK_S)
        else:
            pause()


def _latest(metadata: TableMetadata) -> int:
    """The sequence number of the latest commit."""
    snapshot = metadata.snapshot_by_id(metadata.current_snapshot_id or -1)
    return (snapshot.sequence_number or 0) if snapshot else 0


def _appended(metadata: TableMetadata, after: int) -> tuple[list[pa.Table], int]:
    """The rows of each append since a sequence number, oldest first, and the latest sequence number."""
    fresh = [each for each in history(metadata) if (each.sequence_number or 0) > after]
    appends = [each for each in fresh if each.summary and each.summary.operation is Operation.APPEND]
    return [_rows(metadata, each) for each in reversed(appends)], _latest(metadata)


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
