"""The tables of a tenant's rollups: their columns, and how far behind their datasets they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pulse_pipelines.domain.tenant import CURATED, Tenant
from pulse_resources import postgres

# A row of each rollup that has one: it names the columns, and says that there is a table.
ROWS = """
SELECT r.slug, r.rollup, found.row
FROM unnest(%s::text[], %s::text[]) AS r (slug, rollup) JOIN pdm_datasets d USING (slug)
CROSS JOIN LATERAL (
    SELECT s.rows -> 0 AS row FROM summaries s
    WHERE (s.dataset_id, s.rollup) = (d.dataset_id, r.rollup) AND json_array_length(s.rows) > 0
    ORDER BY s.day DESC LIMIT 1) found
"""
# Days with events, those of them that are computed, and those that have changed since or could not be.
STATES = """
SELECT r.rollup, count(s.computed_at), count(*) FILTER (
        WHERE s.day IS NULL OR s.error IS NOT NULL OR s.landed_at < l.changed_at),
    max(s.landed_at) FILTER (WHERE s.error IS NULL), max(s.computed_at)
FROM pdm_datasets d CROSS JOIN unnest(%(rollups)s::text[]) AS r (rollup)
CROSS JOIN LATERAL (
    SELECT day, max(landed_at) AS changed_at FROM landings
    WHERE (tenant_id, dataset_id) = (%(tenant)s, d.dataset_id) GROUP BY day) l
LEFT JOIN summaries s ON (s.dataset_id, s.rollup, s.day) = (d.dataset_id, r.rollup, l.day)
WHERE d.slug = %(slug)s GROUP BY r.rollup
"""
LANDED = """
SELECT t.slug || %s || t.rollup, (
    SELECT max(s.landed_at) FROM summaries s JOIN pdm_datasets d USING (dataset_id)
    WHERE (d.slug, s.rollup) = (t.slug, t.rollup) AND s.error IS NULL)
FROM unnest(%s::text[], %s::text[]) AS t (slug, rollup)
"""


@dataclass(frozen=True)
class RollupState:
    """How far a rollup of a dataset has been computed."""

    days: int = 0
    """Days that are in its table."""
    days_behind: int = 0
    """Days whose events it does not have, or not all of them: they are computed again automatically."""
    events_landed_last: datetime | None = None
    """When the last events landed that it was computed from."""
    computed_at: datetime | None = None


def columns(
    tenant: Tenant, rollups_of_slugs: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], tuple[str, ...]]:
    """Columns of the tables of rollups, by slug and rollup; a rollup without rows has no table yet.

    Args:
        rollups_of_slugs: slugs and rollups.
    """
    slugs, rollups = [slug for slug, _ in rollups_of_slugs], [rollup for _, rollup in rollups_of_slugs]
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        rows = connection.execute(ROWS, [slugs, rollups]).fetchall()
    return {(slug, rollup): ("day", *row) for slug, rollup, row in rows}


def states(tenant: Tenant, slug: str, rollups: Sequence[str]) -> Mapping[str, RollupState]:
    """How far rollups of a dataset have been computed, by rollup."""
    values = {"rollups": list(rollups), "tenant": tenant.tenant_id, "slug": slug}
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        rows = connection.execute(STATES, values).fetchall()
    return dict.fromkeys(rollups, RollupState()) | {name: RollupState(*state) for name, *state in rows}


def landed(tenant: Tenant, names: Sequence[str]) -> dict[str, datetime | None]:
    """When the last events landed that tables of rollups were computed from, by the tables' names."""
    parts = [name.rpartition(CURATED) for name in names]
    values = [CURATED, [slug for slug, _, _ in parts], [rollup for _, _, rollup in parts]]
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return dict(connection.execute(LANDED, values).fetchall())
