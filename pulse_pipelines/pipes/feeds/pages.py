"""Pages of a feed, by the protocol of docs/entities.md: NDJSON after a continuation, and where to go on."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from pulse_pipelines.domain.pipe_sources import Feed
from pulse_pipelines.pipes import web
from pulse_pipelines.pipes.web import Site
from pulse_resources.errors import Conflict, UserError

LIMIT = 1_000
"""Versions of a page, and lines, at most."""
LONGEST_PAGE = 64 * 1024 * 1024
MOST_EMPTY = 10_000
"""Pages without a version in a row, after which a feed is taken for one without an end."""
MOST = 1_000_000
"""Versions after which a run ends that goes on from an earlier one: the next goes on after them."""
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


def site_of(address: str, feed: Feed) -> tuple[Site, str]:
    """The site of a feed, and its URL. Raises UserError: the address is malformed."""
    found = web.site(address)
    return found, f"{found.base}{feed.feed.replace(' ', '%20')}"


def page(client: httpx.Client, url: str, since: str | None, limit: int = LIMIT) -> Page:
    """Read a page; tried again while the service is busy.

    Raises:
        Conflict: the log is another one than that of the continuation.
        NotFound, UserError: the service refuses the request, does not speak the protocol, or a page is too
            large, or has more than `LIMIT` lines.
        Transient: it does not answer.
    """
    return web.patiently(lambda: _page(client, url, since, limit))


def pages(client: httpx.Client, url: str, since: str | None, most: int) -> Iterator[Page]:
    """Pages after a continuation, up to the end of the feed, or to where at least `most` versions are read.

    Raises:
        UserError: the feed has no end, as far as anybody can see; also of its start, if it has `most`.
        Conflict, NotFound, Transient: as `page`.
    """
    start, seen, empty, count = since, {since}, 0, 0
    while (found := page(client, url, since)).following != since:
        yield found
        count += len(found.lines)
        empty = 0 if found.lines else empty + 1
        since = found.following
        if since in seen:
            raise UserError("the feed goes round in a circle: a Pulse-Since comes again")
        if empty > MOST_EMPTY:
            raise UserError(f"the feed had no version in {MOST_EMPTY:,} pages, and does not end")
        if count >= most:
            if start is None:
                raise UserError(f"the feed has {most:,} versions, and does not end")
            return
        seen.add(since)
    if found.lines:
        raise UserError("the feed has versions after which it does not go on: Pulse-Since stays the same")
    yield found


def _page(client: httpx.Client, url: str, since: str | None, limit: int) -> Page:
    asked: dict[str, Any] = {"limit": limit} | ({} if since is None else {"since": since})
    with web.answer(client, "GET", str(httpx.URL(url, params=asked)), passed=(409,)) as found:
        if found.status_code == 409:
            raise Conflict(
                "the feed's log begins anew: its versions have other places now",
                fix="The next run brings all entities",
            )
        following = found.headers.get(NEXT, "")
        if not _TOKEN.fullmatch(following):
            raise UserError("the source is no feed of entities: its answers have no valid Pulse-Since")
        body, ends = bytearray(), 0
        for piece in web.paced(found.iter_raw()):
            body += piece
            ends += piece.count(b"\n")
            if len(body) > LONGEST_PAGE:
                raise UserError(f"a page of the feed has more than {LONGEST_PAGE:,} bytes")
            if ends > LIMIT:  # empty ones too: a line takes 45 bytes of memory beside its own
                raise UserError(
                    f"a page of the feed has more than {LIMIT:,} lines",
                    fix="The service must heed the limit that it is asked for",
                )
    return Page(tuple(line for line in bytes(body).split(b"\n") if line.strip()), following)
