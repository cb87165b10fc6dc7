"""/mcp: the MCP server over streamable HTTP, for the tenant of a key, within the limits of every route.

It is stateless: there are no sessions, so any process of the API can answer a request, and a revoked key is
refused at once. The server sends no notifications, so there is no stream to open: GET is a 405.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import INVALID_REQUEST, ErrorData, JSONRPCError
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from pulse_api.http import problems
from pulse_api.http.app_state import Kind, app_state
from pulse_api.http.auth import Principal, authenticate, take
from pulse_api.http.collect import values
from pulse_api.http.collect.body import received
from pulse_api.http.disconnects import unless_disconnected
from pulse_api.http.origins import refuse_other_sites
from pulse_api.http.problems import ProblemError
from pulse_api.http.query_runner import run_query
from pulse_api.http.routing import MAX_BYTES, MAX_VALUES
from pulse_api.mcp.server import Context, server
from pulse_api.mcp.session import Session
from pulse_pipelines.ask.read import QueryResult
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.sql.pinned import Travel
from pulse_resources.errors import PulseError
from pulse_resources.settings.api_settings import ApiSettings

_INVALID_ID = JSONRPCError(
    jsonrpc="2.0",
    id=None,
    error=ErrorData(code=INVALID_REQUEST, message="the id of a request is a text or a whole number"),
).model_dump_json(exclude_unset=True)
_log = logging.getLogger("pulse.api")


class Mcp:
    """The endpoint and its session manager, which runs as long as the app."""

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self._manager: StreamableHTTPSessionManager | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the server while the block runs."""
        manager = StreamableHTTPSessionManager(
            server(_session, _explained), json_response=True, stateless=True, max_request_body_size=MAX_BYTES
        )
        async with manager.run():
            self._manager = manager
            try:
                yield
            finally:
                self._manager = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        state = app_state(request)
        refuse_other_sites(request, self._settings)
        principal = await authenticate(request, KeyScope.READ, KeyScope.LAKE_READ)
        take(state, principal.tenant, "calls of tools", 1, state.per_second[Kind.OTHER], state.burst_seconds)
        if request.method != "POST":
            detail = "only POST is supported: /mcp has no sessions"
            raise ProblemError(405, "method-not-allowed", detail, headers={"Allow": "POST"})
        if self._manager is None:
            raise ProblemError(503, "unavailable", "the server is starting, or stopping")
        scope["state"]["principal"] = principal
        whom = principal.tenant.tenant_id
        with state.body_memory.of(whom) as holding:
            body = await received(request, MAX_BYTES, holding)
            values.bound(body, MAX_VALUES)  # the SDK checks each in the event loop, and lists all errors
            if (
                request.headers.get("content-type", "").partition(";")[0].strip().lower()
                != "application/json"
            ):
                fix = "Send JSON, with the header Content-Type: application/json"
                raise ProblemError(
                    415, "unsupported-media-type", "the request does not declare a body of JSON", fix=fix
                )
            if _has_invalid_id(body):
                await Response(_INVALID_ID, 400, media_type="application/json")(scope, receive, send)
                return
            async with state.turns[Kind.ASK].take(whom):
                handling = self._manager.handle_request(scope, _replay_body(body), send)
                await unless_disconnected(receive, handling)  # it ends its tool, which ends its query


def _has_invalid_id(body: bytes) -> bool:
    """Whether a request's id is neither a text nor a whole number.

    The SDK takes such a request for a notification and does not answer: the sender would wait.
    """
    try:
        message = from_json(body)
    except ValueError:
        return False  # the SDK says what is wrong with it
    if not isinstance(message, dict) or not {"id", "method"} <= message.keys():
        return False
    return isinstance(message["id"], bool) or not isinstance(message["id"], str | int)


def _replay_body(body: bytes) -> Receive:
    """A receive channel that replays the body, and then has nothing more."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    return again


def _session(context: Context) -> Session:
    """The MCP session of the key that this request presented."""
    request = context.request
    if not isinstance(request, Request):
        raise PulseError("a call without a request")
    state = app_state(request)
    principal: Principal = request.state.principal

    async def query(text: str, travel: Travel | None = None) -> QueryResult:
        return await run_query(state, principal, text, travel=travel)

    return Session(principal.tenant, query, state.previews.run, may_trace=KeyScope.READ in principal.scopes)


def _explained(context: Context, error: Exception) -> PulseError:
    """The error of a tool as a model reads it: what HTTP says in headers is in the answer."""
    problem, more = problems.of(error), dict[str, object]()
    fix = problem.fix or "Try again later; if it stays so, tell an operator"
    if problem.status == 500:
        _log.error("a tool failed", exc_info=error)
        more["request_id"] = context.request.state.request_id if context.request else None
    if wait := problem.headers.get("Retry-After"):
        more["retry_after_seconds"] = wait
        fix = fix.replace("after Retry-After", f"after {wait} s")
    return PulseError(problem.detail, fix=fix, **more)
