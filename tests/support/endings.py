"""No process or folder outlives a run of tests, however the run ends.

The process that starts a run marks the environment of all processes that follow, and starts a guard: a
process in a session of its own, which reads from a pipe. When the run ends or is killed, the pipe closes;
then the guard ends all marked processes, and after an interrupted run it removes the run's folders. A run
that ends by itself and leaves a process behind fails.

A stack in PULSE_TEST_HOME is meant to outlive the run; its processes are spared.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import FrameType

import pytest

from pulse_resources.local import accounts, processes

MARK = "PULSE_TEST_RUN"
KEEP = b"keep the folders"
PATIENCE_S = float(os.environ.get("PULSE_TEST_PATIENCE_S", "300"))
"""Seconds for stacks to end in order, before they are killed."""
_SUPERVISOR = "pulse_resources.local.supervisor"


class Run:
    """The process that starts a run: without xdist the one that tests, with it their controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._mark = uuid.uuid4().hex
        os.environ[MARK] = self._mark
        self._folder: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self._interrupted, self._lost_worker = True, False
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "support.endings", self._mark, str(self._folder)],
            stdin=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name != MARK}
            | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,
        )
        signal.signal(signal.SIGTERM, self._interrupt)

    @staticmethod
    def _interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        """A worker of xdist ended: with an error, if it was killed."""
        self._lost_worker = self._lost_worker or error is not None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        yield
        self._interrupted = self._lost_worker or session.exitstatus not in (
            pytest.ExitCode.OK,
            pytest.ExitCode.TESTS_FAILED,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        )
        if self._interrupted:
            return
        if pools := sys.modules.get("pulse_pipelines.validation.worker_pool"):
            pools.validator_pool().close()  # of this process, which a run without xdist uses; it ends at exit
        deadline = time.monotonic() + PATIENCE_S
        while (survivors := marked(self._mark) - helpers()) and time.monotonic() < deadline:
            time.sleep(0.05)
        if survivors:
            lines = [f"  {pid}  {command(pid)}" for pid in sorted(survivors)]
            print("\nThese processes outlive the tests that started them:", *lines, sep="\n")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        os.environ.pop(MARK, None)
        if not self._interrupted and self._guard.stdin:
            with suppress(BrokenPipeError):
                self._guard.stdin.write(KEEP)
        self._guard.communicate()


@pytest.hookimpl(trylast=True)  # after pytest's own plugin for temporary folders
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Run(config), "pulse-endings")


def helpers() -> set[int]:
    """Processes of `multiprocessing` that serve this one, and end with it."""
    servers = (forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid)  # type: ignore[attr-defined]
    return {pid for pid in servers if pid is not None}


def marked(mark: str) -> set[int]:
    """Living processes of a run, except those of the stack in PULSE_TEST_HOME."""
    entry = f"{MARK}={mark}".encode()
    spared = f"{processes.MARK}={os.environ.get('PULSE_TEST_HOME', '')}".encode()
    members = set()
    for process in processes.table().values():
        with suppress(OSError):
            environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            if entry in environment and spared not in environment and not process.zombie:
                members.add(process.pid)
    return members


def command(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def end_processes(mark: str) -> None:
    """End a run's processes: what tests started is killed, stacks are stopped in order and then killed."""
    services = {pid for home in processes.marks() for pid in processes.marked(home)}
    supervisors = {pid for pid in marked(mark) if _SUPERVISOR in command(pid)}
    for pid in marked(mark) - services - supervisors:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    processes.end(lambda: marked(mark), signal.SIGTERM, supervisors, PATIENCE_S)


def remove_folders(base: Path) -> None:
    """Remove a run's temporary folder, and what the stacks in it keep elsewhere."""
    for folder, folders, files in os.walk(base):
        if "settings.json" in files or "stack.json" in files:
            home = Path(folder)
            for outside in accounts.elsewhere(home):
                shutil.rmtree(outside, ignore_errors=True)
            key = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
            shutil.rmtree(Path(tempfile.gettempdir(), f"pulse-{os.getuid()}-{key}"), ignore_errors=True)
            folders.clear()
    shutil.rmtree(base, ignore_errors=True)


def main(mark: str, folder: str) -> None:
    """The guard."""
    keep = sys.stdin.buffer.read() == KEEP
    end_processes(mark)
    if not keep:
        remove_folders(Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
