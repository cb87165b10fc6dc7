"""Claims held against rows: each row has its id claimed, each claim has its row, each filter is of its run.

The claims of a dataset are copied to a file in the snapshot in which the ledger is read; DuckDB joins them
with the digests of the rows' ids, and goes to the disk where memory is short.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from duckdb.func import ARROW

from pulse_pipelines.query import duckdb_pool
from pulse_pipelines.tables import claim_files, claim_filters
from pulse_pipelines.tables.claims import runs
from pulse_pipelines.tables.digests import Digests
from pulse_resources import postgres

EVENTS = pa.schema([("partition", pa.int32()), ("event_offset", pa.int64()), ("event_id", pa.string())])
"""Events of one dataset, by position."""
CLAIMS = pa.schema([("digest", pa.binary())])
DIGEST = "pulse_digest"

LANDED = f"""
CREATE OR REPLACE TEMP TABLE landed AS
SELECT _kafka_partition AS partition, _offset AS event_offset, id AS event_id,
    {DIGEST}(id) AS digest FROM {duckdb_pool.SCAN}
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
ANTI JOIN read_parquet(?) c USING (digest)
LEFT JOIN retired r ON r.partition = l.partition
WHERE r.claims_from IS NULL OR l.event_offset >= r.claims_from
ORDER BY ALL
"""
IDLE = "SELECT count(*) FROM (SELECT DISTINCT digest FROM read_parquet(?) ANTI JOIN landed USING (digest))"
NOT_LANDED = "SELECT * FROM copies ANTI JOIN landed USING (event_id) ORDER BY ALL"
NOT_CLAIMED = f"""
SELECT partition, event_offset, event_id FROM (SELECT *, {DIGEST}(event_id) AS digest FROM copies)
ANTI JOIN read_parquet(?) USING (digest) ORDER BY ALL
"""  # noqa: S608 - from a constant


@dataclass(frozen=True)
class Claims:
    """What is claimed of a dataset's ids."""

    path: Path
    """Of a Parquet file with the schema `CLAIMS`."""
    seed: int
    erased: int
    """How many of them are of rows that erasures took: their claims outlive them."""
    wrong_filters: Sequence[int] = ()
    """Runs whose filter is not of their digests."""


@dataclass(frozen=True)
class Rows:
    """What a table holds, and what its claims say of it. Tables have the columns of `EVENTS`, in order."""

    positions: pa.Table
    """Of all rows."""
    doubled: tuple[int, str | None]
    """How many ids have several rows though each should have kept the next one out, and the first of them."""
    unclaimed: pa.Table
    """Positions of rows whose id is not claimed there, though no retention may have removed the claim."""
    idle: int
    """How many claims have no row."""
    lost: pa.Table
    """Of the copies that were given: those whose id has no row and no claim."""


def copy_claims(connection: postgres.Connection, dataset_id: UUID, path: Path) -> Sequence[int]:
    """Copy the claims of a dataset to a Parquet file, as this transaction's snapshot has them.

    Returns:
        The runs whose filter is not of their digests.
    """
    wrong = []
    with pq.ParquetWriter(path, CLAIMS, use_dictionary=False) as writer:  # no two are the same
        for run in runs(connection, [dataset_id])[dataset_id]:
            digests = claim_files.digests(connection, run)
            writer.write_table(pa.table([digests.blobs()], CLAIMS))
            if run.filter_bytes and claim_files.filter_of(connection, run) != claim_filters.make(digests):
                wrong.append(run.run)
    return wrong


def compare(
    location: str, claims: Claims | None, claims_from: Mapping[int, int], copies: pa.Table | None
) -> Rows:
    """Read the rows of a table and hold them against its claims.

    Args:
        location: the table's metadata.
        claims: None: nobody asks for them, the dataset is deleted.
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
    seed = claims.seed if claims else 0

    def digest(ids: pa.ChunkedArray) -> pa.Array:
        return Digests.of(ids, seed).blobs()

    with duckdb_pool.connect() as connection:
        connection.create_function(DIGEST, digest, ["VARCHAR"], "BLOB", type=ARROW)
        try:
            connection.execute(LANDED, [location])
            connection.register("retired", pa.table(known, types))
            connection.register("copies", copies)
            lost = connection.execute(NOT_LANDED).to_arrow_table()
            found = Rows(
                positions=connection.execute("SELECT partition, event_offset FROM landed").to_arrow_table(),
                doubled=connection.execute(DOUBLED).fetchone() or (0, None),
                unclaimed=nothing,
                idle=0,
                lost=lost,
            )
            if claims:
                connection.register("copies", lost)
                path = [str(claims.path)]
                found = replace(
                    found,
                    unclaimed=connection.execute(UNCLAIMED, path).to_arrow_table(),
                    idle=(connection.execute(IDLE, path).fetchone() or (0,))[0],
                    lost=connection.execute(NOT_CLAIMED, path).to_arrow_table(),
                )
        finally:
            for name in ("retired", "copies"):
                connection.unregister(name)
            connection.execute("DROP TABLE IF EXISTS landed")
            connection.remove_function(DIGEST)
    return found
