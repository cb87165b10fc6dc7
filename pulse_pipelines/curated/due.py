"""Due: days that have changed since they were computed, or that another definition was computed for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from pulse_pipelines.curated.rollup import Rollup
from pulse_pipelines.curated.rollups import BUILT_IN, of_dataset
from pulse_pipelines.curated.sqlfile import TeamRollup
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.stages import datasets
from pulse_resources import postgres
from pulse_resources.settings import load_settings

# Days that changed after some moment, and all days of datasets that followed another schema after it.
CHANGED = """
WITH suspects AS (
    SELECT DISTINCT tenant_id, dataset_id, day FROM landings WHERE landed_at > %(since)s
    UNION
    SELECT DISTINCT l.tenant_id, l.dataset_id, l.day FROM landings l
    JOIN dataset_versions v USING (dataset_id) WHERE v.since > %(since)s
)
SELECT c.tenant_id, t.slug, c.dataset_id, c.day, l.changed_at, s.states,
    (SELECT min(n.landed_at) FROM landings n
     WHERE (n.tenant_id, n.dataset_id, n.day) = (c.tenant_id, c.dataset_id, c.day)
         AND n.landed_at > coalesce(s.landed_at, '-infinity'))
FROM suspects c JOIN pdm_datasets d USING (dataset_id) JOIN pdm_tenants t ON t.tenant_id = c.tenant_id
CROSS JOIN LATERAL (
    SELECT max(landed_at) AS changed_at FROM landings l
    WHERE (l.tenant_id, l.dataset_id, l.day) = (c.tenant_id, c.dataset_id, c.day)) l
CROSS JOIN LATERAL (
    SELECT min(landed_at) AS landed_at, json_object_agg(rollup, json_build_array(
        definition, landed_at >= l.changed_at)) AS states
    FROM summaries s
    WHERE s.dataset_id = c.dataset_id AND s.day = c.day AND s.rollup = ANY(%(rollups)s)) s
ORDER BY l.changed_at DESC
"""


@dataclass(frozen=True)
class Due:
    """A day of a tenant's dataset, and the rollups that are to be computed of it."""

    tenant: Tenant
    dataset: Dataset
    day: date
    rollups: tuple[Rollup, ...]
    changed_at: datetime
    """The day's last change."""
    waiting_since: datetime
    """The first change that was not computed."""
    ready: bool
    """It has been quiet, or has waited, for long enough."""


@dataclass(frozen=True)
class Survey:
    at: datetime
    """When it was made, by Postgres' clock."""
    days: tuple[Due, ...]
    """Those that changed last first."""


def survey(team: Sequence[TeamRollup], since: datetime) -> Survey:
    """What is to be computed; days that are not `ready` may wait.

    Args:
        team: the rollups of the teams' files.
        since: days that have not changed after this, of datasets that have not moved to another schema
            after it, are taken to be computed.
    """
    settings = load_settings().curated
    names = [*BUILT_IN, *(rollup.name for rollup in team)]
    with postgres.transaction("pulse_pipeline") as connection:
        (now,) = connection.execute("SELECT now()").fetchall()[0]
        rows = connection.execute(CHANGED, {"since": since, "rollups": names}).fetchall()
        ids = list({row[2] for row in rows})
        known = {d.dataset_id: d for d in datasets.read(connection, "d.dataset_id = ANY(%s)", [ids])}
    rollups = {dataset_id: of_dataset(dataset, team) for dataset_id, dataset in known.items()}
    found = []
    for tenant_id, slug, dataset_id, day, changed_at, states, waiting in rows:
        if dataset_id not in known:  # deleted just now
            continue
        left = _left(known[dataset_id], rollups[dataset_id], states or {})
        if left:
            quiet = (now - changed_at).total_seconds() >= settings.quiet_seconds
            since_then = waiting or changed_at
            waited = (now - since_then).total_seconds() >= settings.max_wait_seconds
            tenant = Tenant(tenant_id, slug)
            found.append(
                Due(tenant, known[dataset_id], day, left, changed_at, since_then, ready=quiet or waited)
            )
    return Survey(now, tuple(found))


def _left(dataset: Dataset, rollups: Sequence[Rollup], states: Mapping[str, Any]) -> tuple[Rollup, ...]:
    return tuple(r for r in rollups if states.get(r.name) != [r.definition(dataset), True])


def of_day(tenant: Tenant, dataset: Dataset, day: date, rollup: Rollup) -> Due:
    """A day of a rollup that somebody wants to be computed, whatever has changed."""
    now = datetime.now(UTC)
    return Due(tenant, dataset, day, (rollup,), now, now, ready=True)
