"""Worker processes: what computes for a request does so beside the process that answers all of them.

A thread that computes holds the interpreter, and whoever waits for the event loop waits for it. These have
interpreters of their own, and the kernel gives them what processors the server leaves.
"""

import asyncio
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection, wait
from queue import LifoQueue
from typing import Any, TypeVar, cast

from pulse_resources.errors import Transient
from pulse_resources.niceness import begin_session

Result = TypeVar("Result")
NICENESS = 0
CHANGES = 15
"""Niceness of what no one waits for from one moment to the next."""
PATIENCE_S = 120.0
"""For an answer; what a request may ask for takes less, unless the process was stopped."""
GRACE_S = 1.0
"""That a process has to end by itself."""
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pulse_api.http.app"])


class Workers:
    """Use from the event loop.

    Each process has a pipe of its own that nobody else can write to: where one ends in the middle of an
    answer, the pipe does. (The processes of the standard library's pool share one, which then stays open
    without an end, and locked.)

    Args:
        processes: at most so many; each has one piece of work at a time.
        warm: what each begins with; it can be pickled.
        niceness: of the processes.
    """

    def __init__(self, processes: int, warm: Callable[[], object], niceness: int = NICENESS) -> None:
        self._new = partial(_Worker, warm, niceness)
        self._processes = processes
        self._threads = ThreadPoolExecutor(processes, "worker")  # who has a thread finds a process
        self._idle: LifoQueue[_Worker | None] = LifoQueue()
        for _ in range(processes):
            self._idle.put(None)

    def start(self) -> None:
        """Have all processes begin, and wait for the first: from any thread."""
        begun = [self._idle.get() or self._new() for _ in range(self._processes)]
        for worker in begun:
            self._idle.put(worker)
        self._do(_nothing)

    def stop(self) -> None:
        """Let them end, once what they do is done."""
        self._threads.shutdown(cancel_futures=True)
        while not self._idle.empty():
            if (worker := self._idle.get()) is not None:
                worker.end()

    async def run(self, work: Callable[..., Result], *args: object) -> Result:
        """Have a process do a piece of work; function, arguments and result can be pickled.

        Raises:
            Transient: the process ended meanwhile; and what `work` raises.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._do, work, *args)

    def _do(self, work: Callable[..., Result], *args: object) -> Result:
        worker: _Worker | None = self._idle.get()
        try:
            worker = worker or self._new()
            found, error, where = worker.ask(work, args)
        except (EOFError, OSError) as ended:
            if worker is not None:
                worker.end()
            worker = None
            raise Transient("the process that handled this request has ended", fix="Try again") from ended
        finally:
            self._idle.put(worker)
        if error is not None:
            raise error from _RaisedThereError(where)
        return cast(Result, found)


class _RaisedThereError(Exception):
    """The traceback of an error in its process, as text: for a log."""


_Answer = tuple[Any, Exception | None, str]
"""The result; or the error, and its traceback."""


class _Worker:
    """A process, and the pipe to it."""

    def __init__(self, warm: Callable[[], object], niceness: int) -> None:
        self._connection, theirs = _CONTEXT.Pipe()
        with theirs:  # the process has its copy: nobody else keeps the pipe open
            self._process = _CONTEXT.Process(
                target=_serve, args=(theirs, dict(os.environ), warm, niceness), daemon=True
            )
            self._process.start()

    def ask(self, work: Callable[..., object], args: tuple[object, ...]) -> _Answer:
        """What came of it.

        Raises:
            EOFError, OSError: the process has ended, or gives no answer.
        """
        self._connection.send((work, args))
        if not self._connection.poll(PATIENCE_S):
            raise TimeoutError
        answer: _Answer = self._connection.recv()
        return answer

    def end(self) -> None:
        """At once, if it is not idle."""
        self._connection.close()
        self._process.join(GRACE_S)
        self._process.kill()
        self._process.join()


def _serve(
    connection: Connection, environment: Mapping[str, str], warm: Callable[[], object], niceness: int
) -> None:
    _begin(environment, warm, niceness)
    while True:
        try:
            work, args = connection.recv()
        except (EOFError, OSError):
            return  # the server needs it no more
        try:
            connection.send((work(*args), None, ""))
        except Exception as error:  # of the work, or its result cannot be pickled
            connection.send((None, error, traceback.format_exc()))


def _begin(environment: Mapping[str, str], warm: Callable[[], object], niceness: int) -> None:
    os.environ.clear()
    os.environ.update(environment)  # the fork server may have begun in another one
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the server ends its workers
    threading.Thread(target=_end_with_server, daemon=True).start()
    begin_session(niceness)
    warm()


def _end_with_server() -> None:
    """However it ends: nobody waits for what this process does any more."""
    if (server := multiprocessing.parent_process()) is not None:
        wait([server.sentinel])
        os._exit(1)


def _nothing() -> None:
    pass
