"""A connection to Postgres that ends when the server stands still, however long the statement may take.

A server whose processes are stopped, or whose machine is paused, keeps its connections: its kernel goes on
acknowledging what is sent, so that no timeout of TCP ends the wait, and a limit on how long a statement takes
would end those that are merely slow. So whoever has waited in silence for a while asks, by a connection of
its own, whether the server answers anybody.
"""

import threading
import time
from functools import cache
from typing import TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.rows import TupleRow

SILENCE_S = 3.0
"""Without a word from the server, until it is asked ..."""
AGAIN_S = 0.1
"""... and while it is known not to answer."""
CONNECT_S = 2
"""For the server to answer a new connection; libpq takes no less."""
KEEP_S = 1.0
"""How long what was found out is true for all connections of this process."""
_INTERVAL_S = 0.1
R = TypeVar("R")


class _Server:
    """What this process knows of the server behind one address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = float("-inf")
        self.still = False

    def stands_still(self, connection: psycopg.Connection[TupleRow]) -> bool:
        """Whether it answers nobody who comes as this connection did; a refusal is an answer, too."""
        with self._lock:
            if time.monotonic() - self._asked >= KEEP_S:
                password = connection.info.password
                try:
                    psycopg.connect(connection.info.dsn, password=password, connect_timeout=CONNECT_S).close()
                    self.still = False
                except psycopg.OperationalError as error:
                    self.still = error.sqlstate is None
                self._asked = time.monotonic()
            return self.still


@cache
def _server(host: str, port: int) -> _Server:
    return _Server()


class WatchedConnection(psycopg.Connection[TupleRow]):
    """Once the server stands still, statements raise `psycopg.OperationalError` and close the connection."""

    def wait(self, gen: PQGen[R], interval: float = _INTERVAL_S, timeout: float | None = None) -> R:
        """As psycopg's, which asks at every interval whether to go on."""
        return super().wait(self._watched(gen), interval, timeout)

    def _watched(self, gen: PQGen[R]) -> PQGen[R]:
        heard, server = time.monotonic(), _server(self.info.host, self.info.port)
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                now = time.monotonic()
                if ready:
                    heard = now
                elif now - heard >= (AGAIN_S if server.still else SILENCE_S) and server.stands_still(self):
                    self.pgconn.finish()  # else the end of its transaction would wait, too
                    raise psycopg.OperationalError("Postgres does not answer")
                wanted = gen.send(ready)
        except StopIteration as ended:
            result: R = ended.value
            return result
