"""Around every request: an id, a bound on the body, one line of log, the measures.

Plain ASGI: Starlette's own base class costs more than the rest of a small request.
"""

import logging
import re
import secrets
import time

import orjson
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulse_api.http import measures

REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_log = logging.getLogger("pulse.api.access")


class Envelope:
    """Wraps the app.

    Args:
        max_body_bytes: a larger body is answered with 413, before it is read where its length is announced.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        status = 500
        received = 0

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max:
                raise HTTPException(413, f"a body may have {self._max:,} bytes")
            return message

        async def answered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"].append((b"x-request-id", request_id.encode()))
            await send(message)

        try:
            await self._app(scope, bounded, answered)
        finally:
            self._note(scope, state, status, time.perf_counter() - began, received)

    def _note(
        self, scope: Scope, state: dict[str, object], status: int, seconds: float, received: int
    ) -> None:
        route = getattr(scope.get("route"), "path", "unknown")  # its template: no ids, few values
        measures.REQUESTS.labels(scope["method"], route, str(status)).inc()
        measures.SECONDS.labels(route).observe(seconds)
        if _log.isEnabledFor(logging.INFO):
            line = {
                "request_id": state["request_id"],
                "method": scope["method"],
                "route": route,
                "status": status,
                "ms": round(seconds * 1000, 2),
                "bytes": received,
                "tenant": state.get("tenant"),
                "key": state.get("key_id"),
            }
            _log.info("%s", orjson.dumps(line).decode())
