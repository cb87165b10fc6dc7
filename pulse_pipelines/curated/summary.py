"""Summaries served from Postgres: the rows of rollups, read in the tenant's own session."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pulse_pipelines.curated.sqlfile import BUILT_IN
from pulse_pipelines.domain import json_values
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres
from pulse_resources.errors import NotFound, UserError

MAX_DAYS = 400
SHOWN_DAYS = 7
"""Days up to today that are returned by default."""

# Every day of the range with events or a summary, and the last change of its events.
DAYS = """
SELECT r.day, l.changed_at, s.landed_at, s.snapshot_id, s.computed_at, s.error, s.grain, s.rows::text
FROM (SELECT %(first)s::date + n AS day FROM generate_series(0, %(last)s::date - %(first)s::date) n) r
CROSS JOIN LATERAL (
    SELECT max(landed_at) AS changed_at FROM landings l
    WHERE (l.tenant_id, l.dataset_id, l.day) = (%(tenant)s, %(dataset)s, r.day)) l
LEFT JOIN summaries s ON (s.dataset_id, s.rollup, s.day) = (%(dataset)s, %(rollup)s, r.day)
WHERE l.changed_at IS NOT NULL OR s.day IS NOT NULL
ORDER BY r.day
"""
DATASET = "SELECT dataset_id FROM pdm_datasets WHERE slug = %s"
ROLLUPS = "SELECT DISTINCT rollup FROM summaries WHERE dataset_id = %s ORDER BY rollup"


@dataclass(frozen=True)
class DaySummary:
    day: date
    rows: list[dict[str, Any]]
    """Grain and measures, with all digits; empty if the day is not computed yet, or has no rows."""
    computed_at: datetime | None
    snapshot_id: int | None
    """The snapshot of the dataset's table that the rows were computed from."""
    changed_since: bool
    """Whether the day's events have changed since; it is then computed again automatically."""
    error: str | None
    """Why the last change could not be computed (by a team's rollup); the rows are of an earlier state."""


@dataclass(frozen=True)
class Summary:
    dataset: str
    rollup: str
    first: date
    last: date
    grain: list[str]
    days: list[DaySummary]


def summary(
    tenant: Tenant, slug: str, rollup: str = BUILT_IN[0], first: date | None = None, last: date | None = None
) -> Summary:
    """Read a rollup of the days from `first` to `last`, both included; the last seven by default.

    Raises:
        NotFound: the tenant has no such dataset, or this rollup was never computed for it.
        UserError: the range is empty or longer than `MAX_DAYS`.
    """
    last = last or datetime.now(UTC).date()
    first = first or last - min(timedelta(SHOWN_DAYS - 1), last - date.min)
    if last < first:
        raise UserError("the last day is before the first", fix="Swap `from` and `to`")
    if (last - first).days >= MAX_DAYS:
        raise UserError(f"the range has more than {MAX_DAYS} days", fix="Ask for fewer days")
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        dataset_row = connection.execute(DATASET, [slug]).fetchone()
        if dataset_row is None:
            raise NotFound("no such dataset", tenant=tenant.slug, dataset=slug)
        values = {"tenant": tenant.tenant_id, "dataset": dataset_row[0], "rollup": rollup}
        rows = connection.execute(DAYS, values | {"first": first, "last": last}).fetchall()
        if rollup != BUILT_IN[0] and all(row[2] is None for row in rows):
            computed = [name for (name,) in connection.execute(ROLLUPS, [dataset_row[0]])]
            if rollup not in computed:
                offer = f"It has: {', '.join(computed)}" if computed else "It has none yet"
                raise NotFound(
                    "this rollup has not been computed for the dataset",
                    fix=f"{offer}. A rollup is computed about a minute after events have landed",
                    tenant=tenant.slug,
                    dataset=slug,
                    rollup=rollup,
                )
    days = [
        DaySummary(
            day,
            [] if content is None else json_values.stored(content),
            computed_at,
            snapshot_id,
            error is not None or computed_at is None or (changed_at is not None and changed_at > landed_at),
            error,
        )
        for day, changed_at, landed_at, snapshot_id, computed_at, error, _, content in rows
    ]
    grain: list[str] = next((row[6] for row in rows if row[6]), [])
    return Summary(slug, rollup, first, last, grain, days)
