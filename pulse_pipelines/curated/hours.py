"""Events of the last 24 hours by hour, of many datasets: read from the summaries `daily` in Postgres."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any

import orjson

from pulse_pipelines.curated.daily import DAILY
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres

HOURS = 24
"""Hours of an answer, the present one included."""

# Per dataset and day: the last change of its events, and the counts by hour.
DAYS = """
SELECT d.slug, r.day, l.changed_at, s.landed_at, s.computed_at, s.error, s.rows::text
FROM pdm_datasets d CROSS JOIN unnest(%(days)s::date[]) AS r(day)
CROSS JOIN LATERAL (
    SELECT max(landed_at) AS changed_at FROM landings l
    WHERE (l.tenant_id, l.dataset_id, l.day) = (%(tenant)s, d.dataset_id, r.day)) l
LEFT JOIN summaries s ON (s.dataset_id, s.rollup, s.day) = (d.dataset_id, %(rollup)s, r.day)
WHERE d.tenant_id = %(tenant)s AND d.slug = ANY(%(slugs)s) AND d.kind = 'events'
"""


@dataclass(frozen=True)
class HourCount:
    start: datetime
    events: int | None
    """Events with a timestamp in this hour; None: its day is not computed yet."""


@dataclass(frozen=True)
class DatasetHours:
    dataset: str
    hours: tuple[HourCount, ...]
    """The earliest first; the last is the present hour."""
    computed_at: datetime | None
    """When the older of its days was computed; None: none is."""
    changed_since: bool
    """Whether events of these days landed, or were removed, since."""


def last_hours(tenant: Tenant, slugs: Sequence[str], now: datetime) -> list[DatasetHours]:
    """Events by hour of the 24 hours up to the present one, of those slugs that are datasets of events.

    The hour is that of the events' timestamps, in UTC.
    """
    last = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    starts = [last - timedelta(hours=back) for back in reversed(range(HOURS))]
    days = sorted({start.date() for start in starts})
    values = {"tenant": tenant.tenant_id, "slugs": list(slugs), "days": days, "rollup": DAILY.name}
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        rows = connection.execute(DAYS, values).fetchall()
    of_dataset: dict[str, list[Any]] = {}
    for slug, *columns in rows:
        of_dataset.setdefault(slug, []).append(columns)
    return [_hours(slug, of_dataset[slug], starts) for slug in slugs if slug in of_dataset]


def _hours(slug: str, days: Sequence[Any], starts: Sequence[datetime]) -> DatasetHours:
    counts: dict[datetime, int] = {}
    unknown = set()
    for day, changed_at, _, computed_at, _, content in days:
        midnight = datetime.combine(day, time(), UTC)
        if computed_at is None and changed_at is not None:
            unknown.add(day)
        for row in orjson.loads(content or "[]"):
            for entry in row["by_hour"]:
                counts[midnight + timedelta(hours=entry["hour"])] = entry["events"]
    hours = (HourCount(at, None if at.date() in unknown else counts.get(at, 0)) for at in starts)
    computed = [computed_at for _, _, _, computed_at, _, _ in days if computed_at is not None]
    stale = any(
        changed_at is not None and (computed_at is None or error is not None or changed_at > landed_at)
        for _, changed_at, landed_at, computed_at, error, _ in days
    )
    return DatasetHours(slug, tuple(hours), min(computed, default=None), stale)
