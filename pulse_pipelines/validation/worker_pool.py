"""The validator pool: worker processes that validate expensive events, with limits of CPU time and memory.

The validator cannot be interrupted, so its process is killed: the kernel ends it once it has used up the CPU
time of one event, and limits its memory. A worker holds one event at a time, so no other event is lost, and
its successor is started at once.
"""

import atexit
import os
import resource
import signal
import struct
import subprocess
import sys
import time
from functools import cache
from multiprocessing.connection import Connection, Pipe
from queue import LifoQueue

import orjson

from pulse_pipelines.domain.event import Rejected
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.schemas.schema import compiled
from pulse_pipelines.domain.schemas.violations import violation
from pulse_resources.process import memory
from pulse_resources.process.niceness import BACKGROUND, begin_session
from pulse_resources.settings import load_settings

_HEADER = struct.Struct("<dQI")
"""Seconds, bytes of memory, and the length of the document; the payload is the rest."""
GRACE_SECONDS = 0.2
"""Time for a worker to exit before it is killed."""
PATIENCE = 10.0
"""Wall-clock seconds per (1 + CPU seconds allowed) to wait for an answer: a stopped process uses no CPU."""


class ValidatorPool:
    """Worker processes that validate one event at a time each; thread-safe.

    They are started on demand, and end with this process.

    Args:
        count: maximum number of workers; further calls wait for one.
    """

    def __init__(self, count: int) -> None:
        self._idle: LifoQueue[_Worker | None] = LifoQueue()
        for _ in range(count):
            self._idle.put(None)
        atexit.register(self.close)

    def rejected(
        self, document: str, payload: bytes, seconds: float, memory_bytes: int
    ) -> tuple[Rejected | None, float]:
        """Validate an event's data by a published document; returns the rejection, if any, and the CPU time.

        Args:
            payload: the event, which can be decoded and has data.
            seconds: limit of CPU time, beyond which the event is too expensive.
            memory_bytes: limit of the whole process, beyond which (in a new process) it is too expensive.
        """
        header = _HEADER.pack(seconds, memory_bytes, len(encoded := document.encode()))
        request = b"".join((header, encoded, payload))
        worker = self._idle.get()
        try:
            answer = None
            for _ in range(2):  # again if the process was killed from outside, or by memory of earlier events
                worker = worker or _Worker()
                answer = worker.ask(request, PATIENCE * (1 + seconds))
                if answer is not None:
                    break
                ended = worker.stop()
                worker = _Worker()
                if ended == -signal.SIGPROF:
                    break
        finally:
            self._idle.put(worker)
        if answer is None:
            limit = f"{memory_bytes >> 20} MB of memory" if ended == -signal.SIGABRT else f"{seconds:g} s"
            detail = f"judging it by the dataset's schema takes more than {limit}"
            return Rejected(Reason.TOO_EXPENSIVE, detail, "/data"), seconds
        took, verdict = orjson.loads(answer)
        if verdict is None:
            return None, took
        return Rejected(Reason.SCHEMA_VIOLATION, verdict[1], f"/data{verdict[0]}"), took

    def close(self) -> None:
        """End the idle processes."""
        while not self._idle.empty():
            if (worker := self._idle.get()) is not None:
                worker.stop()


class _Worker:
    def __init__(self) -> None:
        self._connection, child_end = Pipe()
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(child_end.fileno())],
                pass_fds=[child_end.fileno()],
                # On an executor Spark has put Pulse on `sys.path`, which a new Python does not inherit.
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def ask(self, request: bytes, patience: float) -> bytes | None:
        """Send a request; returns the answer, or None if the process died or `patience` seconds passed."""
        try:
            self._connection.send_bytes(request)
            return self._connection.recv_bytes() if self._connection.poll(patience) else None
        except (EOFError, OSError):
            return None

    def stop(self) -> int:
        """End the process; returns its exit code."""
        self._connection.close()
        try:
            return self._process.wait(
                GRACE_SECONDS
            )  # closing the connection has ended it already, if it was idle
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def validator_pool() -> ValidatorPool:
    """The pool of this process."""
    return _of_process(os.getpid())


@cache
def _of_process(_: int) -> ValidatorPool:
    return ValidatorPool(load_settings().ingest.judge_workers)


def answer_all(connection: Connection) -> None:
    """Answer requests until the connection is closed."""
    while True:
        try:
            request = memoryview(connection.recv_bytes())
        except (EOFError, OSError):
            return
        seconds, memory_bytes, size = _HEADER.unpack_from(request)
        memory.limit(memory_bytes)
        start = _HEADER.size
        document = bytes(request[start : start + size]).decode()
        try:
            compiled(document)  # before the clock starts: its time is the schema's, not the event's
            began = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, seconds)
            verdict = violation(document, orjson.loads(request[start + size :])["data"])
        except (MemoryError, SystemError, orjson.JSONDecodeError):  # all mean that memory is exhausted
            os.abort()  # as the validator does
        signal.setitimer(signal.ITIMER_PROF, 0)
        took = time.process_time() - began
        connection.send_bytes(orjson.dumps((took, verdict and (verdict[0], verdict[1][:2000]))))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    begin_session(max(0, os.nice(0)) + BACKGROUND)
    answer_all(Connection(int(sys.argv[1])))
