"""Guard of the control room: checks on every request before Dagster handles it, web sockets included.

Dagster's own web server answers everyone who can reach it: a page of another site could stop sensors through
the browser of a person who had the UI open, or read the UI by DNS rebinding.
"""

import asyncio
import json
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulse_pipelines.defs.control_room import pages
from pulse_pipelines.defs.control_room.identity import Identity, Role
from pulse_pipelines.domain import charsets
from pulse_resources.settings.api_settings import DagsterSettings, is_of_host

ROLE = "pulse.role"
"""Key of the caller's role in a request's scope."""
HEALTH = "/healthz"
LOGIN, LOGOUT = "/login", pages.LOGOUT
LOGIN_S = 20.0
"""Seconds for the body of a login."""
MAX_LOGIN_BYTES = 4_096
LOCAL = ("localhost", "127.0.0.1", "::1")
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - a server listens on it; no client calls it by that name
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Refused:
    """A refused request: its HTTP status, the reason, and what to do."""

    status: int
    error: str
    fix: str

    def response(self) -> Response:
        return JSONResponse({"error": self.error, "fix": self.fix}, self.status)


class Guard:
    """ASGI application around Dagster's."""

    def __init__(self, app: ASGIApp, settings: DagsterSettings) -> None:
        self._app = app
        self._settings = settings
        self._identity = Identity(settings)
        linked = urlsplit(settings.linked_url).hostname or settings.host  # by it links in alerts lead here
        names = {*LOCAL, *settings.allowed_hosts, settings.host, linked} - {*EVERYWHERE}
        self._hosts = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        answer = await self._answer(scope, headers, receive)
        if answer is None:
            await self._app(scope, receive, _hardened(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before accepting: the client sees 403
        else:
            await answer(scope, receive, _hardened(send))

    async def _answer(self, scope: Scope, headers: Headers, receive: Receive) -> Response | None:
        """The guard's own response; None where Dagster responds."""
        method, path = scope.get("method", ""), scope["path"]
        navigates = method == "GET" and _navigates(headers)
        if refused := self._foreign(headers, navigates) or _unusual(scope, headers):
            return refused.response()
        if path == HEALTH:
            return PlainTextResponse("ok")
        if path == LOGIN:
            return await self._login(headers, receive) if method == "POST" else pages.login()
        if path == LOGOUT:  # GET only asks for confirmation: a page of another site could hold the link
            return self._signed_out() if method == "POST" else pages.logout()
        if navigates and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return pages.go_on()
        role = self._identity.of(scope, headers)
        if role is None:
            stranger = Refused(
                401, "who are you?", "Sign in at /login, or send Authorization: Bearer <token>"
            )
            return pages.login() if navigates else stranger.response()
        if role is Role.READ_ONLY and method == "POST" and path != "/graphql":
            return read_only().response()
        scope[ROLE] = role
        return None

    def _foreign(self, headers: Headers, navigates: bool) -> Refused | None:
        """Refuse a request with a foreign host name or from a foreign page; None: it is neither."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or _name(hosts[0]) not in self._hosts:
            fix = "Use its own address, or add the name to the setting dagster.allowed_hosts"
            return Refused(421, "the control room is not known by this name (Host)", fix)
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "none")
        if origin is not None and not is_of_host(origin, hosts[0]):
            return _foreign_page("Origin")
        if site not in ("same-origin", "none") and not navigates:
            return _foreign_page("Sec-Fetch-Site")
        return None

    async def _login(self, headers: Headers, receive: Receive) -> Response:
        try:
            body = await asyncio.wait_for(_body(receive), LOGIN_S)
        except TimeoutError:
            return Refused(408, "the token did not come in time", "Send it at once").response()
        try:
            token = json.loads(body)["token"] if len(body) <= MAX_LOGIN_BYTES else None
        except (ValueError, TypeError, KeyError):
            token = None
        role = self._identity.of_token(token) if isinstance(token, str) else None
        if role is None:
            return Refused(
                401, "this is not a token of the control room", "`pulse status` prints it"
            ).response()
        answer = JSONResponse({"role": role})
        answer.set_cookie(
            self._identity.cookie,
            self._identity.session(role),
            max_age=round(self._settings.session_hours * 3_600),
            httponly=True,
            samesite="strict",
            secure=headers.get("origin", "").startswith("https:"),
        )
        return answer

    def _signed_out(self) -> Response:
        """Response that makes the browser drop its session."""
        answer = JSONResponse({"role": None})
        answer.delete_cookie(self._identity.cookie, httponly=True, samesite="strict")
        return answer


def _foreign_page(header: str) -> Refused:
    return Refused(403, f"a page of another site asked ({header})", "Open the control room itself")


def read_only() -> Refused:
    """Refusal of a change by a read-only caller."""
    return Refused(403, "the role read-only changes nothing", "Sign in with the operator's token")


def _unusual(scope: Scope, headers: Headers) -> Refused | None:
    """Refuse requests that the UI never sends; None: it is a usual one.

    A body that is not JSON could come from a form on another site: browsers send that without a preflight.
    """
    if scope["type"] == "websocket":
        return None
    if scope["method"] not in ("GET", "HEAD", "POST"):
        return Refused(405, f"the method {scope['method'][:20]} is not used here", "Use GET or POST")
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if scope["method"] == "POST" and kind != "application/json":
        return Refused(415, "only JSON is taken", "Send Content-Type: application/json")
    if scope["method"] == "POST" and charsets.foreign(headers["content-type"]) is not None:
        return Refused(415, "only JSON in UTF-8 is taken", "Send Content-Type: application/json")
    return None


def _navigates(headers: Headers) -> bool:
    """Whether a person navigates to a page, as opposed to a frame, image or script that another page loads.

    Without TLS, browsers send these headers to localhost only; then accepting HTML counts as navigation.
    """
    if "sec-fetch-mode" in headers:
        return headers["sec-fetch-mode"] == "navigate" and headers.get("sec-fetch-dest") == "document"
    return "text/html" in headers.get("accept", "")


def _name(host: str) -> str:
    """A Host header without its port: `[::1]:3000` is `::1`."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower().removesuffix(".")


async def _body(receive: Receive) -> bytes:
    """Body of a small request; a larger one is not read to its end."""
    body, more = b"", True
    while more and len(body) <= MAX_LOGIN_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            break
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def _hardened(send: Send) -> Send:
    """Add security headers to responses; a response with a policy of its own keeps it."""

    async def hardened(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("Content-Security-Policy", POLICY)
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return hardened
