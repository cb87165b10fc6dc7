"""Batches as an operator sees them: in flight, and settled lately; and the effect of a settled one."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from pulse_resources import postgres

LATELY = """
WITH shown AS (
    SELECT * FROM ingest_batches WHERE state <> 'settled'
    UNION ALL
    (SELECT * FROM ingest_batches WHERE state = 'settled' ORDER BY settled_at DESC LIMIT %s)
)
SELECT s.batch_id, s.state, s.attempt, s.planned_at, s.settled_at, count(DISTINCT r.tenant_id) AS tenants,
    coalesce(sum(r.end_offset - r.start_offset), 0)::int8 AS events, sum(r.landed)::int8 AS landed,
    sum(r.duplicates)::int8 AS duplicates, sum(r.dead_letters)::int8 AS dead_letters, s.last_error
FROM shown s LEFT JOIN ingest_ranges r USING (batch_id)
GROUP BY s.batch_id, s.state, s.attempt, s.planned_at, s.settled_at, s.last_error
ORDER BY s.state = 'settled', coalesce(s.settled_at, s.planned_at) DESC
"""
# The days are found by the batch, their landings by the index on (tenant_id, dataset_id, day).
ROWS_OF_DAYS = """
SELECT b.dataset_id, b.day, sum(l.rows)::bigint
FROM landings b JOIN landings l USING (tenant_id, dataset_id, day)
WHERE b.batch_id = %s GROUP BY 1, 2
"""
FRESHNESS = """
SELECT tenant_id, greatest(0, extract(epoch FROM max(settled_at) - min(oldest_received)))::float8
FROM ingest_ranges WHERE batch_id = %s AND oldest_received IS NOT NULL GROUP BY tenant_id
"""


@dataclass(frozen=True)
class Batch:
    batch_id: str
    state: str
    attempt: int
    planned_at: datetime
    settled_at: datetime | None
    tenants: int
    events: int
    landed: int | None
    """None until some of it is settled; likewise the next two."""
    duplicates: int | None
    dead_letters: int | None
    last_error: str | None


def batches(limit: int) -> list[Batch]:
    """All batches in flight, then at most `limit` settled ones; newest first."""
    with postgres.transaction("pulse_pipeline") as connection:
        return postgres.select(connection, Batch, LATELY, [limit])


@dataclass(frozen=True)
class Effect:
    rows: Mapping[tuple[UUID, date], int]
    """Rows of each (dataset, day) now, from all batches."""
    freshness_seconds: Mapping[UUID, float]
    """Seconds from the append of the batch's oldest event until it could be queried, by tenant."""


def effect(batch_id: str) -> Effect:
    """Read the effect of a settled batch on its days and tenants."""
    with postgres.transaction("pulse_pipeline") as connection:
        rows = connection.execute(ROWS_OF_DAYS, [batch_id]).fetchall()
        freshness = connection.execute(FRESHNESS, [batch_id]).fetchall()
    return Effect({(dataset, day): count for dataset, day, count in rows}, dict(freshness))
