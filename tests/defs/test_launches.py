"""Runs that sensors launched, in a Dagster instance of its own."""

from types import SimpleNamespace

import dagster as dg
import pytest

from pulse_pipelines.defs import launches
from pulse_pipelines.runtime import run_processes


@dg.job
def waiting() -> None:
    """A job that is never executed here."""


def test_a_later_attempt_has_longer_to_begin_and_a_run_with_a_process_much_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_processes, "_sources", [])
    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(waiting, tags={"dagster/run_key": "batch:1"})
        assert launches.vanished(instance, "batch:2", 2) is None, "there is no such run yet"
        instance.report_dagster_event(
            dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, run.job_name), run.run_id
        )
        (record,) = instance.get_run_records()
        start_time = record.start_time
        assert start_time is not None

        def is_abandoned(attempt: int, after: float) -> bool:
            monkeypatch.setattr(launches, "time", SimpleNamespace(time=lambda: start_time + after))
            return launches.vanished(instance, "batch:1", attempt) is dg.DagsterRunStatus.STARTED

        assert [is_abandoned(1, seconds) for seconds in (119, 121)] == [False, True]
        assert [is_abandoned(3, seconds) for seconds in (121, 359, 361)] == [False, False, True]
        assert [is_abandoned(50, seconds) for seconds in (599, 601)] == [False, True]
        run_processes.tell(lambda: {run.run_id})
        assert [is_abandoned(1, seconds) for seconds in (121, 1199, 1201)] == [False, False, True]
        run_processes.tell(lambda: {"another"})
        assert is_abandoned(1, 121)
        instance.report_run_failed(run)
        monkeypatch.undo()
        assert launches.vanished(instance, "batch:1", 3) is dg.DagsterRunStatus.FAILURE
