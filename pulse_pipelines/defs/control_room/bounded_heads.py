"""Bounded heads: limits for what strangers send before anyone knows who they are.

uvicorn's own protocol waits for the end of a head without a limit of time, and keeps all of it.
"""

import asyncio

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 20.0
"""Seconds from the start of a connection, or of a later request, to the end of the head."""
MAX_FRAMING_BYTES = 1024 * 1024
"""Bytes of a request that are not its body: head, sizes of chunks, trailers."""


class BoundedHeads(HttpToolsProtocol):
    """HTTP protocol that closes a connection whose head is overdue, or whose framing is too large."""

    _overdue: asyncio.TimerHandle | None = None
    _framing_bytes = 0

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        self._framing_bytes += len(data)
        super().data_received(data)
        if self._framing_bytes > MAX_FRAMING_BYTES:
            self.transport.abort()

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._framing_bytes = 0
        if self._overdue is None:
            self._begin_head()

    @override
    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    @override
    def on_body(self, body: bytes) -> None:
        self._framing_bytes -= len(body)
        super().on_body(body)

    def _begin_head(self) -> None:
        self._overdue = self.loop.call_later(HEAD_S, self.transport.abort)

    def _end_head(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
