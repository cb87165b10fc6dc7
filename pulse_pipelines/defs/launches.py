"""Launches: status of runs that sensors requested, and tags by which the Runs page is filtered."""

import time
from collections.abc import Collection

import dagster as dg

from pulse_pipelines.runtime import run_processes

LAUNCH_TIMEOUT_S = 120.0
"""A run without a process that has not begun its first attempt this long after its launch has vanished."""
BOUND = 10
"""One that has a process has as many times longer: it is slow, unless it hangs; two are slower."""
PATIENCE = 5
"""A later attempt has as many times longer, up to this: runs are slow to begin on a machine that is too busy,
and giving all of them up leaves it as busy."""
UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]
FAILED = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
ENDED = (*FAILED, dg.DagsterRunStatus.SUCCESS)
NAMED = 3
"""Tenants of a run that get tags: all tags of a run should fit on one line in the UI."""


def unfinished(instance: dg.DagsterInstance, job: dg.JobDefinition) -> bool:
    """Whether a run of the job is queued or running."""
    return bool(instance.get_runs(dg.RunsFilter(job_name=job.name, statuses=UNFINISHED), limit=1))


def vanished(instance: dg.DagsterInstance, run_key: str, attempt: int) -> dg.DagsterRunStatus | None:
    """Status of the run with this key if it will no longer begin its attempt, the first or a later one.

    None: it may still begin, or there is no such run yet.
    """
    records = instance.get_run_records(dg.RunsFilter(tags={"dagster/run_key": run_key}), limit=1)
    if not records:
        return None
    status, launched = records[0].dagster_run.status, records[0].start_time
    patience = LAUNCH_TIMEOUT_S * min(attempt, PATIENCE)
    if run_processes.has_process(records[0].dagster_run.run_id):
        patience *= BOUND
    late = launched is not None and time.time() - launched > patience
    return status if status in ENDED or late else None


def tenant_tags(slugs: Collection[str]) -> dict[str, str]:
    """Tags of a run that touches these tenants; filter by `pulse.tenant/<slug>=yes`.

    A tag has one value, and a batch has many tenants: each is a key of its own. For more than `NAMED`, one
    tag gives their number and the first names. (`pulse/tenant` is another tag, of runs for one tenant alone:
    limits of concurrency count it, and batches never wait for those.)
    """
    if len(slugs) > NAMED:
        return {"pulse/tenants": f"{len(slugs)}: {', '.join(sorted(slugs)[:NAMED])}, ..."}
    return {f"pulse.tenant/{slug}": "yes" for slug in sorted(slugs)}
