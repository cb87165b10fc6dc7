"""Curated sensor: launches runs for days that changed, also by late events."""

import hashlib
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg

from pulse_pipelines.curated import rollups
from pulse_pipelines.curated.due import due_days
from pulse_pipelines.curated.sqlfile import TeamRollup
from pulse_pipelines.defs.curated.job import curate, unusable
from pulse_pipelines.defs.launches import UNFINISHED, tenant_tags
from pulse_resources.settings import load_settings

MARGIN = timedelta(minutes=15)
"""A commit may become visible this long after its timestamp."""


@dg.sensor(
    job=curate,
    minimum_interval_seconds=15,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Compares what landed with what was computed from it. A day is due a minute after its last "
    "change, or ten after the first that was not computed (settings); all due days of all tenants go into "
    "one run. A rollup's file that was added or changed makes all of its days due. Considers recent "
    "changes, and once a day everything.",
)
def curated_due(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    team = rollups.team_rollups()
    for problem in unusable(team):
        context.log.error("%s", problem)
    if reason := _not_now(context.instance):
        return dg.SkipReason(reason)
    fingerprint, cursor = _fingerprint(team), json.loads(context.cursor or "{}")
    unchanged = cursor.get("rollups") == fingerprint
    since = datetime.fromisoformat(cursor["since"]) if unchanged else datetime.min.replace(tzinfo=UTC)
    due = due_days(team, since)
    # Everything that changed before this is computed; failed days are found however old their change is.
    settled = min([due.at, *(day.waiting_since for day in due.days if not day.failures)]) - MARGIN
    ready = [day for day in due.days if day.ready]
    request = dg.RunRequest(
        run_config={"ops": {"compute_what_is_due": {"config": {"since": since.isoformat()}}}},
        tags=tenant_tags({day.tenant.slug for day in ready}),
    )
    return dg.SensorResult(
        run_requests=[request] if ready else [],
        skip_reason=None if ready else f"nothing is due; {len(due.days)} days wait until they are quiet",
        cursor=json.dumps({"rollups": fingerprint, "since": max(settled, since).isoformat()}),
    )


def _fingerprint(team: Sequence[TeamRollup]) -> str:
    """Fingerprint of whatever makes days due although their rows are unchanged, with the current day."""
    gap = load_settings().curated.session_gap_minutes
    content = [(r.source, r.text, r.problem) for r in team], gap, str(datetime.now(UTC).date())
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def _not_now(instance: dg.DagsterInstance) -> str | None:
    """Reason not to launch: a run is active, or the last one has just failed; None: launch."""
    records = instance.get_run_records(dg.RunsFilter(job_name=curate.name), limit=1)
    if not records:
        return None
    status, ended = records[0].dagster_run.status, records[0].end_time
    if status in UNFINISHED:
        return "the run before it has not ended"
    wait = load_settings().curated.retry_seconds
    if status is dg.DagsterRunStatus.FAILURE and ended is not None and time.time() - ended < wait:
        return f"the last run failed: the next one begins {wait:g} s after it"
    return None
