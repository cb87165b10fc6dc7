"""Pool of query processes, on the parent's side: idle children, each of which answers one query."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Self

import orjson

from pulse_pipelines.sql.child import KINDS
from pulse_pipelines.sql.confinement import Confinement
from pulse_resources.errors import Transient, UserError

COMMAND = (sys.executable, "-I", "-m", "pulse_pipelines.sql.template")
MAX_HEAD = 64 * 1024
_BEGINNING_S = 120.0
"""Long, as for a busy machine: afterwards the next query begins a template in place of the late one."""
_ENDING_S = 5.0


class CancelledError(Exception):
    """The process was ended on request."""


class TimeUpError(Exception):
    """The process did not answer in time, and was ended."""


class Process:
    """Handle of a child that waits for its query. Use it in one thread; `end` may be called from any.

    Args:
        connection: to the child.
        handle: pidfd of the child, closed at the end.
    """

    def __init__(self, connection: Connection, handle: int) -> None:
        self._connection = connection
        self._handle = handle
        self._lock = threading.Lock()
        self._cancelled = self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        with self._lock:
            self._closed = True
            self._connection.close()
            os.close(self._handle)

    def end(self) -> None:
        """Kill the child at once."""
        with self._lock, suppress(ProcessLookupError):
            if not self._closed:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def cancel(self) -> None:
        """Like `end`, but the thread that waits for an answer gets `CancelledError`."""
        self._cancelled = True
        self.end()

    @property
    def alive(self) -> bool:
        """Whether the child is running."""
        ended = select.poll()  # `select` is limited to descriptors up to 1,023
        ended.register(self._handle, select.POLLIN)
        return not ended.poll(0)

    def ask(self, question: Mapping[str, Any], until: float, most: int) -> tuple[dict[str, Any], bytes]:
        """Send a question and receive the answer.

        Args:
            until: deadline by `time.monotonic()`.
            most: largest answer in bytes.

        Raises:
            CancelledError: it was cancelled meanwhile.
            TimeUpError: the deadline passed.
            UserError: the child refuses the query, or has died.
            PulseError: another error that the child reports.
        """
        try:
            self._connection.send_bytes(orjson.dumps(question))
            head = dict(orjson.loads(self._received(until, MAX_HEAD)))
            if "error" in head:
                kind = KINDS.get(str(head["error"]), Transient)
                raise kind(str(head.get("message")), fix=str(head.get("fix") or "") or None)
            return head, self._received(until, most)
        except (EOFError, OSError, ValueError, TypeError) as error:
            if self._cancelled:
                raise CancelledError from error
            raise UserError(
                "the process of the query has ended: it took more memory or processor time than it may, or"
                " DuckDB cannot read one of its tables",
                fix="Read fewer columns or a shorter time range, or aggregate first. A table of which one row"
                " is too much needs another engine",
            ) from error

    def _received(self, until: float, most: int) -> bytes:
        if not self._connection.poll(max(0.0, until - time.monotonic())):
            self.end()
            raise TimeUpError
        return self._connection.recv_bytes(most)


class Cancellable:
    """A query that can be cancelled from any thread; its process may not have started yet."""

    _process: Process | None = None
    _cancelled = False

    def begun(self, process: Process) -> None:
        """Take note of the process, which ends at once if the query has been cancelled."""
        self._process = process
        if self._cancelled:
            process.cancel()

    def cancel(self) -> None:
        """End the query, now or when it begins; one that has ended stays as it is."""
        self._cancelled = True
        if self._process is not None:
            self._process.cancel()


class Processes:
    """Pool of idle children. Thread-safe.

    Args:
        confinement: of each child.
        ready: number of idle children.
        command: starts the template.
    """

    def __init__(self, confinement: Confinement, ready: int, command: Sequence[str] = COMMAND) -> None:
        self._confinement = confinement
        self._many = ready
        self._command = [*command, confinement.as_json()]
        self._lock = threading.Lock()
        self._ready: deque[Process] = deque()
        self._template: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def take(self) -> Process:
        """Take a child; a replacement is started in the background.

        Raises:
            Transient: no child can be started.
        """
        process = self._waiting() or self._make_process()
        threading.Thread(target=self.fill, name="sql-ready", daemon=True).start()
        return process

    def fill(self) -> None:
        """Start children until enough are idle."""
        with suppress(Transient):
            while len(self._ready) < self._many:
                self._ready.append(self._make_process())

    def stop(self) -> None:
        """End the idle children and the template."""
        with self._lock:
            while self._ready:
                self._ready.popleft().__exit__()
            if self._control is not None:
                self._control.close()
                self._control = None
            if self._template is not None:
                self._template.kill()
                self._template.wait(_ENDING_S)
                self._template = None

    def _waiting(self) -> Process | None:
        while self._ready:
            with suppress(IndexError):
                process = self._ready.popleft()
                if process.alive:
                    return process
                process.__exit__()
        return None

    def _make_process(self) -> Process:
        """Start a child, and wait until it is confined."""
        parent_end, child_end = socket.socketpair()
        with child_end:
            handle = self._forked(child_end)
        process = Process(Connection(parent_end.detach()), handle)
        try:
            process._received(time.monotonic() + _BEGINNING_S, MAX_HEAD)
        except (EOFError, OSError, TimeUpError) as error:
            process.__exit__()
            raise Transient("the process of a query does not start") from error
        return process

    def _forked(self, child_end: socket.socket) -> int:
        with self._lock:
            for _ in range(2):  # once more, by a new template, if the first has ended
                control = self._control or self._start_template()
                with suppress(OSError):
                    socket.send_fds(control, [b"."], [child_end.fileno()])
                    _, handles, _, _ = socket.recv_fds(control, 1, 1)
                    if handles:
                        return handles[0]
                control.close()
                self._control = None
        raise Transient("the parent process of queries does not start")

    def _start_template(self) -> socket.socket:
        """Start the template, in place of an earlier one; its socket. It inherits no environment."""
        if self._template is not None:
            self._template.kill()
            self._template.wait(_ENDING_S)
        parent_end, child_end = socket.socketpair()
        with child_end:
            self._template = subprocess.Popen(
                self._command,
                stdin=child_end.fileno(),
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": os.defpath},
            )
        parent_end.settimeout(_BEGINNING_S)
        self._control = parent_end
        return parent_end
