"""Serves the console: one page at every address below `/console`, and the modules and styles that it loads.

The address of the files has the hash of all of them, so that browsers keep them for a year. Browsers ask for
the page itself each time. It holds no data: its scripts fetch everything from `/v1`, with the reader's key.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pulse_api.console import HOME

FILES = Path(__file__).with_name("static")
PAGE = "index.html"
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Media types of the files, by suffix."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Nothing inline, nothing from elsewhere, and no text becomes markup: no script may make trusted types."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
A_YEAR_S = 365 * 86_400


@dataclass(frozen=True)
class Release:
    """The console's files as they are in this process."""

    version: str
    """Hash of all files."""
    page: bytes
    files: dict[str, bytes]
    """Contents by name, without the page."""


@cache
def release() -> Release:
    """Read the files once per process."""
    contents = {path.name: path.read_bytes() for path in sorted(FILES.iterdir()) if path.is_file()}
    digest = hashlib.sha256(json.dumps({n: c.hex() for n, c in contents.items()}).encode())
    version = digest.hexdigest()[:16]
    page = contents.pop(PAGE).decode()
    modules = "\n".join(
        f'<link rel="modulepreload" href="{HOME}/static/{version}/{name}">'
        for name in contents
        if name.endswith(".js")
    )
    page = page.replace("{{files}}", f"{HOME}/static/{version}").replace("{{modules}}", modules)
    return Release(version, page.encode(), contents)


async def show_page(_: Request) -> Response:
    """The page, which is the same at every address: its scripts read the address."""
    headers = HEADERS | {"Cache-Control": "no-cache"}
    return Response(release().page, headers=headers, media_type="text/html; charset=utf-8")


async def send_file(request: Request) -> Response:
    """A module or style of this release. Raises HTTPException (404): it has no such file."""
    name, current = request.path_params["name"], release()
    content = current.files.get(name) if request.path_params["version"] == current.version else None
    if content is None:
        raise HTTPException(404)
    headers = HEADERS | {"Cache-Control": f"public, max-age={A_YEAR_S}, immutable"}
    return Response(content, headers=headers, media_type=KINDS[Path(name).suffix])


ROUTES = (
    Route(HOME, show_page, include_in_schema=False),
    Route(f"{HOME}/static/{{version}}/{{name}}", send_file, include_in_schema=False),
    Route(f"{HOME}/{{address:path}}", show_page, include_in_schema=False),
)
