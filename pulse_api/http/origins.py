"""Browsers: whose pages may call the API and /mcp, and whose may send events with a tenant's key.

A preflight request names no key, so the one for sending events permits the pages of all tenants. The request
itself has the key, and is refused unless the page is one of that tenant's.
"""

import ipaddress
from contextlib import suppress
from urllib.parse import urlsplit

from fastapi.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from pulse_api.http.problems import ProblemError
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources.settings import load_settings
from pulse_resources.settings.api_settings import ApiSettings, is_of_host


class Origins:
    """ASGI middleware: answers preflight requests, and tells browsers who may read a response.

    Args:
        path: of the endpoint that takes events.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings, path: str) -> None:
        everywhere = settings.cors_origins
        of_tenants = [origin for origins in settings.cors_origins_of.values() for origin in origins]
        self._path = path
        self._collect = _permit(app, [*everywhere, *of_tenants])
        self._others = _permit(app, everywhere)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._collect if scope.get("path") == self._path else self._others
        await app(scope, receive, send)


def refuse_pages_of_others(request: Request, tenant: Tenant) -> None:
    """Raise ProblemError (403) for a page that only other tenants have permitted; programs send no Origin."""
    if (origin := request.headers.get("origin")) is None:
        return
    settings = load_settings().api
    owners = [slug for slug, origins in settings.cors_origins_of.items() if origin in origins]
    if owners and tenant.slug not in owners and not {origin, "*"} & set(settings.cors_origins):
        raise ProblemError(
            403,
            "forbidden",
            f"pages of {origin} may not send events with a key of this tenant",
            fix="Have an operator add the origin to the tenant's in PULSE_API__CORS_ORIGINS_OF",
        )


def refuse_other_sites(request: Request, settings: ApiSettings) -> None:
    """Raise ProblemError (403) for a page of another site, as MCP asks; only browsers send an Origin."""
    if (origin := request.headers.get("origin")) is None:
        return
    host = request.headers.get("host", "")
    scheme, _, address = settings.public_url.partition("://")
    public_site = f"{scheme}://{address.partition('/')[0]}".lower()
    permitted = {origin, "*"} & {*settings.cors_origins, public_site}
    if not permitted and not (is_of_host(origin, host) and _is_address(host)):
        fix = "Call it from a program, or have an operator add the origin to the setting api.cors_origins"
        raise ProblemError(403, "forbidden", "a page of another site asked (Origin)", fix=fix)


def _is_address(host: str) -> bool:
    """Whether a Host is an address or this machine: a stranger can have any other name resolve to them."""
    name = urlsplit(f"//{host}").hostname or ""
    with suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return name == "localhost"


def _permit(app: ASGIApp, origins: list[str]) -> ASGIApp:
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        allow_headers=["Authorization", "Content-Type", "Content-Encoding", "X-Request-Id"],
        expose_headers=["X-Request-Id", "Retry-After", "Location"],
    )
