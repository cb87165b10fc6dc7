"""Dagster's daemon, made robust against a clock that is set back, with shorter sensor intervals.

Dagster waits by the wall clock. After a clock that was an hour fast is corrected, the loops that dequeue runs
and evaluate sensors wait for an hour, and so does each sensor, whose last tick lies in the future. This
daemon exits when the clock is set back, so that its supervisor restarts it; and a sensor whose last tick lies
in the future is due.

Dagster evaluates sensors at most every five seconds, however short their interval; this daemon makes a pass
as often as `ingest_lag` requires. A sensor of five seconds that was evaluated late in one pass was not due at
the next: half of its ticks came after ten. So one that would be due before half of the next pass is due now.
"""

import os
import sys
import threading
import time

from dagster._core.scheduler.instigation import InstigatorState
from dagster._daemon import sensor
from dagster._daemon.cli import create_dagster_daemon_cli

from pulse_pipelines.runtime.parts import keep_loaded_parts
from pulse_resources.settings import load_settings

CHECK_INTERVAL_S = 1.0
BACK_S = 2.0
"""Seconds the clock must be set back; smaller corrections are normal clock discipline."""

_elapsed = sensor.get_elapsed


def main(arguments: list[str]) -> None:
    """Run until a signal; the arguments are those of `dagster-daemon run`."""
    keep_loaded_parts()
    sensor.get_elapsed = elapsed
    sensor.MIN_INTERVAL_LOOP_TIME = load_settings().ingest.sensor_seconds
    threading.Thread(target=_watch, name="clock", daemon=True).start()
    dagster = create_dagster_daemon_cli()
    dagster(["run", *arguments], prog_name="dagster-daemon")


def elapsed(state: InstigatorState) -> float | None:
    """Seconds since the last tick, and half a pass; None when there was none or it lies in the future."""
    seconds = _elapsed(state)
    return None if seconds is None or seconds < 0 else seconds + sensor.MIN_INTERVAL_LOOP_TIME / 2


def _watch() -> None:
    ahead = time.time() - time.monotonic()
    while True:
        time.sleep(CHECK_INTERVAL_S)
        before, ahead = ahead, time.time() - time.monotonic()
        if ahead < before - BACK_S:
            print(f"the clock was set back by {before - ahead:.0f} s: starting again", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)  # a regular exit would wait for threads that may sleep just as long


if __name__ == "__main__":
    main(sys.argv[1:])
