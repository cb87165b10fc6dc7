"""Due days: days that have changed, or whose rollup's definition has changed, since they were computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from pulse_pipelines.curated.daily import DAILY
from pulse_pipelines.curated.rollup import Rollup
from pulse_pipelines.curated.rollups import BUILT_IN, of_dataset
from pulse_pipelines.curated.sqlfile import TeamRollup
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables import dataset_rows
from pulse_resources import postgres
from pulse_resources.settings import load_settings

JOB = "curate"
"""Job name of failures of this work."""

# Days changed after `since`, all days of datasets that moved to another schema after it, and failed days, no
# matter when they changed.
CHANGED = """
WITH suspects AS (
    SELECT DISTINCT tenant_id, dataset_id, day FROM landings WHERE landed_at > %(since)s
    UNION
    SELECT DISTINCT l.tenant_id, l.dataset_id, l.day FROM landings l
    JOIN dataset_versions v USING (dataset_id) WHERE v.since > %(since)s
    UNION
    SELECT l.tenant_id, l.dataset_id, l.day FROM landings l
    JOIN failures f USING (tenant_id, dataset_id) WHERE f.job = %(job)s AND coalesce(f.day, l.day) = l.day
)
SELECT c.tenant_id, t.slug, c.dataset_id, c.day, l.changed_at, s.states,
    (SELECT min(n.landed_at) FROM landings n
     WHERE (n.tenant_id, n.dataset_id, n.day) = (c.tenant_id, c.dataset_id, c.day)
         AND n.landed_at > coalesce(s.landed_at, '-infinity')),
    f.failures, f.backing_off
FROM suspects c JOIN pdm_datasets d USING (dataset_id) JOIN pdm_tenants t ON t.tenant_id = c.tenant_id
CROSS JOIN LATERAL (
    SELECT max(landed_at) AS changed_at FROM landings l
    WHERE (l.tenant_id, l.dataset_id, l.day) = (c.tenant_id, c.dataset_id, c.day)) l
CROSS JOIN LATERAL (
    SELECT min(landed_at) AS landed_at, json_object_agg(rollup, json_build_array(
        definition, landed_at >= l.changed_at)) AS states
    FROM summaries s
    WHERE s.dataset_id = c.dataset_id AND s.day = c.day AND s.rollup = ANY(%(rollups)s)) s
CROSS JOIN LATERAL (
    SELECT coalesce(max(count), 0) AS failures, coalesce(max(retry_at) > now(), false) AS backing_off
    FROM failures f
    WHERE f.dataset_id = c.dataset_id AND f.job = %(job)s AND coalesce(f.day, c.day) = c.day) f
ORDER BY f.failures, l.changed_at DESC
"""


@dataclass(frozen=True)
class Due:
    """A day of a tenant's dataset, and the rollups to compute for it."""

    tenant: Tenant
    dataset: Dataset
    day: date
    rollups: tuple[Rollup, ...]
    changed_at: datetime
    """The day's last change."""
    waiting_since: datetime
    """Time of the first change that is not computed yet."""
    ready: bool
    """Whether it has been quiet, or has waited, for long enough, and is not backing off."""
    failures: int = 0
    """Number of consecutive failures."""
    backing_off: bool = False
    """Whether its back-off after a failure has not ended."""


@dataclass(frozen=True)
class DueDays:
    at: datetime
    """Time of the query, by Postgres' clock."""
    days: tuple[Due, ...]
    """The latest changed first; days that failed come after all others."""


def due_days(team: Sequence[TeamRollup], since: datetime) -> DueDays:
    """Find the days to compute; those that are not `ready` should wait.

    Args:
        team: the rollups of the teams' files.
        since: days unchanged after this, of datasets that have not moved to another schema after it, are
            assumed to be computed.
    """
    settings = load_settings().curated
    names = [*BUILT_IN, *(rollup.name for rollup in team)]
    with postgres.transaction("pulse_pipeline") as connection:
        (now,) = connection.execute("SELECT now()").fetchall()[0]
        rows = connection.execute(CHANGED, {"since": since, "rollups": names, "job": JOB}).fetchall()
        ids = list({row[2] for row in rows})
        datasets = {d.dataset_id: d for d in dataset_rows.read(connection, "d.dataset_id = ANY(%s)", [ids])}
    due = []
    for tenant_id, slug, dataset_id, day, changed_at, states, waiting, failures, backing_off in rows:
        if dataset_id not in datasets:  # deleted just now
            continue
        missing = _missing(datasets[dataset_id], team, states or {})
        if missing:
            quiet = (now - changed_at).total_seconds() >= settings.quiet_seconds
            since_then = waiting or changed_at
            waited = (now - since_then).total_seconds() >= settings.max_wait_seconds
            tenant = Tenant(tenant_id, slug)
            ready = (quiet or waited) and not backing_off
            common = (tenant, datasets[dataset_id], day, missing, changed_at, since_then)
            due.append(Due(*common, ready, failures, backing_off))
    return DueDays(now, tuple(due))


def _missing(dataset: Dataset, team: Sequence[TeamRollup], states: Mapping[str, Any]) -> tuple[Rollup, ...]:
    try:
        rollups = of_dataset(dataset, team)
        return tuple(r for r in rollups if states.get(r.name) != [r.definition(dataset), True])
    except Exception:  # the schema cannot be read: the run that computes the day reports the error
        return (DAILY,)


def of_day(tenant: Tenant, dataset: Dataset, day: date, rollup: Rollup) -> Due:
    """A due day made on request, whether or not the day has changed."""
    now = datetime.now(UTC)
    return Due(tenant, dataset, day, (rollup,), now, now, ready=True)
