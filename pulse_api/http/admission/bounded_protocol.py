"""The HTTP protocol of a connection, with limits on time per phase and on bytes per request.

uvicorn's own protocol has no timeout for the end of a head or a body, or for a client that does not read.
"""

import asyncio
import math
from typing import Any

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pulse_api.http import process_metrics
from pulse_api.http.admission import refusals
from pulse_api.http.admission.connections import Connections
from pulse_api.http.admission.refusals import MAX_HEAD_BYTES
from pulse_api.http.problems import ProblemError

CLOSING_S = 5.0
"""Seconds for the last bytes to a peer before its connection is cut."""
MAX_FRAMING_BYTES = 128 * 1024
"""Maximum bytes of a request that are not its body, in addition to a quarter of the body: head, sizes of
chunks, trailers. A chunk of one byte takes as much time as a large one."""
SLICE_BYTES = 16 * 1024
"""Bytes that are parsed between two checks of the limits: one read may have 256 KiB of tiny chunks."""
MAX_PIPELINED = 16
"""Pipelined requests that may wait on one connection."""
REFUSED = frozenset({401, 403, 413, 429})
MAX_REFUSED = 3
"""Consecutive refusals after which a connection pauses before its next request is read ..."""
REST_S = 1.0
"""... at least for as long as `Retry-After` says. A refusal costs as much as a small request."""
FIRST_REQUEST_S = 0.5
"""Seconds that a server which ends waits for the first request of a connection."""


class BoundedProtocol(HttpToolsProtocol):
    """HTTP protocol that closes a connection whose head, body or reading of the answer is overdue."""

    def __init__(self, *args: Any, connections: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connections = connections
        self._limits = connections.settings
        self._most = 2 * self._limits.max_body_bytes + MAX_HEAD_BYTES
        """Maximum bytes of one request with all framing, whether or not the app reads them."""
        self._in_head, self._in_body = True, False
        self._received = self._of_body = self._refused = 0
        self._pieces: list[bytes] = []
        """Chunks of the body that are not handed on yet."""
        self._resting = False
        self._early: list[bytes] = []
        """Bytes that came after the pause began, before the transport stopped reading."""
        self._answering: dict[str, Any] = {}
        """State of the request that is being answered; `middleware.Envelope` sets its `status`."""
        self._deadline = self._stalled = math.inf

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.time() + self._limits.head_seconds
        host = self.client[0] if self.client else ""
        if (refused := self._connections.add(self, host)) is not None:
            self._refuse(refused)
        elif (wait := self._connections.wait_s(self)) > 0:
            self._resting = True
            self._deadline += wait
            self._pause_reading(wait)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        if self._resting:
            self._early.append(data)
            self.transport.pause_reading()
            return
        for begin in range(0, len(data), SLICE_BYTES):
            part = data[begin : begin + SLICE_BYTES]
            super().data_received(part)
            self._received += len(part)
            if (problem := self._excess()) is not None:
                self._connections.refused(self)
                self._refuse(problem)
            if self.transport.is_closing():
                break
        self._hand_on()

    def _excess(self) -> ProblemError | None:
        """The problem of a request that has had too many bytes; None: it has not."""
        if self._in_head and self._received > MAX_HEAD_BYTES:
            return refusals.head_too_large()
        if self._received - self._of_body > MAX_FRAMING_BYTES + self._of_body // 4:
            return refusals.framing_too_large(MAX_FRAMING_BYTES)
        if self._received > self._most:
            detail = f"the body is larger than {self._limits.max_body_bytes:,} bytes"
            return ProblemError(413, "too-large", detail)
        return None

    @override
    def send_400_response(self, msg: str) -> None:
        self._connections.refused(self)
        if self._head_bytes() > MAX_HEAD_BYTES:
            self._refuse(refusals.head_too_large())
        else:
            self._refuse(ProblemError(400, "malformed", "this is not an HTTP request that can be read"))

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many requests at once")  # the parser turns it into a 400
        self._received = self._of_body = 0
        self._in_head = True
        self._deadline = self.loop.time() + self._limits.head_seconds

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # millions of trailers may follow the body; no endpoint reads one
            super().on_header(name, value)

    @override
    def on_body(self, body: bytes) -> None:
        self._of_body += len(body)
        self._pieces.append(body)

    def _hand_on(self) -> None:
        """Hand on what arrived of a body, at once: the server's own copies it again for each chunk."""
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            super().on_body(b"".join(pieces))

    @override
    def on_headers_complete(self) -> None:
        if self._head_bytes() > MAX_HEAD_BYTES:  # a head that came in one piece is checked here
            raise ValueError("the request's headers are too large")
        super().on_headers_complete()
        if self._connections.ending:
            self.cycle.keep_alive = False
        self._in_head, self._in_body = False, True
        self._deadline = self.loop.time() + self._limits.body_seconds

    @override
    def on_message_complete(self) -> None:
        self._hand_on()
        super().on_message_complete()
        self._in_body = False
        self._received = self._of_body = 0
        self._deadline = math.inf
        if not self.pipeline and self.cycle.response_complete:
            self._deadline = self.loop.time() + self.timeout_keep_alive

    def _head_bytes(self) -> int:
        lines = self.headers or ()  # None before the first request
        return len(self.url or b"") + sum(len(name) + len(value) for name, value in lines)

    @override
    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answering = cycle.scope["state"]
        super()._start_asgi_task(cycle, app)

    @override
    def on_response_complete(self) -> None:
        last, status = not self.pipeline, self._answering.get("status")
        super().on_response_complete()
        if last and not self._in_head and not self._in_body:
            self._deadline = self.loop.time() + self.timeout_keep_alive
        self._refused = self._refused + 1 if status in REFUSED else 0
        if self._refused:
            self._connections.refused(self)
        if (
            self._refused > MAX_REFUSED
            and self._connections.counts_addresses
            and not self.transport.is_closing()
        ):
            self._pause_reading(REST_S)

    def _pause_reading(self, seconds: float) -> None:
        self.flow.pause_reading()
        self.loop.call_later(seconds, self._resume_reading)

    def _resume_reading(self) -> None:
        self._resting = False
        early, self._early = self._early, []
        if not self.transport.is_closing():
            self.flow.resume_reading()
            for data in early:
                self.data_received(data)

    @override
    def shutdown(self) -> None:
        if self.cycle is None:  # the first request may be on its way
            self.loop.call_later(FIRST_REQUEST_S, super().shutdown)
        else:
            super().shutdown()

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.time() + self._limits.answer_seconds

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled = math.inf

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a request, or for the end of its head: closing it loses nothing."""
        return self._in_head or self.cycle is None or self.cycle.response_complete

    def give_way(self) -> None:
        """Close the connection, which is waiting, for another address."""
        if self._in_head and self._received:
            self._refuse(refusals.busy("connections", "this address has more connections than others"))
        else:
            self.transport.close()

    def check_deadlines(self, now: float) -> None:
        """Close the connection if a deadline has passed."""
        if now >= self._stalled or (self.transport.is_closing() and now >= self._deadline):
            self.transport.abort()
        elif self.transport.is_closing():
            self._deadline = min(self._deadline, now + CLOSING_S)
        elif now >= self._deadline:
            self._deadline = now + CLOSING_S
            if self._in_body or (self._in_head and self._received):
                part = "body" if self._in_body else "head"
                self._refuse(
                    ProblemError(408, f"{part}-timeout", f"the {part} of the request did not come in time")
                )
            else:
                self.transport.close()

    def _refuse(self, problem: ProblemError) -> None:
        """Send a problem, unless an answer is already under way, and close."""
        process_metrics.CONNECTIONS_REFUSED.labels(problem.kind).inc()
        cycle = self.cycle
        if self._in_head:
            free = cycle is None or cycle.response_complete
        else:
            free = cycle is not None and not cycle.response_started
        if free and not self.pipeline:
            self.transport.write(refusals.raw(problem))
        self.transport.close()
