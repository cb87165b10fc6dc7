"""Routers that authenticate before they read a body, and decode it as the pipeline decodes events."""

from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from inspect import iscoroutinefunction
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.convertors import PathConvertor, register_url_convertor

from pulse_api.http.admission.turns import Whom
from pulse_api.http.app_state import Kind, app_state
from pulse_api.http.auth import Gate, Principal, take
from pulse_api.http.collect import values
from pulse_api.http.collect.body import received
from pulse_api.http.problems import ProblemError
from pulse_pipelines.domain.not_json import clearer
from pulse_resources.errors import meant

SAFE = ("GET", "HEAD", "OPTIONS")
CHANGE_BURST_S = 2.0
"""Seconds' worth of changes that a tenant may request at once."""
MAX_BYTES = 1024 * 1024
"""Maximum bytes of a body that holds no events: four times the largest schema."""
MAX_VALUES = 5_000
"""Maximum JSON values of it, by commas and opening brackets ..."""
MAX_SCHEMA_VALUES = 200_000
"""... and where it is a schema: the largest has no more."""
_RATED = {
    Kind.PREVIEW: "previews",
    Kind.SQL: "queries",
    Kind.ASK: "questions",
    Kind.OTHER: "requests other than previews, queries, questions and collecting",
}


class _Text(PathConvertor):
    """The rest of a path, slashes and newlines included: `path` loses a newline at the end."""

    regex = "(?s:.*)"


register_url_convertor("text", _Text())


class _ExactRequest(Request):
    """Request whose JSON decoding refuses NaN, lone surrogates and numbers outside the range of a float."""

    async def json(self) -> Any:
        body = await self.body()
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise clearer(body, error) from None


class _ExactRoute(APIRoute):
    kind = Kind.OTHER
    max_values = MAX_VALUES
    takes_turns = True
    """Whether the route waits for the caller's turn, and not the endpoint."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        needed: list[object] = [dependency.call for dependency in self.dependant.dependencies]
        gates: list[Gate] = [call for call in needed if isinstance(call, Gate)]
        if iscoroutinefunction(self.endpoint) and not gates:  # it needs no thread, so no turn
            return handler

        async def exactly(request: Request) -> Response:
            for gate in gates:
                await gate.open(request)
            _count(request, self.kind)
            refuse_unknown_parameters(request, self.path_format)
            exact, state, whom = (
                _ExactRequest(request.scope, request.receive),
                app_state(request),
                _whom(request),
            )
            with state.body_memory.of(whom) as holding:
                if self.body_field is not None:
                    exact._body = await received(exact, MAX_BYTES, holding)
                    values.bound(exact._body, self.max_values)
                # The turn begins after the body is read: a slow body does not hold a turn.
                async with state.turns[self.kind].take(whom) if self.takes_turns else nullcontext():
                    response = await handler(exact)
            if _changes(request, self.kind):
                # The caller's next request must see its change; other processes are notified by Postgres.
                state.views.forget(getattr(request.state, "tenant_id", None))
            return response

        return exactly


class _SchemaRoute(_ExactRoute):
    max_values = MAX_SCHEMA_VALUES


class _PreviewRoute(_ExactRoute):
    kind = Kind.PREVIEW


class _SqlRoute(_ExactRoute):
    kind = Kind.SQL
    takes_turns = False


class _AskRoute(_ExactRoute):
    kind = Kind.ASK


_ROUTES = {
    Kind.PREVIEW: _PreviewRoute,
    Kind.SQL: _SqlRoute,
    Kind.ASK: _AskRoute,
    Kind.OTHER: _ExactRoute,
}


def refuse_unknown_parameters(request: Request, path: str) -> None:
    """Refuse query parameters that this path does not define. Raises ProblemError (422)."""
    if not request.scope["query_string"]:
        return
    described = request.app.openapi()["paths"].get(path, {}).get(request.method.lower(), {})
    parameters = [
        parameter["name"] for parameter in described.get("parameters", ()) if parameter["in"] == "query"
    ]
    for name in request.query_params:
        if name not in parameters:
            fix = meant(
                name, parameters, f"The query parameters of this path: {', '.join(parameters) or 'none'}"
            )
            raise ProblemError(
                422, "invalid-request", f"the query parameter {name[:100]!r} is unknown", fix=fix
            )


def _count(request: Request, kind: Kind) -> None:
    """Count against the tenant's rates. Raises ProblemError (429) beyond them."""
    if (caller := _principal(request)) is not None:
        state = app_state(request)
        take(state, caller.tenant, _RATED[kind], 1, state.per_second[kind], state.burst_seconds)
        if _changes(request, kind):
            take(state, caller.tenant, "changes", 1, state.changes_per_second, CHANGE_BURST_S)


def _changes(request: Request, kind: Kind) -> bool:
    """Whether a request changes something; queries and questions are POST requests that do not."""
    return request.method not in SAFE and kind not in (Kind.SQL, Kind.ASK)


def _whom(request: Request) -> Whom:
    caller = _principal(request)
    return None if caller is None else caller.tenant.tenant_id


def _principal(request: Request) -> Principal | None:
    """The tenant's principal; None for an operator or an anonymous caller."""
    caller = getattr(request.state, "caller", None)
    return caller if isinstance(caller, Principal) else None


def resource(
    tag: str, prefix: str = "", kind: Kind = Kind.OTHER, *, takes_schemas: bool = False
) -> APIRouter:
    """A router for the endpoints of one resource, which take turns with others of their kind.

    Args:
        takes_schemas: bodies may have as many values as a schema.
    """
    return APIRouter(prefix=prefix, tags=[tag], route_class=_SchemaRoute if takes_schemas else _ROUTES[kind])
