"""Judging aside: what may take long is judged by a process of its own, which ends when it takes too long.

The validator cannot be interrupted, so its process is: the kernel ends it once it has used up the CPU time
of one event. Only one event is in it, so no other one is lost, and its successor is started at once.
"""

import atexit
import os
import signal
import struct
import subprocess
import sys
from functools import cache
from multiprocessing.connection import Connection, Pipe
from queue import LifoQueue

import orjson

from pulse_pipelines.domain.event import Reason, Rejected
from pulse_pipelines.domain.schema import compiled, violation
from pulse_resources.settings import load_settings

_HEADER = struct.Struct("<dI")
"""Seconds, and the length of the document; the payload is the rest."""
GRACE_SECONDS = 0.2
"""That a worker has to end by itself."""
PATIENCE = 10.0
"""Seconds, and times the deadline, that an answer may take by the clock: a stopped process uses no CPU."""


class JudgeWorkers:
    """Processes that judge one event at a time each; use from any thread.

    They are started when they are needed, and end when this process does.

    Args:
        count: how many there may be at a time; whoever comes then waits.
    """

    def __init__(self, count: int) -> None:
        self._idle: LifoQueue[_Worker | None] = LifoQueue()
        for _ in range(count):
            self._idle.put(None)
        atexit.register(self.close)

    def rejected(self, document: str, payload: bytes, seconds: float) -> Rejected | None:
        """Why an event's data breaks a published document, if it does.

        Args:
            payload: the event, which can be decoded and has data.
            seconds: of CPU time, after which it is too expensive.
        """
        request = b"".join((_HEADER.pack(seconds, len(encoded := document.encode())), encoded, payload))
        worker = self._idle.get()
        try:
            answer = None
            for _ in range(2):  # a worker that was ended from outside is no verdict
                worker = worker or _Worker()
                answer = worker.ask(request, PATIENCE * (1 + seconds))
                if answer is not None:
                    break
                expired = worker.stop() == -signal.SIGPROF
                worker = _Worker()
                if expired:
                    break
        finally:
            self._idle.put(worker)
        if answer is None:
            detail = f"judging it by the dataset's schema takes more than {seconds:g} s"
            return Rejected(Reason.TOO_EXPENSIVE, detail, "/data")
        if (found := orjson.loads(answer)) is None:
            return None
        return Rejected(Reason.SCHEMA_VIOLATION, found[1], f"/data{found[0]}")

    def close(self) -> None:
        """End the processes that judge nothing now."""
        while not self._idle.empty():
            if (worker := self._idle.get()) is not None:
                worker.stop()


class _Worker:
    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )

    def ask(self, request: bytes, patience: float) -> bytes | None:
        """The answer; None when the process ended, or gave none within `patience` seconds."""
        try:
            self._connection.send_bytes(request)
            return self._connection.recv_bytes() if self._connection.poll(patience) else None
        except (EOFError, OSError):
            return None

    def stop(self) -> int:
        """How the process ended, by itself or now."""
        self._connection.close()
        try:
            return self._process.wait(
                GRACE_SECONDS
            )  # closing the connection has ended it already, if it was idle
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def judge_workers() -> JudgeWorkers:
    """The workers of this process."""
    return _of_process(os.getpid())


@cache
def _of_process(_: int) -> JudgeWorkers:
    return JudgeWorkers(load_settings().ingest.judge_workers)


def answer_all(connection: Connection) -> None:
    """Answer requests until the other side is gone."""
    while True:
        try:
            request = memoryview(connection.recv_bytes())
        except (EOFError, OSError):
            return
        seconds, size = _HEADER.unpack_from(request)
        start = _HEADER.size
        document = bytes(request[start : start + size]).decode()
        compiled(document)  # is the schema's time, not the event's
        signal.setitimer(signal.ITIMER_PROF, seconds)
        found = violation(document, orjson.loads(request[start + size :])["data"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send_bytes(orjson.dumps(found and (found[0], found[1][:2000])))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    answer_all(Connection(int(sys.argv[1])))
