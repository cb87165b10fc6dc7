"""Supervisor: the detached process behind `pulse up`, which starts, restarts and stops the services.

Run as `python -m pulse_resources.local.supervisor [--services A,B] [--detach]`.

    SIGTERM, SIGINT   stop everything in reverse order, then exit
    SIGHUP            start what `stack.wanted` names and does not run yet

Exit code 1 if the stack could not start; `stack.json` says why.
"""

import argparse
import os
import signal
import sys
import threading
import time
from types import FrameType

from pulse_resources.home import pulse_home
from pulse_resources.local import dagster, logs, processes
from pulse_resources.local.layout import Layout
from pulse_resources.local.runner import Runner, wait_for_all
from pulse_resources.local.services import EVERYTHING, build
from pulse_resources.local.state import Board
from pulse_resources.settings import load_settings

_HOUSEKEEPING_S = 5.0


class Supervisor:
    """Owns one runner per service."""

    def __init__(self, layout: Layout, names: tuple[str, ...], definitions: str) -> None:
        me = processes.ProcessId.of(os.getpid())
        if me is None:
            raise RuntimeError("/proc does not show this process")
        self._layout, self._names, self._definitions = layout, names, definitions
        self._stop = threading.Event()
        self._grow = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_grow)
        self._board = Board(layout, me)  # others read the pid to signal there
        self._runners: dict[str, Runner] = {}
        self._dead: set[int] = set()
        self._housekeeping_at = time.monotonic()

    def run(self) -> int:
        processes.adopt_orphans()
        try:
            self._start_missing(self._names)
            while not self._stop.wait(0.2):
                if self._board.homeless:
                    print("the stack's folder was removed: stopping", file=sys.stderr, flush=True)
                    break
                self._keep_house()
                self._board.catch_up()
                if self._grow.is_set():
                    self._grow.clear()
                    self._start_missing(self._requested_services())
        except Exception as error:
            self._board.give_up("supervisor", str(error) or repr(error))
            raise
        finally:
            self._stop.set()
            self._board.stopping()
            wait_for_all(self._runners, self._keep_house)
            if not self._board.homeless:  # otherwise these are another stack's
                end_unowned(self._layout, signal.SIGKILL, 0.0)
        return 1 if any(not runner.up.is_set() for runner in self._runners.values()) else 0

    def _start_missing(self, names: tuple[str, ...]) -> None:
        services = build(self._layout, load_settings(), names, self._definitions)
        fresh = [s for s in services if s.name not in self._runners]
        for service in fresh:
            self._runners[service.name] = Runner(
                self._layout, service, self._board, self._stop, self._runners
            )
        for service in fresh:
            self._runners[service.name].start()

    def _requested_services(self) -> tuple[str, ...]:
        return tuple(self._layout.requested_file.read_text().replace("\n", ",").rstrip(",").split(","))

    def _keep_house(self) -> None:
        if time.monotonic() - self._housekeeping_at > _HOUSEKEEPING_S:
            self._housekeeping_at = time.monotonic()
            self._dead = processes.reap(self._dead)
            logs.bound(self._layout.home / "logs")

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop.set()

    def _on_grow(self, number: int, frame: FrameType | None) -> None:
        self._grow.set()


def end_unowned(layout: Layout, number: int, timeout: float) -> int:
    """End marked processes of this stack that no runner owns; returns how many there were."""
    unowned = processes.marked(str(layout.home))
    processes.end(lambda: processes.marked(str(layout.home)), number, unowned, timeout)
    return len(unowned)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--services", default=",".join(EVERYTHING))
    parser.add_argument("--definitions", default=dagster.MODULE)
    parser.add_argument("--detach", action="store_true", help="leave the terminal and the caller")
    options = parser.parse_args(arguments)
    if options.detach:
        if os.fork():
            os._exit(0)
        os.setsid()
    names = tuple(options.services.split(","))
    return Supervisor(Layout(pulse_home()), names, options.definitions).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
