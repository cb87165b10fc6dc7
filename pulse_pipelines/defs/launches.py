"""Launches: status of runs that sensors requested."""

import time

import dagster as dg

LAUNCH_TIMEOUT_S = 120.0
"""A run that has not begun its attempt this long after its launch counts as vanished."""
UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]
_ENDED = {dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.SUCCESS}


def unfinished(instance: dg.DagsterInstance, job: dg.JobDefinition) -> bool:
    """Whether a run of the job is queued or running."""
    return bool(instance.get_runs(dg.RunsFilter(job_name=job.name, statuses=UNFINISHED), limit=1))


def vanished(instance: dg.DagsterInstance, run_key: str) -> dg.DagsterRunStatus | None:
    """Status of the run with this key if it will not begin its attempt any more.

    None: it may still begin, or there is no such run yet.
    """
    records = instance.get_run_records(dg.RunsFilter(tags={"dagster/run_key": run_key}), limit=1)
    if not records:
        return None
    status, launched = records[0].dagster_run.status, records[0].start_time
    late = launched is not None and time.time() - launched > LAUNCH_TIMEOUT_S
    return status if status in _ENDED or late else None
