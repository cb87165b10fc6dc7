"""Worker processes: what computes for a request does so beside the process that answers all of them.

A thread that computes holds the interpreter, and whoever waits for the event loop waits for it. These have
interpreters of their own, and the kernel gives them what processors the server leaves.
"""

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import TypeVar

from pulse_resources.errors import Transient
from pulse_resources.niceness import begin_session

Result = TypeVar("Result")
NICENESS = 0
CHANGES = 15
"""Niceness of what no one waits for from one moment to the next."""
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pulse_api.http.app"])


class Workers:
    """Use from the event loop.

    Args:
        processes: at most so many; each has one piece of work at a time.
        warm: what each begins with; it can be pickled.
        niceness: of the processes.
    """

    def __init__(self, processes: int, warm: Callable[[], object], niceness: int = NICENESS) -> None:
        self._niceness = niceness
        self._processes = processes
        self._warm = warm
        self._pool: Executor = self._new_pool()

    def _new_pool(self) -> Executor:
        return ProcessPoolExecutor(
            self._processes,
            _CONTEXT,
            initializer=_begin,
            initargs=(dict(os.environ), self._warm, self._niceness),
        )

    def start(self) -> None:
        """Have all processes begin, and wait for the first: from any thread."""
        list(self._pool.map(_nothing, range(self._processes)))

    def stop(self) -> None:
        """Let them end, once what they do is done."""
        self._pool.shutdown(cancel_futures=True)

    async def run(self, work: Callable[..., Result], *args: object) -> Result:
        """Have a process do a piece of work; function, arguments and result can be pickled.

        Raises:
            Transient: the process ended meanwhile; and what `work` raises.
        """
        pool = self._pool
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work, *args)
        except BrokenProcessPool as error:
            if self._pool is pool:
                self._pool = self._new_pool()
                pool.shutdown(wait=False)
            raise Transient("the process that did this has ended", fix="Try again") from error


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


def _nothing(_: int) -> None:
    pass
