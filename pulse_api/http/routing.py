"""Routers that know who asks before they read a body, and decode it as the pipeline decodes events."""

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from pulse_api.http.auth import Gate
from pulse_api.http.door import door

SAFE = ("GET", "HEAD", "OPTIONS")


class _ExactRequest(Request):
    """Knows no NaN, no lone surrogates, no numbers beyond every float."""

    async def json(self) -> Any:
        return orjson.loads(await self.body())


class _ExactRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        needed: list[object] = [dependency.call for dependency in self.dependant.dependencies]
        gates: list[Gate] = [call for call in needed if isinstance(call, Gate)]

        async def exactly(request: Request) -> Response:
            for gate in gates:
                await gate.open(request)
            response = await handler(_ExactRequest(request.scope, request.receive))
            if request.method not in SAFE:
                # What this caller changed holds for its very next request; others hear of it by Postgres.
                door(request).views.forget(getattr(request.state, "tenant_id", None))
            return response

        return exactly


def resource(tag: str, prefix: str = "") -> APIRouter:
    """A router for the endpoints of one resource."""
    return APIRouter(prefix=prefix, tags=[tag], route_class=_ExactRoute)
