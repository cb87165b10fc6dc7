"""Windows of a state, compared with the table by SQL: a part of the check `state_equals_table`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import duckdb

from pulse_pipelines.domain.moments import EPOCH
from pulse_pipelines.domain.windows import AHEAD_S, MINUTE_US, RETENTION_MINUTES
from pulse_pipelines.query import duckdb_pool
from pulse_pipelines.states.state_keys import KEY_BYTES
from pulse_resources import postgres

SAMPLE = 1_000
"""Buckets that are looked at, any others each time."""
NEAR = 1e-9
"""How far a sum of doubles, which SQL adds in any order, may be off, as a part of the sum of their sizes."""
# What should be there, and after which minute.
WINDOWS = """
SELECT sums, greatest(newest - %s, dropped_to) FROM event_windows
WHERE dataset_id = %s AND built AND newest IS NOT NULL
"""
TOTALS = """
SELECT count(*), coalesce(sum(events), 0)::bigint FROM event_window_buckets
WHERE dataset_id = %s AND minute > %s
"""
BUCKETS = """
SELECT key, minute, events, first_at, last_at, sums FROM event_window_buckets
WHERE dataset_id = %s AND minute > %s ORDER BY random() LIMIT %s
"""
ROWS = f"""
SELECT {{key}}::VARCHAR AS k, floor(epoch_us(timestamp) / {MINUTE_US})::BIGINT AS m, epoch_us(timestamp) AS us
    {{columns}}
FROM {{scan}}
WHERE strlen({{key}}::VARCHAR) <= {KEY_BYTES} AND timestamp >= ?::TIMESTAMPTZ
    AND epoch_us(timestamp) <= epoch_us(ingested_at) + {AHEAD_S * 1_000_000}
"""  # noqa: S608 - from constants
COUNT = "SELECT count(DISTINCT (k, m)), count(*) FROM ({rows})"
ROWS_OF_BUCKETS = """
SELECT k, m, count(*), min(us), max(us), [{sums}], [{amounts}] FROM ({rows})
WHERE (k, m) IN (SELECT unnest(?::VARCHAR[]), unnest(?::BIGINT[])) GROUP BY k, m
"""


@dataclass(frozen=True)
class StoredWindows:
    """The windows of a state that is complete, and a sample of them, read at one moment with the table."""

    sums: tuple[str, ...]
    after: int
    """Minute after which buckets are kept."""
    buckets: int
    events: int
    sample: tuple[tuple[Any, ...], ...]


def stored_windows(connection: postgres.Connection, dataset_id: UUID) -> StoredWindows | None:
    """The windows that should be complete; None: there are none."""
    row = connection.execute(WINDOWS, [RETENTION_MINUTES, dataset_id]).fetchone()
    if row is None:
        return None
    sums, after = row
    buckets, events = connection.execute(TOTALS, [dataset_id, after]).fetchone() or (0, 0)
    sample = connection.execute(BUCKETS, [dataset_id, after, SAMPLE]).fetchall()
    return StoredWindows(tuple(sums), after, buckets, events, tuple(sample))


def problems(
    connection: duckdb.DuckDBPyConnection, location: str, key: str, stored: StoredWindows
) -> Sequence[str]:
    """Differences between windows and table: of sampled buckets, and of the numbers of buckets and events."""
    named = [f"s{number}" for number in range(len(stored.sums))]
    quoted = ['"' + column.replace('"', '""') + '"' for column in stored.sums]
    columns = "".join(f", {column} AS {name}" for column, name in zip(quoted, named, strict=True))
    scan = duckdb_pool.SCAN if stored.after >= 0 else duckdb_pool.WHOLE_SCAN
    rows = ROWS.format(key=key, columns=columns, scan=scan)
    arguments = [location, EPOCH + timedelta(minutes=stored.after + 1)]
    ((buckets, events),) = connection.execute(COUNT.format(rows=rows), arguments).fetchall()
    differences = []
    if (buckets, events) != (stored.buckets, stored.events):
        differences.append(
            f"the windows have {stored.events} events in {stored.buckets} minutes of keys, and the table "
            f"{events} in {buckets}"
        )
    query = ROWS_OF_BUCKETS.format(
        rows=rows,
        sums=", ".join(f"coalesce(fsum({name}), 0)::DOUBLE" for name in named),
        amounts=", ".join(f"coalesce(fsum(abs({name})), 0)::DOUBLE" for name in named),
    )
    sampled = [[bucket[0] for bucket in stored.sample], [bucket[1] for bucket in stored.sample]]
    by_bucket = {row[:2]: row[2:] for row in connection.execute(query, [*arguments, *sampled]).fetchall()}
    wrong = [bucket for bucket in stored.sample if not _same(bucket, by_bucket.get(bucket[:2]))]
    if wrong:
        differences.append(
            f"of {len(stored.sample)} minutes of keys {len(wrong)} have other events in the table"
        )
    return differences


def _same(bucket: tuple[Any, ...], row: tuple[Any, ...] | None) -> bool:
    if row is None or bucket[2:5] != row[:3]:
        return False
    totals = zip(bucket[5], row[3], row[4], strict=True)
    return all(abs(float(stored_total) - total) <= NEAR * amount for stored_total, total, amount in totals)
