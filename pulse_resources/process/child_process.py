"""Work in a child process, which is killed when its time is over.

A thread that computes within a library takes no signal and no exception: as when a server of a tenant demands
two thousand million hashes of a password before it admits anyone.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import TypeVar

from pulse_resources.errors import Transient
from pulse_resources.process import watchdog
from pulse_resources.process.niceness import BACKGROUND

GRACE_S = 5.0
"""Grace period in which a process whose work is done ends by itself."""
Result = TypeVar("Result")
_CONTEXT = multiprocessing.get_context("forkserver")


def iterate_in_child(
    work: Callable[..., Iterable[Result]], *arguments: object, seconds: float
) -> Iterator[Result]:
    """Do work in a child process, and yield what it yields, until it ends or its time is over.

    Args:
        work: at the top of its module; its arguments and results are picklable.
        seconds: for all of it.

    Raises:
        Transient: the process failed, and has printed why.
    """
    receiving, sending = _CONTEXT.Pipe(duplex=False)
    with receiving:
        with sending:  # the process has its own copy: closed here, the pipe ends with the process
            process = _CONTEXT.Process(
                target=_work, args=(sending, dict(os.environ), seconds, work, arguments), daemon=True
            )
            process.start()
        try:
            while True:
                yield receiving.recv()
        except (EOFError, OSError):  # at its end, or in the middle of a result
            process.join(GRACE_S)
        finally:
            process.kill()
            process.join()
    if process.exitcode not in (0, -signal.SIGKILL):
        raise Transient("work in a process of its own failed", exit_code=process.exitcode)


def _work(
    sending: Connection,
    environment: Mapping[str, str],
    seconds: float,
    work: Callable[..., Iterable[Result]],
    arguments: tuple[object, ...],
) -> None:
    os.environ.clear()
    os.environ.update(environment)  # the fork server may have started with another environment
    os.nice(BACKGROUND)
    with sending, watchdog.watched(work.__name__, seconds):
        for result in work(*arguments):
            sending.send(result)
