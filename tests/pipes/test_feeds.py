"""Feeds as sources: one Pulse follows another, and whatever speaks the protocol of entities."""

import json
import tracemalloc
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from support.entities import as_model, entity, make_entities, pages
from support.faults import AtPoint
from support.files import web
from support.here import ingest_here as ingest
from support.http import Api
from support.ingest import Owner, make_owner
from support.pipes import bring, settle

from chaos.sources import SOURCE, stored_source
from chaos.surroundings import TLS
from chaos.waiting import PATIENCE_S
from pulse_pipelines import pipes
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.syncs import SyncState
from pulse_pipelines.entities import syncs
from pulse_pipelines.pipes.feeds import pages as feeds
from pulse_pipelines.registry import keys
from pulse_resources.errors import Conflict, NotFound, UserError

FEED = "/v1/datasets/countries/entities"
PIPE: dict[str, Any] = {"pipe": "planes", "source": SOURCE, "feed": FEED, "dataset": "copies"}


class Service:
    """A service that speaks the protocol, with a log in memory."""

    def __init__(self) -> None:
        self.generation, self.log, self.size = 1, list[dict[str, Any]](), 2
        self.sinces: list[str | None] = []
        self.fails: list[tuple[int, dict[str, str], bytes]] = []

    def add(self, key: str, **properties: Any) -> None:
        self.log.append({"_id": key, "_updated": len(self.log) + 1, "_deleted": False} | properties)

    def __call__(
        self, method: str, path: str, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        if self.fails:
            return self.fails.pop(0)
        query = parse_qs(urlsplit(path).query)
        since = query.get("since", [None])[0]
        self.sinces.append(since)
        generation, after = map(int, (since or f"{self.generation}-0").split("-"))
        if generation != self.generation:
            body = json.dumps({"since": f"{self.generation}-0"}).encode()
            return 409, {"Content-Type": "application/problem+json"}, body
        versions = self.log[after : after + min(self.size, int(query["limit"][0]))]
        body = b"".join(json.dumps(version).encode() + b"\n" for version in versions)
        return 200, {"Pulse-Since": f"{generation}-{after + len(versions)}"}, body


def latest(owner: Owner) -> dict[str, dict[str, Any]]:
    contents = dict(as_model(pages(owner, slug="copies")))
    return {key: content for key, content in contents.items() if content is not None}


def counts(owner: Owner) -> tuple[str, int, int, int, int]:
    sync = syncs.list_syncs(owner.tenant, "copies")[0]
    return sync.state, sync.created, sync.changed, sync.unchanged, sync.deleted


def test_one_pulse_follows_another(owner: Owner, api: Api) -> None:
    theirs = make_owner()
    make_entities(theirs)
    key = keys.issue_key(theirs.tenant, "followed", [KeyScope.READ]).text
    theirs.send(entity("DE", name="Germany", people=83), entity("FR", name="France", area=1.5, tags=["a"]))
    ingest(theirs)
    with stored_source(owner.tenant, api.url.replace("//", f"//bearer:{key}@")):
        pipes.create(owner.tenant, definition(PIPE))
        first = bring(owner)
        assert (first.is_full, first.rows) == (True, 2)
        assert latest(owner) == {
            "DE": {"name": "Germany", "people": 83},
            "FR": {"name": "France", "area": 1.5, "tags": ["a"]},
        }
        assert (bring(owner).rows, counts(owner)[0]) == (0, SyncState.DONE)
        theirs.send(entity("DE", name="Germany", people=84), entity("FR", _deleted=True))
        ingest(theirs)
        again = bring(owner)
        assert (again.is_full, again.rows) == (False, 2)
        assert counts(owner) == (SyncState.DONE, 0, 1, 0, 1)
        assert latest(owner) == {"DE": {"name": "Germany", "people": 84}}
        pipe = pipes.find(owner.tenant, "planes")
        assert key not in json.dumps(pipe.document, default=str)
        assert pipe.document["feed"] == FEED


def test_a_feed_with_a_restarted_log_is_read_whole_and_deletes_absent_entities(owner: Owner) -> None:
    service = Service()
    for name in ("A", "B", "C"):
        service.add(name, x=1)
    with web(service) as address, stored_source(owner.tenant, f"{address}/base/"):
        pipes.create(owner.tenant, definition(PIPE))
        syncs.allow(owner.tenant, "copies", 0.5)
        bring(owner)
        service.generation, service.log = 2, service.log[:2]
        assert bring(owner).is_full
        assert counts(owner) == (SyncState.DONE, 0, 0, 2, 1)
        assert sorted(latest(owner)) == ["A", "B"]
        service.add("D", x=1)
        assert not bring(owner).is_full
        assert service.sinces[-1] == "2-3"


@pytest.mark.slow
def test_a_run_that_failed_halfway_is_repeated_from_where_the_last_one_settled(
    owner: Owner, at: AtPoint
) -> None:
    service = Service()
    service.add("A", x=1)
    with web(service) as address, stored_source(owner.tenant, address):
        pipes.create(owner.tenant, definition(PIPE))
        bring(owner)
        before = pipes.find(owner.tenant, "planes").position
        for name in ("B", "C", "D"):
            service.add(name, x=1)

        def breaks() -> None:
            service.fails += [(403, {}, b"")]

        at("pipe.begun", breaks)
        with pytest.raises(Exception, match="refuses the request"):
            bring(owner)
        settle(owner)
        assert pipes.find(owner.tenant, "planes").position == before
        assert sorted(latest(owner)) == ["A"]
        service.fails += [(503, {"Retry-After": "0"}, b"")]
        bring(owner)
        assert sorted(latest(owner)) == ["A", "B", "C", "D"]
        assert counts(owner)[1] == 3


@pytest.mark.slow
def test_a_feed_with_a_changed_address_is_read_whole(owner: Owner) -> None:
    one, other = Service(), Service()
    one.add("A", x=1)
    other.add("B", x=1)
    with web(one) as address, web(other) as other_address:
        with stored_source(owner.tenant, address):
            pipes.create(owner.tenant, definition(PIPE))
            syncs.allow(owner.tenant, "copies", 1)
            bring(owner)
        with stored_source(owner.tenant, other_address):
            assert bring(owner).is_full
    assert sorted(latest(owner)) == ["B"]


@pytest.mark.slow
def test_an_invalid_line_of_a_feed_is_a_dead_letter(owner: Owner) -> None:
    service = Service()
    service.add("A", x=1)
    with web(service) as address, stored_source(owner.tenant, address):
        pipes.create(owner.tenant, definition(PIPE))
        bring(owner)
        service.log += [{"x": 2}, {"_id": "C", "x": "text", "_deleted": False}]
        bring(owner)
    assert sorted(latest(owner)) == ["A"]
    assert len(owner.dead_letters()) == 2
    letters = [json.loads(letter["payload"]) for letter in owner.dead_letters()]
    assert [letter["context"]["line"] for letter in letters if "context" in letter] == [1]


def stuck(method: str, path: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Pulse-Since": "1-0"}, b'{"_id": "A", "x": 1}\n'


LINE = b'{"_id": "A", "x": 1}\n'


@pytest.mark.parametrize(
    ("answer", "kind", "why"),
    [
        ((302, {"Location": "http://169.254.169.254/"}, b""), UserError, "redirect"),
        ((404, {}, b""), NotFound, "nothing under this path .*Correct the path"),
        ((200, {}, b'{"_id": "A", "x": 1}\n'), UserError, "not a feed of entities"),
        ((200, {"Pulse-Since": "a b"}, b'{"_id": "A", "x": 1}\n'), UserError, "not a feed of entities"),
        ((200, {"Pulse-Since": "1-1"}, b"[1]\n"), UserError, "version 1 of its first page: .*got `array`"),
        ((200, {"Pulse-Since": "1-2"}, LINE + b'{"_id": 1,}\n'), UserError, r"version 2 .*\(char 9\)"),
        ((200, {"Pulse-Since": "1-0"}, b""), UserError, "shows no property"),
        ((409, {}, b""), Conflict, "has started again"),
        ((200, {"Pulse-Since": "1-1"}, b"x" * (65 * 2**20)), UserError, "a page of the feed has more"),
    ],
)
def test_a_pipe_from_an_invalid_feed_is_refused(
    owner: Owner, answer: tuple[int, dict[str, str], bytes], kind: type[Exception], why: str
) -> None:
    with (
        web(lambda *_: answer) as address,
        stored_source(owner.tenant, address),
        pytest.raises(kind, match=why),
    ):
        pipes.create(owner.tenant, definition(PIPE))
    assert not pipes.list_pipes(owner.tenant)


def test_a_page_in_another_charset_is_refused() -> None:
    latin = {"Pulse-Since": "1-1", "Content-Type": "application/x-ndjson; charset=latin1"}
    with (
        web(lambda *_: (200, latin, b"")) as address,
        httpx.Client() as client,
        pytest.raises(UserError, match="the charset 'latin1'"),
    ):
        feeds.page(client, address, None)


def test_a_page_is_text_in_utf_8_with_or_without_its_mark() -> None:
    texts = ["\ufeff".encode() + LINE, LINE.decode().encode("utf-16"), LINE.decode().encode("utf-32")]
    answers = [(200, {"Pulse-Since": "1-1"}, text) for text in texts]
    with web(lambda *_: answers.pop(0)) as address, httpx.Client(verify=TLS) as client:
        assert feeds.page(client, address, None).lines == (LINE.strip(),)
        for _ in texts[1:]:
            with pytest.raises(UserError, match="mark as UTF-16 or UTF-32"):
                feeds.page(client, address, None)


@pytest.mark.parametrize("line", [LINE, b"\n", b"1\n"])
def test_a_page_with_more_lines_than_asked_for_is_refused_before_they_are_made(line: bytes) -> None:
    full = LINE * feeds.LIMIT
    with web(lambda *_: (200, {"Pulse-Since": "1-1"}, full)) as address, httpx.Client(verify=TLS) as client:
        assert len(feeds.page(client, address, None).lines) == feeds.LIMIT
    many = line * (16 * 2**20 // len(line))
    with web(lambda *_: (200, {"Pulse-Since": "1-1"}, many)) as address, httpx.Client(verify=TLS) as client:
        tracemalloc.start()
        try:
            with pytest.raises(UserError, match="more than 1,000 lines"):
                feeds.page(client, address, None)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 2 * len(many)


def turning(method: str, path: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
    after = int(parse_qs(urlsplit(path).query).get("since", ["0-0"])[0].split("-")[1])
    return 200, {"Pulse-Since": f"1-{after % 3 + 1}"}, b'{"_id": "A", "x": 1}\n'


def growing(method: str, path: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
    after = int(parse_qs(urlsplit(path).query).get("since", ["0-0"])[0].split("-")[1])
    return 200, {"Pulse-Since": f"1-{after + 1}"}, b'{"_id": "A", "x": 1}\n'


def test_a_feed_without_an_end_has_one() -> None:
    with (
        web(turning) as address,
        httpx.Client(timeout=PATIENCE_S, verify=TLS) as client,
        pytest.raises(UserError, match="the feed repeats itself"),
    ):
        list(feeds.pages(client, address, None, 1_000))
    with web(growing) as address, httpx.Client(timeout=PATIENCE_S, verify=TLS) as client:
        with pytest.raises(UserError, match="has 3 versions, and does not end"):
            list(feeds.pages(client, address, None, 3))
        read = list(feeds.pages(client, address, "1-7", 3))
        assert [page.following for page in read] == ["1-8", "1-9", "1-10"], "the next run goes on there"


def test_a_feed_whose_versions_do_not_advance_fails(owner: Owner) -> None:
    with web(stuck) as address, stored_source(owner.tenant, address):
        pipes.create(owner.tenant, definition(PIPE))
        with pytest.raises(Exception, match="does not continue"):
            bring(owner)
    assert counts(owner)[0] == SyncState.FAILED
