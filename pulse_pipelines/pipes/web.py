"""Web: requests to a source by HTTP, at the address that an operator wrote. No answer leads elsewhere."""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import httpx

from pulse_resources.errors import Conflict, NotFound, PulseError, Transient, UserError

TIMEOUT = httpx.Timeout(60, connect=10)
ATTEMPTS = 5
LONGEST_WAIT_S = 60.0
BEARER = "bearer"
"""User name in an address whose password is a token."""
_BUSY = (408, 425, 429)
Found = TypeVar("Found")


@dataclass(frozen=True)
class Site:
    """A web address with credentials."""

    base: str
    """Without credentials, and without a slash at its end."""
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)


def site(address: str) -> Site:
    """Parse an address. Raises UserError: it is malformed; the error omits it."""
    try:
        parts = urlsplit(address)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        raise UserError("the address of the source is malformed") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise UserError("the address of the source is no web address of a folder, without a query")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if user == BEARER and not (password.isascii() and password.isprintable()):
        raise UserError("the token in the address of the source is malformed")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    base = f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"
    return Site(base, user, password)


@contextmanager
def client(of: Site) -> Iterator[httpx.Client]:
    """Client with the credentials of a site; it follows no redirect, and no proxy of the environment."""
    headers = {"Accept-Encoding": "identity"}
    auth = (of.user, of.password) if of.user and of.user != BEARER else None
    if of.user == BEARER:
        headers["Authorization"] = f"Bearer {of.password}"
    with httpx.Client(
        headers=headers, auth=auth, timeout=TIMEOUT, follow_redirects=False, trust_env=False
    ) as found:
        yield found


@contextmanager
def answer(
    web: httpx.Client,
    method: str,
    url: str,
    headers: Mapping[str, str] | None = None,
    *,
    passed: tuple[int, ...] = (),
) -> Iterator[httpx.Response]:
    """A successful answer, whose body is yet to be read; what ends before its end raises Transient.

    Args:
        passed: statuses besides 200 that the caller understands.

    Raises:
        NotFound: 404.
        Conflict: 412: it is another file than before.
        UserError: another status that waiting does not change, or an answer whose end nobody can tell.
        Transient: there is no answer, or one that may be another later.
    """
    try:
        with web.stream(method, url, headers=dict(headers or {})) as found:
            if found.status_code != 200 and found.status_code not in passed:
                raise _error(found)
            framed = "content-length" in found.headers or "chunked" in found.headers.get(
                "transfer-encoding", ""
            )
            if method != "HEAD" and not framed:
                raise UserError(
                    "the source's answers do not say where they end: half a file would look whole"
                )
            if found.headers.get("content-encoding", "identity") != "identity":
                raise UserError("the source's answer is compressed, which it was not asked for")
            yield found
    except httpx.InvalidURL:
        raise UserError("the address of the source is malformed") from None
    except httpx.TransportError as error:
        raise Transient(f"the source does not answer, or not to the end: {type(error).__name__}") from None


def patiently(work: Callable[[], Found], sleep: Callable[[float], None] = time.sleep) -> Found:
    """Do what a passing failure of the source may end, up to `ATTEMPTS` times. Raises what the last did."""
    for attempt in range(1, ATTEMPTS):
        try:
            return work()
        except Transient as error:
            asked = error.where.get("retry_after", "")
            wait = float(asked) if asked.isdecimal() else 0.25 * 2**attempt
            if wait > LONGEST_WAIT_S:
                raise
            sleep(wait * random.uniform(1.0, 1.2))  # noqa: S311
    return work()


def changed() -> Conflict:
    """The error of a file that is another one than was listed."""
    return Conflict("a file changed since it was listed", fix="It is read again by the next run")


def _error(found: httpx.Response) -> PulseError:
    status = found.status_code
    if status == 404:
        return NotFound("the source has nothing under this path", status=status)
    if status == 412:
        return changed()
    if status >= 500 or status in _BUSY:
        return Transient(
            "the source is busy", status=status, retry_after=found.headers.get("retry-after", "")[:9]
        )
    if 300 <= status < 400:
        return UserError("the source answers with a redirect, and none is followed", status=status)
    return UserError("the source refuses the request", fix="An operator checks its address", status=status)
