"""History of the settled backfills of all tenants, as their commits recorded it."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from pulse_resources import postgres

OVERLAP = timedelta(minutes=15)
"""`settled_at` is the start of a transaction: a row may become visible this long after a later one."""

BY_HAND = """
SELECT b.backfill_id, t.slug AS tenant, b.slug AS dataset, b.day, b.schema_version, b.rows,
    b.dead_letters AS dead_letters_landed, b.files_after AS files, b.bytes, b.snapshot_id, b.settled_at
FROM backfills b JOIN pdm_tenants t USING (tenant_id)
WHERE b.run_id IS NULL AND b.settled_at > %s AND b.backfill_id <> ALL(%s) ORDER BY b.settled_at LIMIT %s
"""


@dataclass(frozen=True)
class Made:
    """A backfill that was settled."""

    backfill_id: str
    tenant: str
    dataset: str
    day: date
    schema_version: int
    rows: int
    dead_letters_landed: int
    files: int
    bytes: int
    snapshot_id: int
    settled_at: datetime


def by_hand(since: datetime, reported: Collection[str], limit: int) -> list[Made]:
    """Backfills made without a Dagster run, settled after `since` (less `OVERLAP`), the oldest first.

    Args:
        reported: ids to leave out.
    """
    with postgres.transaction("pulse_pipeline") as connection:
        return postgres.select(connection, Made, BY_HAND, [since - OVERLAP, list(reported), limit])
