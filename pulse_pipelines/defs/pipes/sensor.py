"""Sensor that launches pipes: by their schedule, and on request."""

import time
from collections.abc import Mapping

import dagster as dg

from pulse_pipelines import pipes
from pulse_pipelines.defs.launches import UNFINISHED
from pulse_pipelines.defs.pipes.assets import JOB, TENANTS, pipe_key
from pulse_pipelines.defs.pipes.places import place_tags, way_of
from pulse_pipelines.defs.tags import tenant_tags
from pulse_pipelines.pipes.watch import watch
from pulse_resources.process.faults import fail_point
from pulse_resources.settings import load_settings

PIPE = "pulse/pipe"
RETRY_S = 60.0
"""Delay after a failed run, in seconds."""


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
    active = _active(context.instance)
    fail_point("pipes.looked")
    for pipe in pipes.due():
        owner = pipe.tenant.slug
        tags, way = {PIPE: f"{owner}/{pipe.name}"}, way_of(pipe.definition)
        if pipe_key(pipe.name) not in loaded:  # for a new name the code location is reloaded first
            continue
        if tags[PIPE] in active or _failed_recently(context.instance, tags):
            continue
        tenants.add(owner)
        requests.append(
            dg.RunRequest(
                asset_selection=[pipe_key(pipe.name)],
                partition_key=owner,
                tags=tags | tenant_tags([owner]) | dict(place_tags(owner, way)),
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
    wrong = 0
    for pipe, error in watch(pipes.list_all_pipes()):
        if error is not None:
            wrong += 1
            context.log.warning("pipe %s of tenant %s: %s", pipe.name, pipe.tenant.slug, error)
    return dg.SkipReason(f"{wrong} pipes cannot continue: see the log" if wrong else "all pipes can continue")


def _active(instance: dg.DagsterInstance) -> set[str]:
    """The pipes that have a run that is queued or under way, as tags name them."""
    runs = instance.get_runs(dg.RunsFilter(job_name=JOB, statuses=UNFINISHED))
    return {run.tags[PIPE] for run in runs if PIPE in run.tags}


def _failed_recently(instance: dg.DagsterInstance, tags: Mapping[str, str]) -> bool:
    records = instance.get_run_records(dg.RunsFilter(tags=tags), limit=1)
    if not records:
        return False
    status, ended = records[0].dagster_run.status, records[0].end_time
    failed = status in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
    return failed and ended is not None and time.time() - ended < RETRY_S
