"""Slow answers: time limits for what a web server sends, down to single bytes of heads.

A client's read timeout is for each read: a server that sends one byte of a head a minute, or `100 Continue`
again and again, would hold the place of a run, or of a request of the API, without a limit.
"""

import time
from typing import Any

import httpcore
import httpx

HEAD_S = 120.0
"""Seconds from the last byte of a request to the end of the answer's head."""
PACE_S, PACE_BYTES = 60.0, 64 * 1024
"""Seconds of waiting for a body in which so many bytes have to come, framing included. `web.paced` bounds the
content alone, in half the time: what is left to this limit is framing without content."""
_LIMIT = "pulse_limit"


def limit_answers(client: httpx.Client, transport: httpx.HTTPTransport) -> None:
    """Limit the time of the answers that a client takes over its transport.

    A request whose answer is too slow raises `httpx.ReadTimeout`.
    """
    pool: Any = transport._pool  # httpx has no parameter for it
    pool._network_backend = _Backend(pool._network_backend)
    client.event_hooks = {"response": [*client.event_hooks["response"], _end_head]}


def _end_head(response: httpx.Response) -> None:
    response.extensions["network_stream"].get_extra_info(_LIMIT).end_head()


class _Limit:
    """The time that one answer has taken."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._head_until: float | None = time.monotonic() + HEAD_S
        self._waited_s, self._bytes = 0.0, 0

    def end_head(self) -> None:
        self._head_until = None

    def remaining(self, timeout: float | None) -> float | None:
        """Seconds that the next read may take. Raises httpcore.ReadTimeout: none."""
        if self._head_until is None:
            return timeout
        remaining = self._head_until - time.monotonic()
        if remaining <= 0:
            raise httpcore.ReadTimeout(f"the answer has no complete head after {HEAD_S:g} s")
        return remaining if timeout is None else min(timeout, remaining)

    def count(self, waited_s: float, size: int) -> None:
        """Count a read. Raises httpcore.ReadTimeout: the body trickles."""
        if self._head_until is not None:
            return
        self._waited_s += waited_s
        self._bytes += size
        if self._bytes >= PACE_BYTES:
            self._waited_s, self._bytes = 0.0, 0
        elif self._waited_s > PACE_S:
            raise httpcore.ReadTimeout(f"less than {PACE_BYTES:,} bytes came in {PACE_S:g} s")


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream, self._limit = stream, _Limit()

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        began = time.monotonic()
        piece = self._stream.read(max_bytes, self._limit.remaining(timeout))
        self._limit.count(time.monotonic() - began, len(piece))
        return piece

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, timeout)
        self._limit.begin()

    def close(self) -> None:
        self._stream.close()

    def start_tls(self, *arguments: Any, **named: Any) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(*arguments, **named))

    def get_extra_info(self, info: str) -> Any:
        return self._limit if info == _LIMIT else self._stream.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    def __init__(self, backend: httpcore.NetworkBackend) -> None:
        self._backend = backend

    def connect_tcp(self, *arguments: Any, **named: Any) -> httpcore.NetworkStream:
        return _Stream(self._backend.connect_tcp(*arguments, **named))

    def connect_unix_socket(self, *arguments: Any, **named: Any) -> httpcore.NetworkStream:
        return _Stream(self._backend.connect_unix_socket(*arguments, **named))

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)
