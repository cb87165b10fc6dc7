"""Processes as /proc shows them: who belongs to a service, what it weighs, how it is ended.

A process group is not enough to own a service: Spark's Python daemon makes its own group, Postgres
gives every backend its own session, and an orphan changes its parent. A member is therefore a
descendant, a process of the same session, or one that carries the stack's mark in its environment.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

MARK = "PULSE_STACK_MEMBER"
_PR_SET_CHILD_SUBREAPER = 36
_LISTEN = "0A"
"""The state of a socket in /proc/net/tcp."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Process(NamedTuple):
    """One line of the process table; `started` (clock ticks since boot) tells reused ids apart."""

    pid: int
    parent: int
    session: int
    started: int
    zombie: bool


@dataclass(frozen=True)
class ProcessId:
    """A process for sure: its id, and when it started in which boot."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        process = _read(pid)
        return cls(pid, process.started, _boot()) if process else None

    def alive(self) -> bool:
        process = _read(self.pid)
        return bool(
            process and not process.zombie and process.started == self.started and self.boot == _boot()
        )


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _read(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name stands in parentheses and may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), fields[0] in "ZX")


def table() -> dict[int, Process]:
    """Every process of the machine."""
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())  # noqa: PTH208
    return {process.pid: process for process in map(_read, pids) if process}


def family(root: int, processes: dict[int, Process]) -> set[int]:
    """The living members of the service whose main process is (or was) `root`."""
    members = {root} | {p.pid for p in processes.values() if p.session == root}
    grew = True
    while grew:
        children = {p.pid for p in processes.values() if p.parent in members}
        grew = not children <= members
        members |= children
    return {pid for pid in members if pid in processes and not processes[pid].zombie}


def living(pids: Iterable[int]) -> set[int]:
    """Those of `pids` that still run."""
    found = map(_read, pids)
    return {process.pid for process in found if process and not process.zombie}


def marked(mark: str) -> set[int]:
    """Living processes whose environment says that they belong to the stack `mark`."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for process in table().values():
        try:
            environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:  # gone meanwhile, or another user's
            continue
        if wanted in environment and not process.zombie:
            found.add(process.pid)
    return found


def listens(pids: Iterable[int], port: int) -> bool:
    """Whether one of `pids` listens at a TCP port; also where that cannot be seen, or nobody listens."""
    listeners = _listeners(port)
    if not listeners:
        return True
    for pid in pids:
        try:
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # closed meanwhile
                    if str(entry.readlink()) in listeners:
                        return True
        except FileNotFoundError:  # it has ended
            continue
        except PermissionError:
            return True
    return False


def _listeners(port: int) -> set[str]:
    """The sockets that listen at a port, as links of /proc/<pid>/fd name them."""
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(f"socket:[{fields[9]}]")
    return found


def memory(pids: Iterable[int]) -> int:
    """Bytes of memory that `pids` hold together; pages shared among processes count once."""
    return sum(_proportional(pid) for pid in pids)


def _proportional(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:  # smaps_rollup needs the right to trace the process; the plain resident size does not
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0


def uptime(process: ProcessId) -> float:
    """Seconds since the process started."""
    since_boot = float(Path("/proc/uptime").read_text().split()[0])
    return since_boot - process.started / os.sysconf("SC_CLK_TCK")


def end(members: Callable[[], set[int]], first: int, first_to: Iterable[int], timeout: float) -> None:
    """Send `first` to `first_to`, wait for all `members` to go, then kill those that stayed."""
    _send(first_to, first)
    deadline = time.monotonic() + timeout
    while (left := members()) and time.monotonic() < deadline:
        time.sleep(0.05)
    while left:
        _send(left, signal.SIGKILL)
        time.sleep(0.05)
        left = members()


def _send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent died, so that none escapes."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(before: set[int]) -> set[int]:
    """Collect dead adopted children; returns those to pass as `before` next time.

    Only what was dead at the last call too: a fresh one may be a child that a thread waits for.
    """
    me = os.getpid()
    dead = {p.pid for p in table().values() if p.parent == me and p.zombie}
    for pid in dead & before:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return dead - before
