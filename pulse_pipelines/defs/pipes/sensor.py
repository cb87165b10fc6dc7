"""Sensor that launches pipes: by their schedule, and on request."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg

from pulse_pipelines import pipes
from pulse_pipelines.defs.launches import ENDED, FAILED, UNFINISHED, tenant_tags
from pulse_pipelines.defs.pipes.assets import JOB, TENANTS, pipe_key
from pulse_pipelines.defs.pipes.places import TENANT, WAY, place_tags, way_of
from pulse_pipelines.domain.pipes import Mode
from pulse_pipelines.pipes.watch import ALL_S, ANSWER_S, watch
from pulse_resources.process.child_process import iterate_in_child
from pulse_resources.process.faults import fail_point
from pulse_resources.settings import load_settings

PIPE = "pulse/pipe"
RETRY_S = 60.0
"""Delay after a failed run, in seconds."""
QUEUED, QUEUED_OF_TENANT = 100, 4
"""Unfinished runs in one direction, and of a tenant in it, beyond which due pipes wait: one run of a tenant
proceeds at a time, and each that is queued costs Dagster's daemon time."""


@dg.sensor(
    job_name=JOB,
    minimum_interval_seconds=load_settings().ingest.sensor_seconds,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Launches due pipes: every so many seconds (`every`), after the rows of the previous run "
    "have settled, and on request. Adds their tenants as partitions.",
)
def pipes_due(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    loaded = context.repository_def.asset_graph.get_all_asset_keys() if context.repository_def else set()
    requests, tenants = [], set()
    # First: a run that ends in between is no longer active, and its pipe is no longer due.
    unfinished = context.instance.get_runs(dg.RunsFilter(job_name=JOB, statuses=UNFINISHED))
    fail_point("pipes.looked")
    busy = {run.tags.get(PIPE) for run in unfinished} | _recently_failed(context.instance)
    queued = Counter(run.tags.get(tag) for run in unfinished for tag in (WAY, TENANT))
    for pipe in pipes.due():
        owner = pipe.tenant.slug
        tags, places = {PIPE: f"{owner}/{pipe.name}"}, place_tags(owner, way_of(pipe.definition))
        if pipe_key(pipe.name) not in loaded:  # for a new name the code location is reloaded first
            continue
        if tags[PIPE] in busy or queued[places[WAY]] >= QUEUED or queued[places[TENANT]] >= QUEUED_OF_TENANT:
            continue
        queued.update(places.values())
        tenants.add(owner)
        requests.append(
            dg.RunRequest(
                asset_selection=[pipe_key(pipe.name)],
                partition_key=owner,
                tags=tags | tenant_tags([owner]) | dict(places),
            )
        )
    existing = set(context.instance.get_dynamic_partitions(str(TENANTS.name)))
    if not requests:
        return dg.SkipReason("no pipe is due")
    added = sorted(tenants - existing)
    return dg.SensorResult(
        run_requests=requests, dynamic_partitions_requests=[TENANTS.build_add_request(added)] if added else []
    )


@dg.sensor(
    job_name=JOB,
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Checks the sources whose changes are captured, between runs: whether each slot can "
    "continue, and how much log the source keeps for it. Launches nothing; problems become alerts.",
)
def pipes_watched(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    all_pipes = pipes.list_all_pipes()
    errors = _watch_errors(all_pipes)
    # Without such a pipe the watch connects to no source, and needs no process of its own.
    if any(pipe.definition.other_end.mode is Mode.CHANGES for pipe in all_pipes):
        errors = iterate_in_child(_watch_errors, all_pipes, seconds=ALL_S + ANSWER_S + 2)
    wrong = 0
    for tenant, pipe, error in errors:
        wrong += 1
        context.log.warning("pipe %s of tenant %s: %s", pipe, tenant, error)
    return dg.SkipReason(f"{wrong} pipes cannot continue: see the log" if wrong else "all pipes can continue")


def _watch_errors(all_pipes: Sequence[pipes.Pipe]) -> Iterator[tuple[str, str, str]]:
    """Watch pipes; yields those that cannot continue: tenant, pipe, error."""
    for pipe, error in watch(all_pipes):
        if error is not None:
            yield pipe.tenant.slug, pipe.name, error


def _recently_failed(instance: dg.DagsterInstance) -> set[str | None]:
    """Pipes, as tags name them, whose last run failed less than `RETRY_S` ago."""
    since = datetime.now(UTC) - timedelta(seconds=RETRY_S)
    ended = dg.RunsFilter(job_name=JOB, statuses=list(ENDED), updated_after=since)
    last = {
        record.dagster_run.tags.get(PIPE): record
        for record in instance.get_run_records(ended, ascending=True)
    }
    return {
        pipe
        for pipe, record in last.items()
        if record.dagster_run.status in FAILED and (record.end_time or 0) > since.timestamp()
    }
