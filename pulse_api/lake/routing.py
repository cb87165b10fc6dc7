"""Endpoints of the catalog: authentication first, then the body, then a turn in a thread.

A request that parses more than a little of what a tenant wrote begins again in another process, whose memory
is limited: a computing thread would hold up the requests of all others.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
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
from pulse_api.http.middleware import MAX_PARAMETERS
from pulse_api.lake.auth import Caller, authenticate
from pulse_api.lake.errors import HANDLED, INVALID, problem_of, refused
from pulse_api.lake.state import LakeState, lake_state
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.lake import parsing
from pulse_pipelines.lake.names import SEPARATOR, Levels
from pulse_pipelines.lake.requests import Once
from pulse_pipelines.lake.table_commits import Name

MAX_BYTES = 4 * 1024 * 1024
"""Maximum bytes of a body: a transaction over many tables has some hundred kB."""

LONGEST_KEY = 100


@dataclass(frozen=True)
class CatalogRequest:
    """An authorized request: its caller, path names, query, headers and body."""

    caller: Caller
    path: dict[str, str]
    query: dict[str, str]
    headers: Headers
    body: bytes
    target: str
    """Method and path as they were sent."""

    @property
    def namespace(self) -> Levels:
        """The namespace that the path names."""
        return tuple(self.path["namespace"].split(SEPARATOR))

    @property
    def table(self) -> str:
        return self.path["table"]

    @property
    def view(self) -> str:
        return self.path["view"]

    @property
    def name(self) -> Name:
        """The table, or the view, that the path names."""
        return Name(self.namespace, self.path.get("table") or self.path.get("view") or "")

    @property
    def may_write(self) -> bool:
        """Whether the caller's key may write tables of the tenant's own."""
        return KeyScope.LAKE_WRITE in self.caller.key.scopes

    @property
    def once(self) -> Once:
        """The idempotency key, if one was sent, and the request's digest. Raises ProblemError (400)."""
        digest = hashlib.sha256(f"{self.target}\n".encode() + self.body).hexdigest()
        key = self.headers.get("idempotency-key")
        if key is not None and not (0 < len(key) <= LONGEST_KEY and key.isascii() and key.isprintable()):
            raise refused(400, f"an Idempotency-Key has 1 to {LONGEST_KEY} characters")
        return Once(key, digest)

    def json(self) -> dict[str, Any]:
        """The body as a JSON object. Raises ProblemError (400), or Large as `parsing.check_small`."""
        parsing.check_small(len(self.body))
        try:
            document = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            document = None
        if not isinstance(document, dict):
            raise refused(400, "Malformed request: the body must be a JSON object")
        return document


def text(document: Mapping[str, Any], name: str) -> str:
    """A string field of a document. Raises ProblemError (400)."""
    value = document.get(name)
    if not isinstance(value, str) or not value:
        raise refused(400, f"Malformed request: {name} must be a text")
    return value


def flag(document: Mapping[str, Any], name: str) -> bool:
    """A boolean field of a document; False where it is missing. Raises ProblemError (400)."""
    value = document.get(name)
    if value not in (None, True, False):
        raise refused(400, f"Malformed request: {name} is true or false")
    return bool(value)


def strings(document: Mapping[str, Any], name: str) -> dict[str, str]:
    """A field of a document that maps strings to strings. Raises ProblemError (400)."""
    mapping = document.get(name) or {}
    if not isinstance(mapping, dict) or not all(isinstance(value, str) for value in mapping.values()):
        raise refused(400, f"Malformed request: {name} must be an object of texts")
    return mapping


def levels(value: object) -> Levels:
    """The levels of a namespace in a document. Raises ProblemError (400)."""
    if not isinstance(value, list) or not value or not all(isinstance(level, str) for level in value):
        raise refused(400, "Malformed request: a namespace is a list of texts")
    return tuple(value)


def named(document: Mapping[str, Any], part: str) -> Name:
    """The identifier of a table or view in a document. Raises ProblemError (400)."""
    identifier = document.get(part)
    if not isinstance(identifier, dict):
        raise refused(400, f"Malformed request: {part} must be an object")
    return Name(levels(identifier.get("namespace")), text(identifier, "name"))


Work = Callable[[CatalogRequest], Response]
"""The work of an endpoint, run in a thread, or in another process from the start; all can be pickled."""


def endpoint(method: str, path: str, scope: KeyScope, work: Work, *, reads_back: bool = False) -> Route:
    """A route for callers whose key has the scope.

    Args:
        reads_back: the answer has metadata or credentials, whatever else is done: the key has to read, too.
    """
    scopes = (scope, KeyScope.LAKE_READ) if reads_back else (scope,)

    async def answered(request: Request) -> Response:
        caller, state = await authenticate(request, *scopes), lake_state(request)
        state.check_valid_before(caller.tenant)
        try:
            return await take_turn(request, caller, state)
        except HANDLED as error:
            if problem_of(error).status in INVALID:
                state.count_invalid(caller.tenant)
            raise

    async def take_turn(request: Request, caller: Caller, state: LakeState) -> Response:
        tenant_id = caller.tenant.tenant_id
        with state.body_memory.of(tenant_id) as holding:
            content = await received(request, MAX_BYTES, holding) if method == "POST" else b""
            target = f"{method} {request.scope['path']}?{request.url.query}"
            catalog_request = CatalogRequest(
                caller, _names(request), _query(request), request.headers, content, target
            )
            with suppress(parsing.Large):
                async with state.turns.take(tenant_id):
                    with parsing.only_small():
                        return await asyncio.to_thread(work, catalog_request)
            async with state.large_turns.take(tenant_id):
                return await state.workers.run(work, catalog_request)

    return _route(method, path, answered)


def open_endpoint(method: str, path: str, work: Callable[[Request], Awaitable[Response]]) -> Route:
    """A route without authentication."""
    return _route(method, path, work)


def _route(method: str, path: str, work: Callable[[Request], Awaitable[Response]]) -> Route:
    async def routed(request: Request) -> Response:
        request.scope["route"] = route  # its name in logs and metrics
        return await work(request)

    route = Route(path, routed, methods=[method])
    route.methods = {method}  # Starlette adds HEAD to GET: here HEAD has its own route
    return route


class RawPaths:
    """Middleware that keeps paths percent-encoded, so that a name may contain a slash (`%2F`)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = scope["raw_path"].decode("latin-1")
        await self._app(scope, receive, send)


def _names(request: Request) -> dict[str, str]:
    """Names in the path, decoded as Java's clients encode them. Raises ProblemError (400)."""
    try:
        return {name: unquote_plus(text, errors="strict") for name, text in request.path_params.items()}
    except UnicodeDecodeError:
        raise refused(400, "a name in the path is not UTF-8") from None


def _query(request: Request) -> dict[str, str]:
    """The parameters of the query, of which endpoints read five. Raises ProblemError (400)."""
    if request.scope["query_string"].count(b"&") >= MAX_PARAMETERS:
        raise refused(400, f"the query has more than {MAX_PARAMETERS} parameters")
    return dict(request.query_params)


def json_response(document: object, **headers: str) -> Response:
    """A JSON response of the catalog."""
    header_values = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(orjson.dumps(document), 200, header_values, media_type="application/json")
