"""Claims compared with rows: each row has a claim, each claim a row, and each large run its own filter.

A dataset's claims are copied to a file in the same snapshot as the ledger; DuckDB joins them with the digests
of the rows' ids and spills to disk when memory is short.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from duckdb.func import ARROW

from pulse_pipelines.claims import claim_cache, claim_filters
from pulse_pipelines.claims.claim_runs import runs
from pulse_pipelines.query import duckdb_pool
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
# A forgotten id that landed again has one row from before its claim was retired.
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
    """Claimed ids of a dataset."""

    path: Path
    """Parquet file with the schema `CLAIMS`."""
    seed: int
    erased: int
    """Number of claims whose rows were erased: a claim outlives its row."""
    wrong_filters: Sequence[int] = ()
    """Runs whose filter does not match their digests."""


@dataclass(frozen=True)
class Rows:
    """Rows of a table, compared with its claims. Tables have the columns of `EVENTS`, in order."""

    positions: pa.Table
    """Positions of all rows."""
    doubled: tuple[int, str | None]
    """Number of ids with several rows, each of which should have kept out the next, and the first id."""
    unclaimed: pa.Table
    """Positions of rows without a claim, where retention cannot have removed it."""
    idle: int
    """Number of claims without a row."""
    lost: pa.Table
    """Copies among those passed in whose id has neither row nor claim."""


def copy_claims(connection: postgres.Connection, dataset_id: UUID, path: Path) -> Sequence[int]:
    """Copy a dataset's claims to a Parquet file, from this transaction's snapshot.

    Returns:
        The runs whose filter does not match their digests.
    """
    wrong = []
    with pq.ParquetWriter(path, CLAIMS, use_dictionary=False) as writer:  # all values are distinct
        for run in runs(connection, [dataset_id])[dataset_id]:
            digests = claim_cache.digests(connection, run)
            writer.write_table(pa.table([digests.blobs()], CLAIMS))
            if run.filter_bytes and claim_cache.filter_of(connection, run) != claim_filters.make(digests):
                wrong.append(run.run)
    return wrong


def compare(
    location: str, claims: Claims | None, claims_from: Mapping[int, int], copies: pa.Table | None
) -> Rows:
    """Read a table's rows and compare them with its claims.

    Args:
        location: location of the table's metadata.
        claims: None: the dataset is deleted, so its claims are unused.
        claims_from: by partition: claims of earlier offsets may have been retired.
        copies: events that were dropped as copies of a row of this table.

    Raises:
        Terminal: a file of the table is gone or damaged.
        Transient: the object store does not answer.
    """
    nothing, copies = EVENTS.empty_table(), EVENTS.empty_table() if copies is None else copies
    retired = {partition: offset for partition, offset in claims_from.items() if offset}
    retired_columns = {"partition": list(retired), "claims_from": list(retired.values())}
    types = pa.schema([("partition", pa.int32()), ("claims_from", pa.int64())])
    seed = claims.seed if claims else 0

    def digest(ids: pa.ChunkedArray) -> pa.Array:
        return Digests.of(ids, seed).blobs()

    with duckdb_pool.connect() as connection:
        connection.create_function(DIGEST, digest, ["VARCHAR"], "BLOB", type=ARROW)
        try:
            connection.execute(LANDED, [location])
            connection.register("retired", pa.table(retired_columns, types))
            connection.register("copies", copies)
            lost = connection.execute(NOT_LANDED).to_arrow_table()
            rows = Rows(
                positions=connection.execute("SELECT partition, event_offset FROM landed").to_arrow_table(),
                doubled=connection.execute(DOUBLED).fetchone() or (0, None),
                unclaimed=nothing,
                idle=0,
                lost=lost,
            )
            if claims:
                connection.register("copies", lost)
                path = [str(claims.path)]
                rows = replace(
                    rows,
                    unclaimed=connection.execute(UNCLAIMED, path).to_arrow_table(),
                    idle=(connection.execute(IDLE, path).fetchone() or (0,))[0],
                    lost=connection.execute(NOT_CLAIMED, path).to_arrow_table(),
                )
        finally:
            for name in ("retired", "copies"):
                connection.unregister(name)
            connection.execute("DROP TABLE IF EXISTS landed")
            connection.remove_function(DIGEST)
    return rows
