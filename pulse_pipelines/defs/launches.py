"""Launches: what became of a run that a sensor asked for, to begin an attempt that has not begun."""

import time

import dagster as dg

LAUNCH_TIMEOUT_S = 120.0
"""A run that has not begun its attempt this long after it was launched counts as vanished."""
_ENDED = {dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.SUCCESS}


def vanished(instance: dg.DagsterInstance, run_key: str) -> dg.DagsterRunStatus | None:
    """The status of the run with this key, which is not going to begin its attempt any more.

    None: it may still begin, or there is no such run yet.
    """
    records = instance.get_run_records(dg.RunsFilter(tags={"dagster/run_key": run_key}), limit=1)
    if not records:
        return None
    status, launched = records[0].dagster_run.status, records[0].start_time
    late = launched is not None and time.time() - launched > LAUNCH_TIMEOUT_S
    return status if status in _ENDED or late else None
