"""Postgres connection that fails when the server hangs, without a limit on statement time.

A server whose processes are stopped, or whose machine is paused, keeps its connections: its kernel still
acknowledges packets, so no TCP timeout ends the wait, and a statement timeout would end merely slow
statements. So after some silence the client checks through a new connection whether the server answers at
all.
"""

import threading
import time
from functools import cache
from typing import TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.rows import TupleRow

SILENCE_S = 3.0
"""Seconds of silence before the server is checked ..."""
AGAIN_S = 0.1
"""... and between checks while it does not answer."""
CONNECT_S = 2
"""Time-out of the check's connection; the minimum of libpq."""
KEEP_S = 1.0
"""How long a check's result is valid for all connections of this process."""
_INTERVAL_S = 0.1
R = TypeVar("R")


class _Server:
    """State of the server at one address, in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checked_at = float("-inf")
        self.hung = False

    def hangs(self, connection: psycopg.Connection[TupleRow]) -> bool:
        """Whether it does not answer a connection like this one; a refusal is an answer, too."""
        with self._lock:
            if time.monotonic() - self._checked_at >= KEEP_S:
                password = connection.info.password
                try:
                    psycopg.connect(connection.info.dsn, password=password, connect_timeout=CONNECT_S).close()
                    self.hung = False
                except psycopg.OperationalError as error:
                    self.hung = error.sqlstate is None
                self._checked_at = time.monotonic()
            return self.hung


@cache
def _server(host: str, port: int) -> _Server:
    return _Server()


class WatchedConnection(psycopg.Connection[TupleRow]):
    """Connection whose statements raise `psycopg.OperationalError` and close it once the server hangs."""

    def wait(self, gen: PQGen[R], interval: float = _INTERVAL_S, timeout: float | None = None) -> R:
        """As psycopg's, but checks at every interval whether to continue."""
        return super().wait(self._watched(gen), interval, timeout)

    def _watched(self, gen: PQGen[R]) -> PQGen[R]:
        heard, server = time.monotonic(), _server(self.info.host, self.info.port)
        try:
            awaited = next(gen)
            while True:
                ready = yield awaited
                now = time.monotonic()
                if ready:
                    heard = now
                elif now - heard >= (AGAIN_S if server.hung else SILENCE_S) and server.hangs(self):
                    self.pgconn.finish()  # otherwise the end of its transaction would wait, too
                    raise psycopg.OperationalError("Postgres does not answer")
                awaited = gen.send(ready)
        except StopIteration as ended:
            result: R = ended.value
            return result
