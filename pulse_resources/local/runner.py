"""Life cycle of one service, in a thread of the supervisor: start, become ready, be restarted, stop."""

import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO

from pulse_resources.errors import Terminal
from pulse_resources.local import ports, processes, provision
from pulse_resources.local.layout import Layout
from pulse_resources.local.patience import Patience
from pulse_resources.local.service import Service, environment, python
from pulse_resources.local.state import Board, Phase, ServiceState
from pulse_resources.process import niceness

_TICK = 0.1
_UP_TICK = 0.4
"""Seconds between two checks of a process that is up. At 0.1, five idle services took 0.8 % of a core."""
_TRIES = 3
"""Failed starts after which the stack gives up; a service that has been up is restarted without limit."""
_LONGEST_BACKOFF = 15.0
_STABLE_SECONDS = 60.0


class _Stopped(Exception):  # noqa: N818 - not an error: the person asked for it
    pass


class _PortLostError(Terminal):
    """Another program has the service's port."""

    def __init__(self, service: str, port: int) -> None:
        super().__init__(f"{service} ended: another program has taken port {port}")
        self.port = port


class Runner(threading.Thread):
    """Owns the process of one service.

    Shutdown order: a service ends its process only after those that depend on it have ended.
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
        self.ended = threading.Event()
        self._layout, self._board, self._stop_all, self._runners = layout, board, stop, runners
        self._process: subprocess.Popen[bytes] | None = None
        self._main: processes.ProcessId | None = None
        log = layout.log(service.name)
        state = ServiceState(name=service.name, address=service.address, external=service.external, log=log)
        board.add(state)

    def run(self) -> None:
        failed = False
        try:
            self._live()
        except _Stopped:
            pass
        except Exception as error:  # any error must be shown to the user, and the rest must stop
            failed = True
            lost = error.port if isinstance(error, _PortLostError) else None
            self._board.give_up(self.service.name, str(error) or repr(error), lost)
            self._stop_all.set()
        finally:
            self._wait_for_dependents()
            self._end()
            self._board.update(self.service.name, "failed" if failed else "stopped")
            self.ended.set()

    def _live(self) -> None:
        for name in self.service.needs:
            while name in self._runners and not self._runners[name].up.wait(_TICK):
                self._check_stop()
        if self.service.external:
            self._report("starting")
            self._become_ready(attempt=1)
            self._prepare()
            self.up.set()
            self._report("up")
            self._stop_all.wait()
            return
        failures = 0
        while True:
            if self._start() and self._become_ready(attempt=failures + 1):
                since = time.monotonic()
                note = "" if self.up.is_set() else self._prepare()
                self.up.set()
                self._report("up", note)
                self._wait_for_exit()
                if time.monotonic() - since > _STABLE_SECONDS:
                    failures = 0
            failures += 1
            code, note = None, "it cannot be started; is the disk full?"
            if self._process:
                code = self._process.returncode
                note = "it was not ready in time" if code is None else f"exit code {code}"
            self._end()
            if not self.up.is_set():
                # Now, as the other program may be gone by the time that all services have stopped.
                if port := provision.lost_port(self._layout, self.service.name):
                    raise _PortLostError(self.service.name, port)
                if failures >= _TRIES:
                    raise Terminal(f"{self.service.name} ended {failures} times (exit code {code})")
            self._board.update(self.service.name, "restarting", restarted=True, note=note)
            self._sleep(min(0.5 * 2 ** min(failures - 1, 10), _LONGEST_BACKOFF))

    def _start(self) -> bool:
        """Start the process; False when it must be retried, for example because the disk is full.

        Raises:
            OSError: it has never run.
        """
        self._report("starting")
        try:
            if self.service.setup:
                self.service.setup()
            self._process = self._spawn()
            self._main = processes.ProcessId.of(self._process.pid)
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

    def _become_ready(self, attempt: int) -> bool:
        """Wait until the service is ready; False when it has to be started again.

        Raises:
            Terminal: it has never been ready, and makes no progress.
        """
        since = time.monotonic()
        patience = Patience(self.service.start_timeout, attempt, since)
        while not (self.service.ready() and self._listens()):
            if self._process and self._process.poll() is not None:
                return False
            if not patience.lasts(time.monotonic(), self._processor_time):
                if self.up.is_set():  # a dependency may be away for longer
                    return False
                seconds = time.monotonic() - since
                raise Terminal(f"{self.service.name} is not ready after {seconds:.0f} s")
            self._sleep(_TICK)
        return not self._shares_port() and (self._process is None or self._process.poll() is None)

    def _processor_time(self) -> float:
        """Seconds that the service has computed; 0 for an external one, whose time-out is thus fixed."""
        return processes.processor_time(self._main) if self._main else 0.0

    def _listens(self) -> bool:
        """Whether this service listens at the address that answers: another stack may have taken it first."""
        where = ports.named_in(self.service.address)
        if self._main is None or where is None:
            return True
        return processes.listen(processes.family(self._main, processes.table()), where[1])

    def _shares_port(self) -> bool:
        """Whether another stack's service listens there, too, and would get some of this one's clients."""
        where = ports.named_in(self.service.address)
        if self._main is None or where is None:
            return False
        return processes.share_port(processes.family(self._main, processes.table()), where[1])

    def _prepare(self) -> str:
        """Run the service's preparation; its output is a note for the user."""
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
            self._sleep(_UP_TICK)

    def _wait_for_dependents(self) -> None:
        for runner in list(self._runners.values()):
            if self.service.name in runner.service.needs:
                runner.ended.wait()

    def _end(self) -> None:
        """End every process of the service, whether or not its main process is alive."""
        if self._process is None or self._main is None:
            return
        main = self._main
        before = processes.family(main, processes.table())
        members = [member for member in map(processes.ProcessId.of, before) if member]
        processes.end(
            lambda: processes.living(members) | processes.family(main, processes.table()),
            self.service.stop_signal,
            {main.pid} & before or before,
            self.service.stop_timeout,
        )
        self._process.wait()
        self._process = self._main = None

    def _report(self, phase: Phase, note: str = "") -> None:
        self._board.update(self.service.name, phase, process=self._main, note=note)

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


def wait_for_all(runners: Mapping[str, Runner], tick: Callable[[], None]) -> None:
    """Wait until every runner has ended its service."""
    while not all(runner.ended.is_set() for runner in list(runners.values())):
        tick()
        time.sleep(_TICK)
