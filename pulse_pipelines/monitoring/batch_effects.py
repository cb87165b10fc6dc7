"""What a settled batch made of the days that it touched, from the ledger."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from uuid import UUID

from pulse_resources import postgres

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
class Effect:
    rows: Mapping[tuple[UUID, date], int]
    """Rows that each (dataset, day) has now, of all batches."""
    freshness_seconds: Mapping[UUID, float]
    """By tenant: from its oldest event's append to when it could be queried."""


def effect(batch_id: str) -> Effect:
    """What became of the days and tenants of a batch that settled."""
    with postgres.transaction("pulse_pipeline") as connection:
        rows = connection.execute(ROWS_OF_DAYS, [batch_id]).fetchall()
        freshness = connection.execute(FRESHNESS, [batch_id]).fetchall()
    return Effect({(dataset, day): count for dataset, day, count in rows}, dict(freshness))
