"""Worker processes: CPU-bound work of requests runs beside the process that serves them.

A computing thread holds the interpreter and so blocks the event loop. Worker processes have their own
interpreters, and the kernel schedules them on the processors that the server leaves.
"""

import asyncio
import math
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import LifoQueue
from typing import Any, TypeVar, cast

from pulse_resources.errors import Transient, UserError
from pulse_resources.process import memory
from pulse_resources.process.niceness import BACKGROUND, begin_session

Result = TypeVar("Result")
NICENESS = BACKGROUND
"""That of Spark and of batches, which must not wait for previews."""
CHANGES = 15
"""Niceness of work that is not interactive."""
CHANGES_BYTES = 1024**3
"""Memory of a process for it: it reads files of tenants, a few megabytes of which may become gigabytes."""
PATIENCE_S = 120.0
"""Usual timeout of an answer; permitted requests take less, unless the process was stopped."""
BUSY_S = 300.0
"""Timeout by the clock, which may exceed the usual one by the time in which the process had no processor."""
GRACE_S = 1.0
"""Grace period in which a process ends by itself."""
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pulse_api.http.app"])


class Workers:
    """Pool of worker processes. Use from the event loop.

    Each process has its own pipe that no other process can write to: when a process dies in the middle of an
    answer, its pipe ends, too. (The processes of the standard library's pool share one pipe, which then stays
    open and locked.)

    Args:
        processes: maximum number; each does one piece of work at a time.
        warm: what each process runs first; it must be picklable.
        niceness: of the processes.
        patience: seconds for one piece of work, without those in which its process could compute and has no
            processor; the process of a longer one is killed.
        memory_bytes: what a process may take beyond what it begins with; None: any. One that has taken half
            of it is replaced after its answer: what libraries keep would be missing to the next request.
    """

    def __init__(
        self,
        processes: int,
        warm: Callable[[], object],
        niceness: int = NICENESS,
        patience: float = PATIENCE_S,
        memory_bytes: int | None = None,
    ) -> None:
        self._new = partial(_Worker, warm, niceness, patience, memory_bytes)
        self._patience = patience
        self._processes = processes
        self._threads = ThreadPoolExecutor(processes, "worker")  # a thread always finds an idle process
        self._idle: LifoQueue[_Worker | None] = LifoQueue()
        for _ in range(processes):
            self._idle.put(None)

    def start(self) -> None:
        """Start all processes, and wait for the first. Call from any thread."""
        workers = [self._idle.get() or self._new() for _ in range(self._processes)]
        for worker in workers:
            self._idle.put(worker)
        self.wait_for(_do_nothing)

    def stop(self) -> None:
        """End the processes, after their current work."""
        self._threads.shutdown(cancel_futures=True)
        while not self._idle.empty():
            if (worker := self._idle.get()) is not None:
                worker.end()

    async def run(self, work: Callable[..., Result], *args: object) -> Result:
        """Run a function in a worker process; function, arguments and result must be picklable.

        A caller that is cancelled waits until the process is free: a turn that it holds ends no sooner.

        Raises:
            Transient: the process ended meanwhile, or `patience` did. Errors of `work` are raised unchanged.
            UserError: it needs more memory than it may have.
        """
        submitted = self._threads.submit(self.wait_for, work, *args)
        answer = asyncio.wrap_future(submitted)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if not submitted.cancel():
                await asyncio.wait([answer])
            raise

    def wait_for(self, work: Callable[..., Result], *args: object) -> Result:
        """As `run`, in this thread, which waits."""
        worker: _Worker | None = self._idle.get()
        try:
            worker = worker or self._new()
            result, error, where, is_spent = worker.ask(work, args)
            if is_spent:
                worker.end()
                worker = None
        except (EOFError, OSError) as ended:
            if worker is not None:
                worker.end()
            worker = None
            if isinstance(ended, TimeoutError):
                why = f"the request took more than {self._patience:g} s"
                raise Transient(why, fix="See what it waits for, then try again") from ended
            raise Transient("the process that handled this request has ended", fix="Try again") from ended
        finally:
            self._idle.put(worker)
        if isinstance(error, MemoryError):
            raise UserError(
                "the request needs more memory than it may have", fix="Make what it reads smaller"
            ) from _RaisedThereError(where)
        if error is not None:
            raise error from _RaisedThereError(where)
        return cast(Result, result)


class _RaisedThereError(Exception):
    """Traceback of an error in a worker process, as text for the log."""


_Answer = tuple[Any, Exception | None, str, bool]
"""The result, or the error and its traceback; and whether the process has little memory left."""


class _Worker:
    """A worker process and the pipe to it."""

    def __init__(
        self, warm: Callable[[], object], niceness: int, patience: float, memory_bytes: int | None
    ) -> None:
        self._patience = patience
        self._connection, child_end = _CONTEXT.Pipe()
        with child_end:  # the process has its own copy: closed here, the pipe ends with the process
            self._process = _CONTEXT.Process(
                target=_serve, args=(child_end, dict(os.environ), warm, niceness, memory_bytes), daemon=True
            )
            self._process.start()

    def ask(self, work: Callable[..., object], args: tuple[object, ...]) -> _Answer:
        """The answer of the process to one piece of work.

        Raises:
            EOFError, OSError: the process has ended, or does not answer.
        """
        self._connection.send((work, args))
        if not self._answers_in_time():
            raise TimeoutError
        answer: _Answer = self._connection.recv()
        return answer

    def _answers_in_time(self) -> bool:
        """Wait for an answer: what the work computes and sleeps counts, not that the machine is busy."""
        began, idled = time.monotonic(), starved(self._process.pid)
        remaining_s = self._patience
        while not self._connection.poll(remaining_s):
            passed = time.monotonic() - began
            remaining_s = self._patience - (passed - (starved(self._process.pid) - idled))
            if remaining_s <= 0 or passed > max(BUSY_S, self._patience):
                return False
            remaining_s = max(remaining_s, 0.1 * self._patience)  # ever smaller shares would never end
        return True

    def end(self) -> None:
        """End the process; it is killed if it is not idle."""
        self._connection.close()
        self._process.join(GRACE_S)
        self._process.kill()
        self._process.join()


def starved(pid: int | None) -> float:
    """Seconds that the main thread of a process could compute and had no processor; 0 if it is unknown."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):  # it has ended, or this kernel does not count them
        return 0.0


def _serve(
    connection: Connection,
    environment: Mapping[str, str],
    warm: Callable[[], object],
    niceness: int,
    memory_bytes: int | None,
) -> None:
    _begin(environment, warm, niceness)
    enough = math.inf
    if memory_bytes is not None:
        began = memory.data_bytes()
        memory.limit(began + memory_bytes)
        enough = began + memory_bytes / 2
    while True:
        try:
            work, args = connection.recv()
        except (EOFError, OSError):
            return  # the server has closed the pipe
        try:
            connection.send((work(*args), None, "", memory.data_bytes() > enough))
        except Exception as error:  # raised by the work, or because its result cannot be pickled
            connection.send((None, error, traceback.format_exc(), memory.data_bytes() > enough))


def _begin(environment: Mapping[str, str], warm: Callable[[], object], niceness: int) -> None:
    os.environ.clear()
    os.environ.update(environment)  # the fork server may have started with another environment
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the server ends its workers
    threading.Thread(target=_end_with_server, daemon=True).start()
    begin_session(niceness)
    warm()


def _end_with_server() -> None:
    """End the process when the server has ended: no one would read its results."""
    if (server := multiprocessing.parent_process()) is not None:
        wait([server.sentinel])
        os._exit(1)


def _do_nothing() -> None:
    pass
