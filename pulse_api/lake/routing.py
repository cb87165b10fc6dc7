"""An endpoint of the catalog: who asks comes first, then the body, then a turn in a thread."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

import orjson
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pulse_api.http.collect.body import received
from pulse_api.lake.auth import Caller, authenticate
from pulse_api.lake.errors import refused
from pulse_api.lake.state import lake_state
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.lake.names import SEPARATOR, Levels

MAX_BYTES = 4 * 1024 * 1024
"""Of a body: a transaction over many tables has some hundred kB."""


@dataclass(frozen=True)
class Asked:
    """A request of a caller who may ask it."""

    caller: Caller
    path: dict[str, str]
    query: dict[str, str]
    headers: Headers
    body: bytes

    @property
    def namespace(self) -> Levels:
        """The namespace that the path names."""
        return tuple(self.path["namespace"].split(SEPARATOR))

    @property
    def table(self) -> str:
        return self.path["table"]

    def json(self) -> dict[str, Any]:
        """The body, which is an object. Raises ProblemError (400)."""
        try:
            found = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            raise refused(400, "Malformed request: the body must be a JSON object")
        return found


Work = Callable[[Asked], Response]
"""What an endpoint does, in a thread."""


def endpoint(method: str, path: str, scope: KeyScope, work: Work) -> Route:
    """A route that does its work for whoever has a key with the scope."""

    async def answered(request: Request) -> Response:
        caller = await authenticate(request, scope)
        here = lake_state(request)
        tenant_id = caller.tenant.tenant_id
        with here.held.of(tenant_id) as holding:
            content = await received(request, MAX_BYTES, holding) if method == "POST" else b""
            asked = Asked(caller, _names(request), dict(request.query_params), request.headers, content)
            async with here.turns.take(tenant_id):
                return await asyncio.to_thread(work, asked)

    return _route(method, path, answered)


def open_endpoint(method: str, path: str, work: Callable[[Request], Awaitable[Response]]) -> Route:
    """A route for anybody."""
    return _route(method, path, work)


def _route(method: str, path: str, work: Callable[[Request], Awaitable[Response]]) -> Route:
    async def routed(request: Request) -> Response:
        request.scope["route"] = route  # what log and measures call it
        return await work(request)

    route = Route(path, routed, methods=[method])
    route.methods = {method}  # Starlette adds HEAD to GET: here it is a question of its own
    return route


class RawPaths:
    """Wraps the app: a path is taken as it was sent, so that a name may have a slash in it (`%2F`)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = scope["raw_path"].decode("latin-1")
        await self._app(scope, receive, send)


def _names(request: Request) -> dict[str, str]:
    """What the path names, decoded as Java's clients encode it. Raises ProblemError (400)."""
    try:
        return {name: unquote_plus(text, errors="strict") for name, text in request.path_params.items()}
    except UnicodeDecodeError:
        raise refused(400, "a name in the path is not UTF-8") from None


def json_response(document: object, status: int = 200, **headers: str) -> Response:
    """An answer of the catalog."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(orjson.dumps(document), status, given, media_type="application/json")
