"""Processes from /proc: membership in a service, memory, processor time, termination.

A process group does not identify a service: Spark's Python daemon makes its own group, Postgres gives every
backend its own session, and an orphan changes its parent. So a member is a descendant, a process of the same
session, or one with the stack's mark in its environment.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

MARK = "PULSE_STACK_MEMBER"
_PR_SET_CHILD_SUBREAPER = 36
_LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """Entry of the process table; `started` (clock ticks since boot) tells reused ids apart.

    `computed` is its processor time in clock ticks, with that of children that ended.
    """

    pid: int
    parent: int
    session: int
    started: int
    zombie: bool
    computed: int


@dataclass(frozen=True)
class ProcessId:
    """Unambiguous process id: pid, start time and boot."""

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
    # The command name is in parentheses and may itself contain spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    parent, session, started, computed = int(fields[1]), int(fields[3]), int(fields[19]), fields[11:15]
    return Process(pid, parent, session, started, fields[0] in "ZX", sum(map(int, computed)))


def table() -> dict[int, Process]:
    """All processes of the machine."""
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())  # noqa: PTH208
    return {process.pid: process for process in map(_read, pids) if process}


def family(root: ProcessId, processes: dict[int, Process]) -> set[int]:
    """Living members of the service whose main process is (or was) `root`."""
    if (now := processes.get(root.pid)) and now.started != root.started:
        return set()  # the system does not reuse the number of a living member's session
    members = {root.pid} | {p.pid for p in processes.values() if p.session == root.pid}
    grew = True
    while grew:
        children = {p.pid for p in processes.values() if p.parent in members}
        grew = not children <= members
        members |= children
    return {pid for pid in members if pid in processes and not processes[pid].zombie}


def living(ids: Iterable[ProcessId]) -> set[int]:
    """Processes among `ids` that still run; a number that another process or thread has now is none."""
    return {process.pid for process in ids if process.alive()}


def marked(mark: str) -> set[int]:
    """Living processes with the mark of a stack in their environment."""
    return {pid for pid, process_mark in _marks() if process_mark == mark}


def marks() -> set[str]:
    """Marks of all stacks of which this account can see a living process."""
    return {mark for _, mark in _marks()}


def _marks() -> Iterator[tuple[int, str]]:
    begins = f"{MARK}=".encode()
    for process in table().values():
        try:
            environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:  # ended meanwhile, or another user's
            continue
        if process.zombie:
            continue
        for entry in environment:
            if entry.startswith(begins):
                yield process.pid, os.fsdecode(entry.removeprefix(begins))


def listen(pids: Iterable[int], port: int) -> bool:
    """Whether one of the processes has a TCP listener at a port."""
    files = {f"socket:[{inode}]" for inode in _listeners(port)}
    return bool(files) and any(not files.isdisjoint(_open_files(pid)) for pid in pids)


def share_port(pids: Iterable[int], port: int) -> bool:
    """Whether another process listens at the same address, as SO_REUSEPORT permits: either gets clients."""
    files = {file for pid in pids for file in _open_files(pid)}
    listeners = _listeners(port)
    addresses = {address for inode, address in listeners.items() if f"socket:[{inode}]" in files}
    foreign_addresses = {address for inode, address in listeners.items() if f"socket:[{inode}]" not in files}
    return not addresses.isdisjoint(foreign_addresses)


def _listeners(port: int) -> dict[str, str]:
    """The address of each TCP listener at a port, by its inode."""
    listeners = {}
    for table_of_sockets in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            for line in Path(f"/proc/net/{table_of_sockets}").read_text().splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                    listeners[inode] = local
    return listeners


def _open_files(pid: int) -> Iterator[str]:
    with suppress(OSError):  # gone meanwhile
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                yield str(entry.readlink())


def memory(pids: Iterable[int]) -> int:
    """Memory of `pids` in bytes; pages shared among them count once."""
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


def processor_time(root: ProcessId) -> float:
    """Seconds that the living members of a service have computed, see `family`."""
    processes = table()
    return sum(processes[pid].computed for pid in family(root, processes)) / _TICKS


def uptime(process: ProcessId) -> float:
    """Seconds since the process started."""
    since_boot = float(Path("/proc/uptime").read_text().split()[0])
    return since_boot - process.started / _TICKS


def end(members: Callable[[], set[int]], first: int, first_to: Iterable[int], timeout: float) -> None:
    """Send `first` to `first_to`, wait for all `members` to end, then kill the remaining ones."""
    _send(first_to, first)
    deadline = time.monotonic() + timeout
    while (remaining := members()) and time.monotonic() < deadline:
        time.sleep(0.05)
    while remaining:
        _send(remaining, signal.SIGKILL)
        time.sleep(0.05)
        remaining = members()


def _send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent died, so that none escapes."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(before: set[int]) -> set[int]:
    """Collect dead adopted children; returns those to pass as `before` next time.

    Only those dead at the last call too: a fresh one may be a child that a thread waits for.
    """
    dead = {child.pid for child in map(_read, _children()) if child and child.zombie}
    for pid in dead & before:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return dead - before


def _children() -> set[int]:
    """This process's children: from the kernel's own lists, without reading all processes, if it has them."""
    lists = list(Path("/proc/self/task").glob("*/children"))
    if not lists:
        me = os.getpid()
        return {process.pid for process in table().values() if process.parent == me}
    children: set[int] = set()
    for file in lists:
        with suppress(OSError):  # the thread has ended
            children |= {int(pid) for pid in file.read_text().split()}
    return children
