"""Batches as an operator sees them: those in flight, and those settled lately."""

from dataclasses import dataclass
from datetime import datetime

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
