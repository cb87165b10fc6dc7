"""Dagster's daemon, which gets over a clock that is set back, and looks as often as a sensor asks for.

Dagster waits by the wall clock. When that was an hour fast and is set right, the loops that dequeue runs and
evaluate sensors wait for an hour, and so does each sensor, whose last tick lies in the future. This daemon
ends when the clock is set back, so that whoever keeps it up starts it anew; and a sensor whose last tick lies
in the future is due.

Dagster looks every five seconds, however short the interval of a sensor is; here, as often as `ingest_lag`
wants to be asked.
"""

import os
import sys
import threading
import time

from dagster._core.scheduler.instigation import InstigatorState
from dagster._daemon import sensor
from dagster._daemon.cli import create_dagster_daemon_cli

from pulse_resources.settings import load_settings

LOOK_S = 1.0
BACK_S = 2.0
"""How far back the clock must be set; less is the daily work of who keeps clocks right."""

_elapsed = sensor.get_elapsed


def main(arguments: list[str]) -> None:
    """Run until a signal; the arguments are those of `dagster-daemon run`."""
    sensor.get_elapsed = elapsed
    sensor.MIN_INTERVAL_LOOP_TIME = load_settings().ingest.look_seconds
    threading.Thread(target=_watch, name="clock", daemon=True).start()
    dagster = create_dagster_daemon_cli()
    dagster(["run", *arguments], prog_name="dagster-daemon")


def elapsed(state: InstigatorState) -> float | None:
    """Seconds since the last tick, None when there was none or it lies in the future."""
    seconds = _elapsed(state)
    return None if seconds is not None and seconds < 0 else seconds


def _watch() -> None:
    ahead = time.time() - time.monotonic()
    while True:
        time.sleep(LOOK_S)
        before, ahead = ahead, time.time() - time.monotonic()
        if ahead < before - BACK_S:
            print(f"the clock was set back by {before - ahead:.0f} s: starting anew", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)  # the threads that it would wait for may sleep for as long


if __name__ == "__main__":
    main(sys.argv[1:])
