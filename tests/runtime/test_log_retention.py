"""Logs of runs and ticks do not fill the disk for ever."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.compute_log_manager import ComputeIOType
from dagster._core.storage.local_compute_log_manager import LocalComputeLogManager

from pulse_pipelines.runtime.log_retention import remove_old_logs
from pulse_resources.settings import Settings

DAY_S = 86_400


@dg.op
def talk() -> None:
    print("said by a run")


@dg.job(executor_def=dg.in_process_executor)
def talking() -> None:
    talk()


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


def logs(instance: dg.DagsterInstance) -> LocalComputeLogManager:
    manager = instance.compute_log_manager
    assert isinstance(manager, LocalComputeLogManager)
    return manager


def ran(instance: dg.DagsterInstance, days_ago: float) -> Sequence[str]:
    """The key of the log that a run left behind."""
    run = talking.execute_in_process(instance=instance).run_id
    (key,) = logs(instance).get_log_keys_for_log_key_prefix([run, "compute_logs"], ComputeIOType.STDOUT)
    assert b"said by a run" in (logs(instance).get_log_data(key).stdout or b"")
    age(instance, key, days_ago)
    return key


def age(instance: dg.DagsterInstance, key: Sequence[str], days_ago: float) -> None:
    at = time.time() - days_ago * DAY_S
    for path in Path(logs(instance).get_captured_local_path(key, "out")).parent.glob(f"{key[-1]}.*"):
        os.utime(path, (at, at))


def test_old_logs_are_removed(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    """Those that are written to stay, and so does the record of the run."""
    days = Settings().dagster.log_days
    old, young, written = ran(instance, days + 1), ran(instance, days - 1), ran(instance, days + 1)
    Path(logs(instance).get_captured_local_path(written, "err")).touch()
    ticks = [("__repository__", "tide", number) for number in ("1", "2")]
    for tick in ticks:
        with logs(instance).open_log_stream(tick, ComputeIOType.STDERR) as stream:
            assert stream
            stream.write("said by a tick")
    age(instance, ticks[0], days + 1)
    beside = tmp_path / "storage" / "a" / "b" / "c"
    beside.parent.mkdir(parents=True)
    beside.touch()
    os.utime(beside, (0, 0))

    done = remove_old_logs.execute_in_process(instance=instance)

    (output,) = instance.all_logs(done.run_id, of_type=dg.DagsterEventType.STEP_OUTPUT)
    assert output.get_dagster_event().step_output_data.metadata["logs_removed"].value == 2
    shown = {key: logs(instance).get_log_data(key) for key in map(tuple, (old, young, written, *ticks))}
    assert [bool(data.stdout or data.stderr) for data in shown.values()] == [False, True, True, False, True]
    assert not (tmp_path / "storage" / old[0]).exists(), "no empty folder for each run that ever was"
    assert beside.exists(), "a file that is not a log stays"
    assert instance.get_run_by_id(old[0])
