"""Web: HTTP requests to the address of a source or sink. Redirects are not followed."""

import math
import random
import ssl
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import httpx
from httpx import Auth

from pulse_pipelines.domain.charsets import foreign
from pulse_pipelines.pipes.slow_answers import limit_answers
from pulse_resources.errors import Conflict, NotFound, PulseError, Transient, UserError

TIMEOUT = httpx.Timeout(60, connect=10)
ATTEMPTS = 5
LONGEST_WAIT_S = 60.0
PACE_S, PACE_BYTES = 30.0, 64 * 1024
"""Seconds in which so many bytes of an answer have to come, again and again: its reader holds a place."""
BEARER = "bearer"
"""User name in an address whose password is a token."""
_BUSY = (408, 425, 429)
_DIGITS = 9
"""Most digits of a count of seconds that are read: more are years."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Site:
    """A web address, without a slash at the end of its path, and what its requests are authorized with."""

    base: str
    auth: Auth | None = field(default=None, repr=False)


def parsed(address: str) -> tuple[SplitResult, Auth | None]:
    """An address without credentials, and these: a token if the user is `bearer` or absent, else a password.

    Raises:
        ValueError: it is malformed, has no host, or a token that no header can hold.
    """
    parts = urlsplit(address)
    host, port = parts.hostname, parts.port
    if not host:
        raise ValueError("no host")
    place = f"[{host}]" if ":" in host else host
    bare = parts._replace(netloc=place if port is None else f"{place}:{port}", fragment="")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if user not in ("", BEARER):
        return bare, httpx.BasicAuth(user, password)
    if not (password.isascii() and (password.isprintable() or not password)):
        raise ValueError("the token is not valid in a header")
    return bare, _Bearer(password) if password else None


class _Bearer(httpx.Auth):
    def __init__(self, token: str) -> None:
        self._header = f"Bearer {token}"

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["Authorization"] = self._header
        yield request


def site(address: str) -> Site:
    """Parse an address. Raises UserError: it is malformed; the error omits it."""
    try:
        bare, auth = parsed(address)
    except ValueError:
        raise UserError("the address of the source is malformed") from None
    if bare.scheme not in ("http", "https") or bare.query or urlsplit(address).fragment:
        raise UserError("the address of the source is not the web address of a folder, without a query")
    return Site(bare._replace(path=bare.path.rstrip("/")).geturl(), auth)


@contextmanager
def client(of: Site) -> Iterator[httpx.Client]:
    """Client with the credentials of a site."""
    with connected(of.auth, {"Accept-Encoding": "identity"}) as connection:
        yield connection


def connected(auth: Auth | None, headers: Mapping[str, str]) -> httpx.Client:
    """Client that follows no redirect, and takes neither proxies nor passwords from the environment.

    An answer that is too slow raises `httpx.ReadTimeout` (see `pipes.slow_answers`).
    It trusts the machine's certificate authorities, or those in the file that SSL_CERT_FILE names.
    """
    transport = httpx.HTTPTransport(verify=ssl.create_default_context(), trust_env=False)
    http = httpx.Client(
        headers=dict(headers),
        auth=auth,
        timeout=TIMEOUT,
        follow_redirects=False,
        trust_env=False,
        transport=transport,
    )
    limit_answers(http, transport)
    return http


def refuse_charset(content_type: str | None) -> None:
    """Raise UserError for text in another charset: as UTF-8 it would be another text."""
    if (charset := foreign(content_type or "")) is not None:
        raise UserError(
            f"the source sends text in the charset {charset!r}",
            fix="It has to be UTF-8; if it is, correct the charset of its Content-Type",
        )


@contextmanager
def answer(
    web: httpx.Client,
    method: str,
    url: str,
    headers: Mapping[str, str] | None = None,
    *,
    passed: tuple[int, ...] = (),
) -> Iterator[httpx.Response]:
    """A successful answer, whose body is still to be read; one that is cut off raises Transient.

    Args:
        passed: statuses besides 200 that the caller understands.

    Raises:
        NotFound: 404.
        Conflict: 412: it is another file than before.
        UserError: another status that waiting does not change, or an answer without a stated end.
        Transient: there is no answer, or one that may be another later.
    """
    try:
        with web.stream(method, url, headers=dict(headers or {})) as response:
            if response.status_code != 200 and response.status_code not in passed:
                raise _error(response)
            framed = "content-length" in response.headers or "chunked" in response.headers.get(
                "transfer-encoding", ""
            )
            if method != "HEAD" and not framed:
                raise UserError(
                    "the source's answers do not state where they end: half a file would look complete"
                )
            if response.headers.get("content-encoding", "identity") != "identity":
                raise UserError("the source's answer is compressed, although that was not requested")
            yield response
    except httpx.InvalidURL:
        raise UserError("the address of the source is malformed") from None
    except httpx.TransportError as error:
        raise unreachable("source", error) from None


def paced(pieces: Iterable[bytes], clock: Callable[[], float] = time.monotonic) -> Iterator[bytes]:
    """Pieces of an answer, while they arrive fast enough. Raises Transient if they trickle.

    The time in which the caller works on a piece is not the source's.
    """
    waited_s, size, since = 0.0, 0, clock()
    for piece in pieces:
        waited_s += clock() - since
        size += len(piece)
        if waited_s > PACE_S:
            if size < PACE_BYTES:
                raise Transient(
                    f"the source sends less than {PACE_BYTES:,} bytes in {PACE_S:.0f} s",
                    bytes=size,
                    seconds=round(waited_s),
                )
            waited_s, size = 0.0, 0
        yield piece
        since = clock()


def patiently(work: Callable[[], Result], sleep: Callable[[float], None] = time.sleep) -> Result:
    """Try work that can fail for a moment, up to `ATTEMPTS` times. Raises the error of the last attempt."""
    for attempt in range(1, ATTEMPTS):
        try:
            return work()
        except Transient as error:
            wait = float(error.where.get("retry_after", 0.25 * 2**attempt))
            if wait > LONGEST_WAIT_S:
                raise
            sleep(wait * random.uniform(1.0, 1.2))  # noqa: S311
    return work()


def unreachable(noun: str, error: httpx.HTTPError) -> PulseError:
    """The error of a server that gave no answer, or half of one; its text may have the address."""
    if isinstance(error, httpx.ConnectError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return UserError(
            f"the certificate of the {noun} is not one that Pulse trusts",
            fix="An operator makes its authority known to the machine, or names its file in SSL_CERT_FILE",
        )
    return Transient(f"the {noun} does not answer, or not to the end: {type(error).__name__}")


def may_pass(status: int) -> bool:
    """Whether a refused request may succeed later."""
    return status >= 500 or status in _BUSY


def busy(message: str, response: httpx.Response) -> Transient:
    """The error of a request that may succeed later; `patiently` waits as long as the answer requests."""
    seconds = _retry_after(response.headers)
    when = {} if seconds is None else {"retry_after": str(seconds)}
    return Transient(message, status=response.status_code, **when)


def _retry_after(headers: httpx.Headers) -> int | None:
    """Seconds that an answer asks to wait, in either form; None: it does not say."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdecimal():
        return int(text[:_DIGITS])
    moment, sent = _moment(text), _moment(headers.get("date", "")) or datetime.now(UTC)
    return None if moment is None else max(0, math.ceil((moment - sent).total_seconds()))


def _moment(text: str) -> datetime | None:
    """A moment as HTTP writes it."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def changed() -> Conflict:
    """The error of a file that changed since it was listed."""
    return Conflict("a file changed since it was listed", fix="It is read again by the next run")


def _error(response: httpx.Response) -> PulseError:
    status = response.status_code
    if status == 404:
        return NotFound(
            "the source has nothing under this path",
            fix="Correct the path that the pipe names below the address of its source",
            status=status,
        )
    if status == 412:
        return changed()
    if may_pass(status):
        return busy("the source is busy", response)
    if 300 <= status < 400:
        return UserError("the source answers with a redirect, and none is followed", status=status)
    return UserError("the source refuses the request", fix="An operator checks its address", status=status)
