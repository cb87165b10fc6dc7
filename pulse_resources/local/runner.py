"""One service's life, in a thread of the supervisor: start, become ready, be restarted, stop."""

import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO

from pulse_resources import niceness
from pulse_resources.errors import Terminal
from pulse_resources.local import processes
from pulse_resources.local.layout import Layout
from pulse_resources.local.service import Service, environment, python
from pulse_resources.local.state import Board, Phase, ServiceState

_TICK = 0.1
_PORT = re.compile(r":(\d+)$")
"""Of an address."""
_TRIES = 3
"""Starts that may fail before the stack gives up; once up, a service is restarted for ever."""
_LONGEST_BACKOFF = 15.0
_STABLE_SECONDS = 60.0


class _Stopped(Exception):  # noqa: N818 - not an error: the person asked for it
    pass


class Runner(threading.Thread):
    """Owns the process of one service.

    Stops are ordered by waiting: a service ends its process only when those that need it are gone.
    """

    def __init__(
        self,
        layout: Layout,
        service: Service,
        board: Board,
        stop: threading.Event,
        runners: Mapping[str, "Runner"],
    ) -> None:
        super().__init__(name=service.name)
        self.service = service
        self.up = threading.Event()
        self.gone = threading.Event()
        self._layout, self._board, self._stop_all, self._runners = layout, board, stop, runners
        self._process: subprocess.Popen[bytes] | None = None
        log = layout.log(service.name)
        state = ServiceState(name=service.name, address=service.address, external=service.external, log=log)
        board.add(state)

    def run(self) -> None:
        failed = False
        try:
            self._live()
        except _Stopped:
            pass
        except Exception as error:  # whatever it was, the person must see it and the rest must stop
            failed = True
            self._board.give_up(self.service.name, str(error) or repr(error))
            self._stop_all.set()
        finally:
            self._wait_for_dependents()
            self._end()
            self._board.update(self.service.name, "failed" if failed else "stopped")
            self.gone.set()

    def _live(self) -> None:
        for name in self.service.needs:
            while name in self._runners and not self._runners[name].up.wait(_TICK):
                self._check_stop()
        if self.service.external:
            self._report("starting")
            self._become_ready()
            self._prepare()
            self.up.set()
            self._report("up")
            self._stop_all.wait()
            return
        failures = 0
        while True:
            since = time.monotonic()
            if self._start() and self._become_ready():
                note = "" if self.up.is_set() else self._prepare()
                self.up.set()
                self._report("up", note)
                self._wait_for_exit()
            failures = 1 if time.monotonic() - since > _STABLE_SECONDS else failures + 1
            code = self._process.returncode if self._process else None
            if not self.up.is_set() and failures >= _TRIES:
                raise Terminal(f"{self.service.name} ended {failures} times (exit code {code})")
            note = f"exit code {code}" if self._process else "it cannot be started; is the disk full?"
            self._end()
            self._board.update(self.service.name, "restarting", restarted=True, note=note)
            self._sleep(min(0.5 * 2 ** (failures - 1), _LONGEST_BACKOFF))

    def _start(self) -> bool:
        """True when its process runs, False when it has to be tried again: the disk is full, say.

        Raises:
            OSError: it never ran.
        """
        self._report("starting")
        try:
            if self.service.setup:
                self.service.setup()
            self._process = self._spawn()
        except OSError:
            if not self.up.is_set():
                raise
            return False
        self._report("starting")
        return True

    def _spawn(self) -> "subprocess.Popen[bytes]":
        account = self.service.account
        with self._log() as log:
            process = subprocess.Popen(
                self.service.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/" if account else self._layout.home,
                env=self._environment(),
                umask=0o077,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
                start_new_session=True,
            )
        if self.service.niceness:
            niceness.renice(process.pid, self.service.niceness)
        return process

    def _become_ready(self) -> bool:
        """True when ready, False when it has to be started again.

        Raises:
            Terminal: it never was ready, and is not in time.
        """
        deadline = time.monotonic() + self.service.start_timeout
        while not (self.service.ready() and self._is_own()):
            if self._process and self._process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                if self.up.is_set():  # what it needs may be away for longer
                    return False
                seconds = self.service.start_timeout
                raise Terminal(f"{self.service.name} is not ready after {seconds:.0f} s")
            self._sleep(_TICK)
        # A path that answers while our process is dead belongs to somebody else.
        return self._process is None or self._process.poll() is None

    def _is_own(self) -> bool:
        """Whether it is our process that answers, and not another program that has its port."""
        port = _PORT.search(self.service.address)
        if self._process is None or port is None:
            return True
        return processes.listens(processes.family(self._process.pid, processes.table()), int(port[1]))

    def _prepare(self) -> str:
        """Run what must be done before others may use the service; its output is a note."""
        if not self.service.prepare:
            return ""
        self._report("preparing")
        command = python("pulse_resources.local.prepare", self.service.name)
        with (
            self._log() as log,
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._layout.home,
                env=self._environment(),
                text=True,
            ) as step,
        ):
            try:
                while step.poll() is None:
                    self._sleep(_TICK)
            except _Stopped:
                step.kill()
                raise
            note = step.stdout.read().strip() if step.stdout else ""
        if step.returncode:
            raise Terminal(f"Preparing {self.service.name} failed")
        return note

    def _wait_for_exit(self) -> None:
        while self._process and self._process.poll() is None:
            self._sleep(_TICK)

    def _wait_for_dependents(self) -> None:
        for runner in list(self._runners.values()):
            if self.service.name in runner.service.needs:
                runner.gone.wait()

    def _end(self) -> None:
        """End every process of the service, whether or not its main process is alive."""
        if self._process is None:
            return
        main = self._process.pid
        before = processes.family(main, processes.table())
        processes.end(
            lambda: processes.living(before) | processes.family(main, processes.table()),
            self.service.stop_signal,
            {main} & before or before,
            self.service.stop_timeout,
        )
        self._process.wait()
        self._process = None

    def _report(self, phase: Phase, note: str = "") -> None:
        main = processes.ProcessId.of(self._process.pid) if self._process else None
        self._board.update(self.service.name, phase, process=main, note=note)

    def _environment(self) -> dict[str, str]:
        mark = {processes.MARK: str(self._layout.home)}
        return environment(self._layout, self.service) | mark

    def _log(self) -> IO[bytes]:
        return self._layout.log(self.service.name).open("ab")

    def _sleep(self, seconds: float) -> None:
        if self._stop_all.wait(seconds):
            raise _Stopped

    def _check_stop(self) -> None:
        self._sleep(0)


def all_gone(runners: Mapping[str, Runner], tick: Callable[[], None]) -> None:
    """Wait until every runner has ended its service."""
    while not all(runner.gone.is_set() for runner in list(runners.values())):
        tick()
        time.sleep(_TICK)
