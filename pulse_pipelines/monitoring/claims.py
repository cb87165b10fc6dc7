"""Claims held against rows: each row has its id claimed at its own position, and each claim has its row.

The claims of a dataset are copied to a file in the snapshot in which the ledger is read; DuckDB joins them
with the table's rows, and goes to the disk where memory is short.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from pulse_pipelines.query import duckdb_pool
from pulse_resources import postgres

BLOCK_BYTES = 8 * 1024 * 1024
"""Of claims in memory at a time."""
EVENTS = pa.schema([("partition", pa.int32()), ("event_offset", pa.int64()), ("event_id", pa.string())])
"""Events of one dataset, by position."""

CLAIMS = """
COPY (SELECT partition, event_offset, event_id FROM processed_event_ids
      WHERE tenant_id = %s AND dataset_id = %s) TO STDOUT (FORMAT csv)
"""
LANDED = f"""
CREATE OR REPLACE TEMP TABLE landed AS
SELECT _kafka_partition AS partition, _offset AS event_offset, id AS event_id FROM {duckdb_pool.SCAN}
"""  # noqa: S608 - from a constant
# What an id that was forgotten lands again has one row before its claim was retired.
DOUBLED = """
SELECT count(*), min(event_id) FROM (
    SELECT event_id FROM landed LEFT JOIN retired USING (partition)
    WHERE claims_from IS NULL OR event_offset >= claims_from
    GROUP BY event_id HAVING count(*) > 1)
"""
UNCLAIMED = """
SELECT l.partition, l.event_offset FROM landed l
ANTI JOIN read_parquet(?) c USING (partition, event_offset, event_id)
LEFT JOIN retired r ON r.partition = l.partition
WHERE r.claims_from IS NULL OR l.event_offset >= r.claims_from
ORDER BY ALL
"""
IDLE = """
SELECT partition, event_offset FROM read_parquet(?)
ANTI JOIN landed USING (partition, event_offset, event_id) ORDER BY ALL
"""
NOT_LANDED = "SELECT * FROM copies ANTI JOIN landed USING (event_id) ORDER BY ALL"
NOT_CLAIMED = "SELECT * FROM copies ANTI JOIN read_parquet(?) USING (event_id) ORDER BY ALL"


@dataclass(frozen=True)
class Rows:
    """What a table holds, and what its claims say of it. Tables have the columns of `EVENTS`, in order."""

    positions: pa.Table
    """Of all rows."""
    doubled: tuple[int, str | None]
    """How many ids have several rows though each should have kept the next one out, and the first of them."""
    unclaimed: pa.Table
    """Positions of rows whose id is not claimed there, though no retention may have removed the claim."""
    idle: pa.Table
    """Positions of claims without such a row."""
    lost: pa.Table
    """Of the copies that were given: those whose id has no row and no claim."""


def copy_claims(connection: postgres.Connection, tenant_id: UUID, dataset_id: UUID, path: Path) -> None:
    """Copy the claims of a dataset to a Parquet file, as this transaction sees them."""
    read = csv.ReadOptions(column_names=EVENTS.names)
    parse = csv.ParseOptions(newlines_in_values=True)
    convert = csv.ConvertOptions(column_types=EVENTS)
    with (
        pq.ParquetWriter(path, EVENTS, use_dictionary=False) as writer,  # no two ids are the same
        connection.cursor() as cursor,
        cursor.copy(CLAIMS, [tenant_id, dataset_id]) as rows,
    ):
        for block in _blocks(rows):
            writer.write_table(csv.read_csv(pa.BufferReader(block), read, parse, convert))


def _blocks(rows: "Iterable[bytes | bytearray | memoryview]") -> Iterator[bytes]:
    """Whole rows, many at a time: Postgres sends each as a message of its own."""
    block: list[bytes | bytearray | memoryview] = []
    size = 0
    for row in rows:
        block.append(row)
        size += len(row)
        if size >= BLOCK_BYTES:
            yield b"".join(block)
            block, size = [], 0
    if block:
        yield b"".join(block)


def compare(
    location: str, claims: Path | None, claims_from: Mapping[int, int], copies: pa.Table | None
) -> Rows:
    """Read the rows of a table and hold them against its claims.

    Args:
        location: the table's metadata.
        claims: as `copy_claims` left them; None: nobody asks for them, the dataset is deleted.
        claims_from: by partition: claims of earlier offsets may have been retired.
        copies: events that were dropped as copies of one of these rows.

    Raises:
        Terminal: a file of the table is gone or damaged.
        Transient: the object store does not answer.
    """
    nothing, copies = EVENTS.empty_table(), EVENTS.empty_table() if copies is None else copies
    retired = {partition: offset for partition, offset in claims_from.items() if offset}
    known = {"partition": list(retired), "claims_from": list(retired.values())}
    types = pa.schema([("partition", pa.int32()), ("claims_from", pa.int64())])
    with duckdb_pool.connect() as connection:
        connection.execute(LANDED, [location])
        connection.register("retired", pa.table(known, types))
        connection.register("copies", copies)
        lost = connection.execute(NOT_LANDED).to_arrow_table()
        connection.register("copies", lost)
        path = [str(claims)]
        found = Rows(
            positions=connection.execute("SELECT partition, event_offset FROM landed").to_arrow_table(),
            doubled=connection.execute(DOUBLED).fetchone() or (0, None),
            unclaimed=connection.execute(UNCLAIMED, path).to_arrow_table() if claims else nothing,
            idle=connection.execute(IDLE, path).to_arrow_table() if claims else nothing,
            lost=connection.execute(NOT_CLAIMED, path).to_arrow_table() if claims else lost,
        )
        for name in ("retired", "copies"):
            connection.unregister(name)
        connection.execute("DROP TABLE landed")
    return found
