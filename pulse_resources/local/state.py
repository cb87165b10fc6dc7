"""`stack.json`: the supervisor's state, read by every `pulse` command."""

import os
import threading
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from pulse_resources.home import write_atomically
from pulse_resources.local import processes
from pulse_resources.local.layout import Layout
from pulse_resources.local.processes import ProcessId

Phase = Literal["waiting", "starting", "preparing", "up", "restarting", "failed", "stopped"]


class ServiceState(BaseModel):
    """State of one service as of its last change."""

    name: str
    address: str
    phase: Phase = "waiting"
    external: bool = False
    process: ProcessId | None = None
    restarts: int = 0
    note: str = ""
    log: Path


class StackState(BaseModel):
    """State of the whole stack; `error` is set if it gave up."""

    supervisor: ProcessId
    stopping: bool = False
    error: str = ""
    culprit: str = ""
    lost_port: int | None = None
    """Port of the culprit that another program had taken."""
    services: dict[str, ServiceState] = {}

    @property
    def supervised(self) -> bool:
        return self.supervisor.alive()

    @property
    def all_up(self) -> bool:
        return all(service.phase == "up" for service in self.services.values())


def read(layout: Layout) -> StackState | None:
    """Last written state; None if there is none (or one of another version)."""
    try:
        return StackState.model_validate_json(layout.stack_file.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None


def homes() -> list[Path]:
    """Folders of all stacks that run on this machine, as far as this account can see them."""
    states = {home: read(Layout(home)) for home in sorted(map(Path, processes.marks()))}
    return [home for home, state in states.items() if state is not None and state.supervised]


class Board:
    """The supervisor's own copy, changed by many threads and written at each change.

    A full disk ends no service: writes that failed are repeated later, see `catch_up`.
    """

    def __init__(self, layout: Layout, supervisor: ProcessId) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        self._state = StackState(supervisor=supervisor)
        self._behind = False
        self._home = os.open(layout.home, os.O_DIRECTORY)  # while open, no other folder gets its inode
        self._save()

    @property
    def homeless(self) -> bool:
        """Whether the home was removed: a folder of the same name belongs to another stack."""
        try:
            return not os.path.samestat(os.fstat(self._home), self._layout.home.stat())
        except FileNotFoundError:
            return True

    def add(self, service: ServiceState) -> None:
        with self._lock:
            self._state.services[service.name] = service
            self._write()

    def update(
        self,
        name: str,
        phase: Phase,
        *,
        process: ProcessId | None = None,
        restarted: bool = False,
        note: str = "",
    ) -> None:
        with self._lock:
            service = self._state.services[name]
            service.phase, service.process, service.note = phase, process, note
            service.restarts += restarted
            self._write()

    def give_up(self, culprit: str, error: str, lost_port: int | None = None) -> None:
        """Record the first reason for which the stack cannot start."""
        with self._lock:
            if not self._state.error:
                self._state.error, self._state.culprit = error, culprit
                self._state.lost_port = lost_port
            self._write()

    def stopping(self) -> None:
        with self._lock:
            self._state.stopping = True
            self._write()

    def catch_up(self) -> None:
        """Repeat a write that failed."""
        with self._lock:
            if self._behind:
                self._write()

    def _write(self) -> None:
        if self.homeless:
            return
        try:
            self._save()
        except OSError:
            self._behind = True
        else:
            self._behind = False

    def _save(self) -> None:
        write_atomically(self._layout.stack_file, self._state.model_dump_json(indent=2) + "\n")
