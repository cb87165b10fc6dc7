"""Sinks that are services: a tenant's dataset is pushed into another's, by the chain that is documented."""

import gzip
import json
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from support.entities import as_model, entity, make_entities, pages
from support.faults import AtPoint, often
from support.forked import forked
from support.here import ingest_here as ingest
from support.http import Api
from support.ingest import Owner, make_owner
from support.pipes import settle

from chaos.sources import SOURCE, stored_source
from chaos.waiting import PATIENCE_S, wait
from pulse_pipelines import pipes, registry
from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.syncs import SyncState
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import syncs
from pulse_pipelines.pipes import web
from pulse_pipelines.pipes.addresses import url
from pulse_pipelines.pipes.sinks import http, push, reading, run as sink_run
from pulse_pipelines.pipes.sinks.http import Service
from pulse_pipelines.pipes.sinks.run import deliver
from pulse_pipelines.pipes.turns import Turn
from pulse_pipelines.registry import keys
from pulse_resources.errors import PulseError, Transient, UserError
from pulse_resources.settings import PipeSettings, Settings, load_settings, override_settings

PIPE: dict[str, Any] = {"pipe": "out", "from": "countries", "to": SOURCE}
POINTS = ("push.before_request", "push.answered", "push.confirmed")


@pytest.fixture
def owner(stack: Settings) -> Owner:
    owner = make_owner()
    make_entities(owner)
    return owner


@pytest.fixture
def other(owner: Owner, api: Api) -> Iterator[Owner]:
    """Whom the owner's pipe `out` pushes to."""
    other = make_owner()
    make_entities(other)
    syncs.allow(other.tenant, "countries", 1)
    key = keys.issue_key(other.tenant, "pushed", [KeyScope.COLLECT]).text
    place = api.url.removeprefix("http://")
    with stored_source(owner.tenant, f"http://:{quote(key, '')}@{place}/v1/datasets/countries/entities"):
        pipes.create(owner.tenant, definition(PIPE))
        yield other


def write(owner: Owner, *entities: tuple[str, dict[str, Any]]) -> None:
    owner.send(*(entity(key, **properties) for key, properties in entities))
    ingest(owner)


def in_small_requests(tenant: Tenant, name: str) -> None:
    """A run of requests with one entity each."""
    reading.FIRST = 2
    push.BYTES = 1
    deliver(tenant, name)


def latest(owner: Owner) -> dict[str, Any]:
    return {key: content for key, content in dict(as_model(pages(owner))).items() if content is not None}


def states(other: Owner) -> list[tuple[bool, str, int]]:
    listed = syncs.list_syncs(other.tenant, "countries")
    return [(sync.is_full, sync.state, sync.parts) for sync in reversed(listed)]


def test_existing_and_changed_entities_reach_the_service(owner: Owner, other: Owner) -> None:
    write(other, ("old", {"name": "it goes"}))
    write(
        owner, ("A", {"name": "é", "tags": ["x"]}), ("B", {"people": 1}), ("B", {"_deleted": True}), ("C", {})
    )
    run = deliver(owner.tenant, "out")
    assert (run.is_full, run.counts.upserted, run.counts.deleted) == (True, 2, 1)
    settle(other)
    assert latest(other) == latest(owner) == {"A": {"name": "é", "tags": ["x"]}, "C": {}}
    write(owner, ("A", {"_deleted": True}), ("C", {"people": 3}), ("C", {"people": 4}))
    assert not deliver(owner.tenant, "out").is_full
    settle(other)
    assert latest(other) == latest(owner) == {"C": {"people": 4}}
    assert states(other) == [(True, SyncState.DONE, 1), (False, SyncState.DONE, 1)]
    deliver(owner.tenant, "out")
    assert len(states(other)) == 2, "nothing is new"
    pipe = pipes.find(owner.tenant, "out")
    place = f"{registry.current_log(owner.tenant, 'countries').generation}-7"
    assert (pipe.behind, pipe.error, pipe.position) == (0, None, place)


@pytest.mark.parametrize("point", often(POINTS, "push.answered"))
@pytest.mark.parametrize(
    "occurrence", [2, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 3))]
)
def test_a_run_continues_the_chain_of_a_killed_run(
    owner: Owner, other: Owner, point: str, occurrence: int
) -> None:
    write(owner, *((f"C{n}", {"people": n}) for n in range(3)))
    forked(in_small_requests, owner.tenant, "out", PULSE_FAIL_POINT=f"{point}@{occurrence}").killed()
    write(owner, ("C0", {"people": 9}))
    deliver(owner.tenant, "out")
    settle(other)
    assert latest(other) == latest(owner)
    log = as_model(pages(other))
    assert len(log) == len({str(entry) for entry in log}) == 4, "no version comes twice"
    assert {state for _, state, _ in states(other)} == {SyncState.DONE}
    assert [is_full for is_full, _, _ in states(other)].count(True) == 1


def test_a_delivery_gives_way_between_requests_and_continues(
    owner: Owner, other: Owner, at: AtPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = list[Turn]()

    class KnownTurn(Turn):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            turns.append(self)

    monkeypatch.setattr(sink_run, "Turn", KnownTurn)
    monkeypatch.setattr(reading, "FIRST", 2)
    monkeypatch.setattr(push, "BYTES", 1)
    write(owner, *((f"C{n}", {"people": n}) for n in range(3)))
    one_waits = threading.Event()

    def let_one_wait() -> None:
        one_waits.set()
        wait(lambda: turns[-1].gives_way, "it is not to give way")

    at("push.confirmed", let_one_wait)
    settings = PipeSettings(turn_seconds=0, watch_seconds=0.05)
    with override_settings(load_settings().model_copy(update={"pipes": settings})):
        gave_way = deliver(owner.tenant, "out", one_waits.is_set)
    assert (gave_way.gave_way, gave_way.counts.versions) == (True, 1)
    assert [pipe.name for pipe in pipes.due() if pipe.tenant == owner.tenant] == ["out"], (
        "asked for by itself"
    )
    assert pipes.find(owner.tenant, "out").error is None
    deliver(owner.tenant, "out")
    settle(other)
    assert latest(other) == latest(owner)
    assert states(other) == [(True, SyncState.DONE, 3)], "one chain"
    assert not [pipe for pipe in pipes.due() if pipe.tenant == owner.tenant]


@pytest.mark.slow
def test_a_chain_broken_by_another_sender_starts_again(
    owner: Owner, other: Owner, at: AtPoint, api: Api
) -> None:
    write(owner, ("A", {"people": 1}), ("B", {"people": 2}))
    deliver(owner.tenant, "out")
    settle(other)
    key = keys.issue_key(other.tenant, "else", [KeyScope.COLLECT]).text

    def another_begins() -> None:
        parameters = {"is_full": True, "sequence_id": "x", "request_id": "1", "is_first": True}
        with api.client(key) as client:
            place = "/v1/datasets/countries/entities"
            assert client.post(place, params=parameters, json={"_id": "theirs"}).status_code == 202

    pipes.reset(owner.tenant, "out")
    reading.FIRST, push.BYTES, before = 1, 1, (reading.FIRST, push.BYTES)
    try:
        at("push.confirmed", another_begins)
        deliver(owner.tenant, "out")
    finally:
        reading.FIRST, push.BYTES = before
    settle(other)
    assert latest(other) == latest(owner)
    assert [state for _, state, _ in states(other)] == [
        SyncState.DONE,
        SyncState.SUPERSEDED,
        SyncState.SUPERSEDED,
        SyncState.DONE,
    ]


@pytest.mark.slow
def test_refused_entities_are_counted_and_a_page_of_them_stops_the_pipe(owner: Owner, other: Owner) -> None:
    strict = json.dumps({"type": "object", "properties": {"people": {"type": "integer", "maximum": 5}}})
    uri = registry.publish_schema(other.tenant, "strict", strict).schema_uri
    registry.create_dataset(other.tenant, "strict", uri, kind=DatasetKind.ENTITIES)
    address = url(owner.tenant, SOURCE).replace("/countries/", "/strict/")
    with stored_source(owner.tenant, address):
        write(owner, ("A", {"people": 1}), ("B", {"people": 99}))
        counts = deliver(owner.tenant, "out").counts
        assert (counts.upserted, counts.refused) == (1, 1)
        write(owner, ("B", {"people": 98}))
        with pytest.raises(UserError, match="422"):
            deliver(owner.tenant, "out")
        assert pipes.find(owner.tenant, "out").behind == 1
        write(owner, ("B", {"people": 2}))
        deliver(owner.tenant, "out")
    settle(other)
    assert as_model(pages(other, slug="strict")) == [("A", {"people": 1}), ("B", {"people": 2})]


class Answers(BaseHTTPRequestHandler):
    """Gives the answers of a test, and records the requests."""

    answers: list[tuple[int, dict[str, str], bytes]]
    requests: list[tuple[str, dict[str, str], bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.requests.append((self.path, dict(self.headers), body))
        status, headers, answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(answer))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


class Unmeasured(Answers):
    """Answers end with their connections."""

    def send_header(self, keyword: str, value: str) -> None:
        if keyword != "Content-Length":
            super().send_header(keyword, value)


@contextmanager
def service(
    *answers: tuple[int, dict[str, str], bytes], base: type[Answers] = Answers
) -> Iterator[tuple[str, type[Answers]]]:
    """An address of a service, and its handler, which records the requests."""
    handler = type("Handler", (base,), {"answers": list(answers), "requests": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}", handler
        server.shutdown()


def test_a_service_that_is_busy_is_asked_again_and_no_other_place_ever() -> None:
    waited: list[float] = []
    accepted = (202, {}, b'{"refused": 1}')
    with service((503, {"Retry-After": "7"}, b""), (502, {}, b""), accepted) as (place, handler):
        with Service(f"http://u:s3cret@{place}/x?a=b", waited.append) as sink:
            assert sink.push({"request_id": "1-2"}, b"{}").refused == 1
        requested, backed_off = waited
        assert 7 <= requested <= 8.4, "as long as it asks for, and not all at the same moment"
        assert 1 <= backed_off <= 1.2
        assert [path for path, _, _ in handler.requests] == ["/x?a=b&request_id=1-2"] * 3
        assert handler.requests[0][1]["Authorization"].startswith("Basic ")
    with service((200, {}, b"")) as (elsewhere, idle):
        with (
            service((307, {"Location": f"http://{elsewhere}/"}, b"")) as (place, _),
            pytest.raises(UserError, match="307"),
            Service(f"http://:s3cret@{place}/") as sink,
        ):
            sink.push({}, b"{}")
        assert idle.requests == []


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        (b'{"accepted": [{}], "refused": 2}', 2),
        (b'{"refused": -1}', 0),
        (b'{"refused": 1, "dead_lettered": 2}', 3),
        (b'{"refused": 3, "verdicts": [' + b'{"id": "x"},' * 400_000 + b"{}]}", 3),
        (b'{"refused": 2.0, "dead_lettered": null}', 2),
        (b'{"refused": [ ], "dead_lettered": 1}', 1),
        (b'\xef\xbb\xbf{"refused": 2}', 2),
        (b"[2]", 0),
        (b"taken", 0),
        (b"", 0),
        (b'{"x": ' + b"[" * 100_000, 0),
        (b'{"refused": 2, "x": [' + b"{}," * 1_000_000 + b"{}]}", 2),
    ],
)
def test_only_the_count_of_refused_entities_is_decoded_from_an_answer(body: bytes, refused: int) -> None:
    with service((200, {}, body)) as (place, _), Service(f"http://{place}/") as sink:
        tracemalloc.start()
        try:
            assert sink.push({}, b"{}").refused == refused
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 16 * 2**20


@pytest.mark.parametrize(
    "body",
    [
        b'{"verdicts": [' + b"{}," * 1_500_000 + b'{}], "refused": 2}',
        b'{"of": "a [list]", "refused": 2, "verdicts": [' + b"{}," * 1_500_000 + b"{}]}",
        b"taken " * 1_000_000,
    ],
)
def test_a_long_answer_with_a_count_only_at_its_end_is_an_error(body: bytes) -> None:
    with (
        service((200, {}, body)) as (place, _),
        Service(f"http://{place}/") as sink,
        pytest.raises(UserError, match="does not say at its start how many"),
    ):
        sink.push({}, b"{}")


def test_a_slowly_trickling_answer_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte per second kept a place of all tenants' sinks for 18 hours: time was looked at every 64 KiB."""
    disconnected = threading.Event()

    class Trickles(Answers):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            try:
                while not disconnected.wait(0.01):
                    self.wfile.write(b" ")
            except ConnectionError:
                disconnected.set()

    monkeypatch.setattr(http, "TIMEOUT_S", 0.1)
    with ThreadingHTTPServer(("127.0.0.1", 0), Trickles) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with (
            Service(f"http://127.0.0.1:{server.server_address[1]}/") as sink,
            pytest.raises(UserError, match="does not say at its start how many"),
        ):
            sink.push({}, b"{}")
        assert disconnected.wait(PATIENCE_S)
        server.shutdown()


@pytest.mark.parametrize(
    "body",
    [
        b'{"refused": 1',
        b'{"refused": 1, "seconds": NaN}',
        b'{"dead_lettered": 1}\n{"dead_lettered": 2}',
        b'\xef\xbb\xbf {"x": "\\ud800", "refused": 1}',
    ],
)
def test_an_answer_with_a_count_that_is_not_json_confirms_none(body: bytes) -> None:
    with (
        service((200, {}, body)) as (place, _),
        Service(f"http://{place}/") as sink,
        pytest.raises(UserError, match="is not JSON"),
    ):
        sink.push({}, b"{}")


@pytest.mark.parametrize("cut", [b'{"accep', b'{"accepted": [{"_id": "A"}, ', b'{"accepted": 3, "ref'])
def test_an_answer_whose_end_is_lost_with_its_connection_is_asked_for_again(cut: bytes) -> None:
    """An answer of HTTP/1.0 may have no length: one cut before its count looked like one without refusals."""

    answers = (200, {}, cut), (200, {}, b'{"accepted": 3, "refused": 2}')
    with (
        service(*answers, base=Unmeasured) as (place, handler),
        Service(f"http://{place}/", lambda _: None) as sink,
    ):
        assert sink.push({}, b"{}").refused == 2
    assert len(handler.requests) == 2


@pytest.mark.parametrize("number", [b"true", b'"2"', b"1.5", b'[{"_id": "A"}]', b"{}", b"1e400", b"9" * 20])
def test_an_answer_that_does_not_say_how_many_were_refused_confirms_none(number: bytes) -> None:
    answer = (200, {}, b'{"accepted": 3, "dead_lettered": %s}' % number)
    with (
        service(answer) as (place, _),
        Service(f"http://{place}/") as sink,
        pytest.raises(UserError, match="not count entities in its member dead_lettered"),
    ):
        sink.push({}, b"{}")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "Sun, 29 Nov 2026 03:00:09 GMT", "Date": "Sun, 29 Nov 2026 03:00:00 GMT"}, 9),
        ({"Retry-After": "Sun, 29 Nov 2026 02:00:00 GMT", "Date": "Sun, 29 Nov 2026 03:00:00 GMT"}, 0),
        ({"Retry-After": "Sun, 29 Nov 9999 02:00:00 GMT"}, None),
        ({"Retry-After": "999999999999999999"}, None),
        ({"Retry-After": "soon"}, 0.5),
        ({"Retry-After": "²"}, 0.5),
        ({}, 0.5),
    ],
)
def test_retry_after_is_read_in_both_forms(headers: dict[str, str], seconds: float | None) -> None:
    waited: list[float] = []
    answers = [httpx.Response(429, headers=httpx.Headers(headers, encoding="utf-8"))]

    def push() -> None:
        if answers:
            raise web.busy("not now", answers.pop())

    if seconds is None:  # longer than a run waits
        with pytest.raises(Transient):
            web.patiently(push, waited.append)
    else:
        web.patiently(push, waited.append)
        assert seconds <= waited[0] <= 1.2 * seconds


def test_an_answer_is_not_asked_for_in_a_compressed_form() -> None:
    packed = (202, {"Content-Encoding": "gzip"}, gzip.compress(b'{"refused": 1}'))
    with service(packed) as (place, handler), Service(f"http://{place}/") as sink:
        with pytest.raises(UserError, match="compressed"):
            sink.push({}, b"{}")
        assert handler.requests[0][1]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((401, {}, b"s3cret"), UserError),
        ((422, {}, b"s3cret"), UserError),
        ((200, {"Content-Type": "Text/HTML; charset=utf-8"}, b"<html>s3cret"), UserError),
        ((503, {"Retry-After": "99999"}, b"s3cret"), Transient),
        ((500, {}, b"s3cret"), Transient),
        ((202, {"Content-Length": "99"}, b"s3cret"), Transient),
    ],
)
def test_no_error_contains_a_secret(
    answer: tuple[int, dict[str, str], bytes], kind: type[PulseError]
) -> None:
    with service(answer) as (place, _):
        with pytest.raises(kind) as raised, Service(f"http://:s3cret@{place}/", lambda _: None) as sink:
            sink.push({}, b"{}")
        assert "s3cret" not in str(raised.value)
        assert place not in str(raised.value)


def test_an_address_of_the_other_kind_is_refused(owner: Owner) -> None:
    for address, members, why in (
        ("host=db password=s3cret", PIPE, "does not begin with http"),
        ("http://:s3cret@host/", PIPE | {"table": "x"}, "leads to a service"),
    ):
        with stored_source(owner.tenant, address), pytest.raises(UserError, match=why) as raised:
            pipes.create(owner.tenant, definition(members))
        assert "s3cret" not in str(raised.value)
    with pytest.raises(UserError, match="not a URL"):
        Service("http://[:s3cret")
