"""Pages of a feed, by the protocol of docs/entities.md: NDJSON and the next continuation."""

import re
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx

from pulse_pipelines.domain.charsets import MARKS
from pulse_pipelines.domain.pipe_sources import Feed
from pulse_pipelines.pipes import web
from pulse_pipelines.pipes.web import Site
from pulse_resources.errors import Conflict, Transient, UserError

LIMIT = 1_000
"""Versions of a page, and lines, at most."""
LONGEST_PAGE = 64 * 1024 * 1024
MOST_EMPTY = 10_000
"""Pages without a version in a row, after which a feed is taken for one without an end."""
MOST = 1_000_000
"""Versions after which a run that continues an earlier one ends: the next run continues there."""
MOST_OF_ALL = 20_000_000
"""Versions of a feed that is read from its start, after which it is taken for one without an end."""
NEXT = "pulse-since"
_TOKEN = re.compile(r"[A-Za-z0-9_.~+/=:-]{1,200}")


@dataclass(frozen=True)
class Page:
    """A page of a feed."""

    lines: tuple[bytes, ...]
    following: str
    """The continuation after it."""
    is_last: bool = False
    """Whether the feed ends with it for now."""


class _GivesWay(Exception):  # noqa: N818 - handled below
    """The run gives up its place in the midst of a page."""


def site_of(address: str, feed: Feed) -> tuple[Site, str]:
    """The site of a feed, and its URL. Raises UserError: the address is malformed."""
    site = web.site(address)
    return site, f"{site.base}{feed.feed.replace(' ', '%20')}"


def page(
    client: httpx.Client,
    url: str,
    since: str | None,
    limit: int = LIMIT,
    gives_way: Callable[[], bool] = lambda: False,
) -> Page:
    """Read a page; tried again while the service is busy.

    Raises:
        Conflict: the log is another one than that of the continuation.
        NotFound, UserError: the service refuses the request, does not speak the protocol, or a page is too
            large, or has more than `LIMIT` lines.
        Transient: it does not answer.
    """
    return web.patiently(lambda: _page(client, url, since, limit, gives_way))


def pages(
    client: httpx.Client,
    url: str,
    since: str | None,
    most: int,
    gives_way: Callable[[], bool] = lambda: False,
) -> Iterator[Page]:
    """Pages after a continuation, up to the end of the feed, or to where at least `most` versions are read.

    Args:
        gives_way: whether to end after the last page that is whole, in the midst of the next one, too.

    Raises:
        UserError: the feed does not seem to end; a feed read from its start also if it has `most` versions.
        Conflict, NotFound: as `page`.
        Transient: as `page`; or it gives way, and no page is whole.
    """
    start, passed, empty, count, began = since, {since}, 0, 0, time.monotonic()
    while True:
        try:
            current = page(client, url, since, gives_way=gives_way)
        except _GivesWay as end:
            if since != start:
                return
            raise Transient(
                "other tenants' pipes wait, and the source has not sent a page of the feed",
                bytes=end.args[0],
                seconds=round(time.monotonic() - began),
            ) from None
        if current.following == since:
            break
        yield current
        count += len(current.lines)
        empty = 0 if current.lines else empty + 1
        since = current.following
        if since in passed:
            raise UserError("the feed repeats itself: a Pulse-Since comes again")
        if empty > MOST_EMPTY:
            raise UserError(f"the feed had no version in {MOST_EMPTY:,} pages, and does not end")
        if count >= most:
            if start is None:
                raise UserError(f"the feed has {most:,} versions, and does not end")
            return
        passed.add(since)
    if current.lines:
        raise UserError("the feed does not continue after its versions: Pulse-Since stays the same")
    yield replace(current, is_last=True)


def _page(
    client: httpx.Client, url: str, since: str | None, limit: int, gives_way: Callable[[], bool]
) -> Page:
    if gives_way():
        raise _GivesWay(0)
    parameters: dict[str, Any] = {"limit": limit} | ({} if since is None else {"since": since})
    with web.answer(client, "GET", str(httpx.URL(url, params=parameters)), passed=(409,)) as response:
        if response.status_code == 409:
            raise Conflict(
                "the feed's log has started again: its versions have other positions now",
                fix="The next run reads all entities",
            )
        following = response.headers.get(NEXT, "")
        if not _TOKEN.fullmatch(following):
            raise UserError("the source is not a feed of entities: its answers have no valid Pulse-Since")
        web.refuse_charset(response.headers.get("content-type"))
        body, ends = bytearray(), 0
        for piece in web.paced(response.iter_raw()):
            body += piece
            if gives_way():
                raise _GivesWay(len(body))
            ends += piece.count(b"\n")
            if len(body) > LONGEST_PAGE:
                raise UserError(f"a page of the feed has more than {LONGEST_PAGE:,} bytes")
            if ends > LIMIT:  # empty ones too: a line takes 45 bytes of memory beside its own
                raise UserError(
                    f"a page of the feed has more than {LIMIT:,} lines",
                    fix="The service must respect the requested limit",
                )
    if body.startswith(MARKS):
        raise UserError(
            "the source sends text that its first bytes mark as UTF-16 or UTF-32", fix="It has to be UTF-8"
        )
    lines = bytes(body).removeprefix(BOM_UTF8).split(b"\n")
    return Page(tuple(line for line in lines if line.strip()), following)
