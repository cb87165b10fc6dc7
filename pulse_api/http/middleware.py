"""ASGI middleware for every request: request id, body limit, access log, metrics.

Plain ASGI, because Starlette's base class costs more than the rest of a small request.
"""

import os
import re
import time
from urllib.parse import unquote_to_bytes

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulse_api.http import logs, problems, process_metrics
from pulse_api.http.admission.pace import Pace

CLIENT_CLOSED_REQUEST = 499
"""Status in logs and metrics: the client left before its request was complete. It is never sent."""
NOT_TEXT = problems.ProblemError(
    400, "malformed", "the address is not UTF-8", fix="Percent-encode its UTF-8: café is caf%C3%A9"
)
MAX_PARAMETERS = 100
"""Maximum parameters of a query: the framework parses them before it authenticates."""
TOO_MANY = problems.ProblemError(
    400,
    "malformed",
    f"the query has more than {MAX_PARAMETERS} parameters",
    fix="Give each parameter that the path takes once",
)
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Envelope:
    """Wraps the app with request id, body limit, access log and metrics.

    Args:
        max_body_bytes: a larger body is refused with 413 before it is read to its end.
        log: whether requests are logged.
        checks_address: whether an address that is not UTF-8, or has too many parameters, is refused here,
            with a problem document.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int, log: bool, checks_address: bool = True) -> None:
        self._app = app
        self._checks_address = checks_address
        self._max = max_body_bytes
        self._log = log
        self._pace = Pace()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        request_id = _request_id(scope)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        logs.REQUEST_ID.set(request_id)  # never reset: the server logs unexpected errors after this
        status, received = 500, 0

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
                status = state["status"] = message["status"]
                message["headers"].append((b"x-request-id", request_id.encode()))
            await send(message)

        try:
            await self._pace.begin(scope)
            problem = _address_problem(scope) if self._checks_address else None
            app = problems.response(Request(scope), problem) if problem else self._app
            await app(scope, bounded, answered)
        except ClientDisconnect:
            status = CLIENT_CLOSED_REQUEST
        finally:
            seconds = time.perf_counter() - began
            route = getattr(scope.get("route"), "path", "unknown")  # the template: no ids, few values
            process_metrics.answered(scope["method"], route, status, seconds)
            if self._log:
                logs.access(
                    {
                        "request_id": request_id,
                        "method": scope["method"],
                        "route": route,
                        "status": status,
                        "ms": round(seconds * 1000, 2),
                        "tenant": state.get("tenant"),
                        "key": state.get("key_id"),
                    }
                )


def _address_problem(scope: Scope) -> problems.ProblemError | None:
    """What is wrong with an address, if anything is.

    It has to be UTF-8: of what is not, several would be one with replacement characters.
    """
    query = scope.get("query_string", b"")
    if query.count(b"&") >= MAX_PARAMETERS:
        return TOO_MANY
    try:
        for part in (scope.get("raw_path") or b"", query):
            if b"%" in part:
                unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        return NOT_TEXT
    return None


def _request_id(scope: Scope) -> str:
    """The caller's own request id where it is safe to log, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(value):
            return str(value.decode())
    return os.urandom(8).hex()
