"""Load: the versions of a feed after the last settled continuation, in one Spark task."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from pulse_pipelines.domain.entities import DELETED, ID
from pulse_pipelines.domain.pipe_sources import Feed
from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes import addresses, fence, progress, schema_inference, web
from pulse_pipelines.pipes.feeds import pages
from pulse_pipelines.pipes.fence import RunOf
from pulse_pipelines.pipes.publishing import Loaded, publish
from pulse_pipelines.pipes.read_plan import ReadPlan
from pulse_pipelines.pipes.registry import Pipe
from pulse_pipelines.pipes.rows import Event, Maker, members
from pulse_resources import postgres
from pulse_resources.errors import Conflict, UserError
from pulse_resources.process.faults import fail_point

TRUE = b"true"


@dataclass(frozen=True)
class FeedTask:
    """A feed from a continuation on, for one Spark task."""

    address: str = field(repr=False)
    topic: str
    dataset: str
    moment: str
    source: str
    feed: str
    since: str | None
    run: RunOf


def schema(tenant: Tenant, definition: Definition) -> dict[str, Any] | None:
    """The JSON Schema of the entities, from the first page of the feed; None if it shows no property.

    Raises:
        NotFound: the source is not configured, or has no such feed.
        UserError: it is not a feed of entities.
        Transient: the source does not answer.
    """
    feed = cast(Feed, definition.other_end)
    site, url = pages.site_of(addresses.url(tenant, feed.source), feed)
    with web.client(site) as client:
        lines = pages.page(client, url, None, schema_inference.SAMPLE).lines
    rows = map(_first_row, range(1, len(lines) + 1), lines)
    return schema_inference.schema(row for row in rows if not _is_deletion(row))


def _first_row(number: int, line: bytes) -> dict[str, msgspec.Raw]:
    """A row of the first page. Raises UserError: it is none."""
    try:
        return members(line)
    except ValueError as error:
        raise UserError(
            f"the source is not a feed of entities: version {number} of its first page: {error}",
            fix="The service must send a JSON object per line",
        ) from None


@contextmanager
def opened(pipe: Pipe, parallelism: int, *, full: bool) -> Iterator[ReadPlan]:
    """Find where to continue the feed; if its log has started again, read it all, as a full sync.

    Raises:
        NotFound, UserError: the source is no longer configured, or has no such feed.
        Transient: it does not answer, or an earlier run still sends rows.
    """
    run, feed = fence.begin(pipe), cast(Feed, pipe.definition.other_end)
    address = addresses.url(pipe.tenant, feed.source)
    site, url = pages.site_of(address, feed)
    moment = datetime.now(UTC)
    with postgres.tenant_transaction("pulse_pipeline", pipe.tenant.tenant_id) as connection:
        sync = progress.open_sync(connection, pipe.name)
    open_at = None if full or sync is None else _since(sync[1], url, str(pipe.dataset_id))
    since = open_at or (None if full else _since(pipe.position, url, str(pipe.dataset_id)))
    if since is not None:
        with web.client(site) as client:
            try:
                pages.page(client, url, since, 1)
            except Conflict:
                since = None
    fail_point("pipe.looked")
    task = FeedTask(
        address=address,
        topic=pipe.tenant.topic,
        dataset=pipe.dataset,
        moment=moment.isoformat(timespec="microseconds"),
        source=feed.source,
        feed=feed.feed,
        since=since,
        run=run,
    )
    continues = open_at is not None and since is not None
    yield ReadPlan(since is None or continues, pipe.position, moment, load, [task], continues=continues)


def load(task: FeedTask) -> Iterator[Loaded]:
    """Spark task: publishes the versions of a feed up to its end, and returns where it ended.

    Beyond a page it ends early if the run gives up its place.

    Raises:
        Conflict: the feed's log started again meanwhile.
        Fenced: another run has begun.
        NotFound, UserError: the service refuses, or is not a feed of entities.
        Transient: the service or the broker does not answer.
    """
    site, url = pages.site_of(task.address, Feed(task.source, task.feed))
    maker, following, more = Maker(task.dataset, task.moment, (ID,)), "", True

    def read_events() -> Iterator[Event]:
        nonlocal following, more
        count, most = 0, pages.MOST_OF_ALL if task.since is None else pages.MOST
        for page in pages.pages(client, url, task.since, most, hold.gives_way):
            for line in page.lines:
                count += 1
                yield _event(maker, task.feed, count, line)
            following, more = page.following, not page.is_last

    with fence.joined(task.run) as hold, web.client(site) as client:
        loaded = publish(task.topic, hold(read_events()))
    position = f"{_fingerprint(url, str(task.run.dataset_id))} {following}"
    yield Loaded(loaded.rows, loaded.bytes, position, more)


def _event(maker: Maker, feed: str, line: int, text: bytes) -> Event:
    try:
        row = members(text)
    except ValueError as error:
        return maker.refused(text, feed, line, str(error))
    if not _is_deletion(row) and DELETED in row and bytes(row[DELETED]) in (b"false", b"null"):
        del row[DELETED]
    return maker.event(row, feed, line)


def _is_deletion(row: dict[str, msgspec.Raw]) -> bool:
    return DELETED in row and bytes(row[DELETED]) == TRUE


def _since(position: str | None, url: str, dataset: str) -> str | None:
    """The continuation of a position; None if there is none, or it belongs to another feed."""
    of, _, since = (position or "").partition(" ")
    return since if since and of == _fingerprint(url, dataset) else None


def _fingerprint(url: str, dataset: str) -> str:
    return hashlib.blake2b(f"{url} {dataset}".encode(), digest_size=6).hexdigest()
