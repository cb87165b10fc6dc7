"""Fast path to the one endpoint that gets thousands of requests a second.

The endpoint is documented by FastAPI like every other; routing a request through FastAPI would cost twice
what the endpoint itself does.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pulse_api.http import problems


@dataclass(frozen=True)
class FastPath:
    """Wraps the app: POST requests for `path` go straight to `endpoint`."""

    app: ASGIApp
    path: str
    """Also the route's name in logs and metrics."""
    endpoint: Callable[[Request], Awaitable[Response]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self.path or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        scope["route"] = self
        request = Request(scope, receive)
        try:
            response = await self.endpoint(request)
        except problems.EXPECTED as error:
            response = problems.response(request, problems.of(error))
        await response(scope, receive, send)
