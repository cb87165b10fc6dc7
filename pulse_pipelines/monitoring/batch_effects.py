"""Effects of a settled batch on the days that it touched, from the ledger."""

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
    """Rows of each (dataset, day) now, from all batches."""
    freshness_seconds: Mapping[UUID, float]
    """Seconds from the append of the batch's oldest event until it could be queried, by tenant."""


def effect(batch_id: str) -> Effect:
    """Read the effect of a settled batch on its days and tenants."""
    with postgres.transaction("pulse_pipeline") as connection:
        rows = connection.execute(ROWS_OF_DAYS, [batch_id]).fetchall()
        freshness = connection.execute(FRESHNESS, [batch_id]).fetchall()
    return Effect({(dataset, day): count for dataset, day, count in rows}, dict(freshness))
