"""Dagster's daemon and a clock that is set back: it begins anew, and no sensor waits for a tick to pass."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dagster._core.scheduler.instigation import SensorInstigatorData
from dagster._daemon import sensor

from chaos.clock import Clock
from chaos.waiting import PATIENCE_S
from pulse_pipelines.runtime import daemon
from pulse_resources.settings import IngestSettings


@pytest.mark.parametrize(("ago", "due"), [(-3600, True), (60, False)])
def test_a_tick_in_the_future_is_ignored(ago: float, due: bool) -> None:
    state: Any = SimpleNamespace(
        instigator_data=SensorInstigatorData(last_tick_start_timestamp=time.time() - ago)
    )
    elapsed = daemon.elapsed(state)
    assert (elapsed is None) is due
    assert due or elapsed == pytest.approx(ago, abs=5)


@pytest.mark.parametrize(
    ("interval", "ago", "due"), [(5, 4.6, True), (5, 2, False), (15, 14.5, True), (15, 12, False)]
)
def test_a_sensor_that_was_late_in_one_pass_is_due_in_the_next(
    interval: float, ago: float, due: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes are five seconds apart; when within a pass a sensor is evaluated varies by tenths."""
    monkeypatch.setattr(sensor, "get_elapsed", daemon.elapsed)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    state: Any = SimpleNamespace(
        instigator_data=SensorInstigatorData(last_tick_start_timestamp=time.time() - ago)
    )
    remote: Any = SimpleNamespace(min_interval_seconds=interval)
    assert sensor.is_under_min_interval(state, remote) is not due


@pytest.mark.parametrize(("flush", "interval"), [(30.0, 2), (600.0, 2), (12.0, 2), (5.0, 1), (0.5, 1)])
def test_sensors_tick_more_often_the_less_events_may_wait(flush: float, interval: int) -> None:
    assert IngestSettings(flush_seconds=flush).sensor_seconds == interval


@pytest.mark.stack
def test_the_daemon_ends_when_the_clock_is_set_back(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    (tmp_path / "workspace.yaml").write_text("load_from: []\n")
    clock, log = Clock.made(), tmp_path / "log"
    try:
        with (
            log.open("wb") as file,
            subprocess.Popen(
                [sys.executable, "-m", daemon.__name__, "-w", str(tmp_path / "workspace.yaml")],
                env=os.environ | clock.environment | {"DAGSTER_HOME": str(tmp_path)},
                stdout=file,
                stderr=file,
            ) as process,
        ):
            try:
                _until_it_beats(log)
                with clock.wrong_by(1):
                    time.sleep(3)
                    assert process.poll() is None, "a clock that is set forward is no reason to end"
                assert process.wait(PATIENCE_S) == 1
            finally:
                process.kill()
    finally:
        clock.remove()
    assert "the clock was set back by 36" in log.read_text().replace("3599", "3600")


def _until_it_beats(log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while "Instance is configured with the following daemons" not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.5)
    time.sleep(2)
