"""pulse_client over a transport that answers from a script: requests, retries, verdicts and errors."""

import asyncio
import gzip
import json
import math
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from email.utils import format_datetime
from typing import Any
from uuid import UUID

import httpx
import pytest
from support.client import accepted, event, problem, verdict

import pulse_client
from pulse_client import AsyncClient, Client, Retries, SendResult, batches, batching, new_event_id, with_ids
from pulse_client.batching import compress
from pulse_client.delivery import retry_after

Answer = httpx.Response | Exception


class Server:
    """Answers requests from a script, then accepts everything; keeps the requests."""

    def __init__(self, *script: Answer) -> None:
        self.script = list(script)
        self.requests: list[httpx.Request] = []
        self.pauses: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if not self.script:
            return accepted(len(self.events(-1)))
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    def events(self, number: int) -> list[Any]:
        """The events of a request."""
        request = self.requests[number]
        body = gzip.decompress(request.content)
        if request.headers["content-type"] == "application/x-ndjson":
            return [json.loads(line) for line in body.split(b"\n")]
        return list(json.loads(body))

    def client(self, **options: Any) -> Client:
        http = httpx.Client(transport=httpx.MockTransport(self))
        return Client("http://pulse", "the-key", http=http, sleep=self.pauses.append, **options)

    def async_client(self, **options: Any) -> AsyncClient:
        async def sleep(seconds: float) -> None:
            self.pauses.append(seconds)

        http = httpx.AsyncClient(transport=httpx.MockTransport(self))
        return AsyncClient("http://pulse", "the-key", http=http, sleep=sleep, **options)


Send = Callable[..., SendResult]


@pytest.fixture(params=["sync", "async"])
def send(request: pytest.FixtureRequest) -> Send:
    """Sends events with a client of a server; both clients promise the same."""

    def wait(server: Server, events: Any, **options: Any) -> SendResult:
        with server.client(**options) as client:
            return client.send(events)

    def run(server: Server, events: Any, **options: Any) -> SendResult:
        async def main() -> SendResult:
            async with server.async_client(**options) as client:
                return await client.send(events)

        return asyncio.run(main())

    return wait if request.param == "sync" else run


def test_a_request_carries_key_and_events_compressed(send: Send) -> None:
    server = Server()
    moment = datetime(2026, 11, 19, tzinfo=UTC)
    result = send(server, [event("a", text="ü\n"), event("b") | {"timestamp": moment}])
    assert result == SendResult(accepted=2)
    (request,) = server.requests
    assert request.url == "http://pulse/v1/collect"
    assert request.headers["authorization"] == "Bearer the-key"
    assert [line["event_id"] for line in server.events(0)] == ["a", "b"]
    assert server.events(0)[0]["data"] == {"text": "ü\n"}
    assert server.events(0)[1]["timestamp"] == "2026-11-19T00:00:00+00:00"


def test_an_id_is_made_once_for_all_attempts(send: Send) -> None:
    server = Server(httpx.ConnectError("down"), problem(503))
    send(server, event(None))
    ids = [server.events(number)[0]["event_id"] for number in range(3)]
    assert len(set(ids)) == 1
    assert len(ids[0]) == 36


def test_ids_are_ordered_by_time_and_can_be_made_before() -> None:
    (first, second) = with_ids([event(None), event("own")])
    assert second["event_id"] == "own"
    assert first["event_id"][14] == "7"
    assert first["event_id"][:13] <= new_event_id()[:13]


@pytest.mark.parametrize(
    ("bounds", "sizes"),
    [({"max_events": 2}, [2, 2, 1]), ({"max_bytes": 200}, [2, 2, 1]), ({"max_bytes": 1}, [1] * 5), ({}, [5])],
)
def test_requests_are_bounded_by_events_and_bytes(
    bounds: dict[str, int], sizes: list[int], send: Send
) -> None:
    server = Server()
    assert send(server, (event(f"e-{n}") for n in range(5)), **bounds).accepted == 5
    assert [len(server.events(number)) for number in range(len(sizes))] == sizes
    assert len(server.requests) == len(sizes)
    for number in range(len(sizes)):
        size = len(gzip.decompress(server.requests[number].content))
        assert sizes[number] == 1 or size <= bounds.get("max_bytes", math.inf)


def test_verdicts_count_in_the_list_of_the_caller(send: Send) -> None:
    """Over three requests, with an event that cannot be sent among those that were."""
    server = Server(accepted(2, refused=[1]), accepted(2, refused=[0, 1]))
    events = [event("0"), event("1"), event("nan", x=float("nan")), event("3"), event("4"), event("5")]
    result = send(server, events, max_events=2)
    assert (result.accepted, result.refused, result.events) == (2, 4, 6)
    assert [entry.index for entry in result.verdicts] == [1, 2, 3, 4]
    assert [entry.reason for entry in result.verdicts][:2] == ["schema_violation", "undecodable"]
    assert [server.events(n)[0]["event_id"] for n in range(3)] == ["0", "3", "5"]


def test_when_all_are_refused_the_answer_is_a_result_all_the_same(send: Send) -> None:
    body = {"type": "urn:pulse:problem:events-refused", "verdicts": [verdict(0)]}
    result = send(Server(problem(422, body)), event())
    assert (result.refused, result.verdicts[0].pointer) == (1, "/data")


def test_members_that_pulse_ignores_are_summed(send: Send) -> None:
    entry = {"member": "contxt", "events": 1, "detail": "d", "fix": "f"}
    result = send(Server(*(accepted(1, ignored=[entry]) for _ in range(2))), [event()] * 2, max_events=1)
    assert [(ignored.member, ignored.events) for ignored in result.ignored] == [("contxt", 2)]


class SdkEvent:
    """An event as the package `cloudevents` has them, of 1.12 and 2."""

    def __init__(self, attributes: dict[str, Any], data: Any) -> None:
        self.get_attributes = lambda: attributes
        self.get_data = lambda: data


def test_cloudevents_go_in_requests_of_their_own(send: Send) -> None:
    server = Server()
    cloud = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "orders", "data": {"a": 1}}
    moment = datetime(2026, 11, 19, tzinfo=UTC)
    objects = [
        SdkEvent({"id": "2", "source": "/shop", "type": "orders", "time": moment, "subject": None}, {"a": 2}),
        SdkEvent({"specversion": "1.0", "source": "/shop", "type": "orders"}, b'{"a": 3}'),
    ]
    assert send(server, [event(), cloud, *objects, event()]).accepted == 5
    assert [len(server.events(number)) for number in range(3)] == [1, 3, 1]
    assert server.requests[1].headers["content-type"] == "application/cloudevents-batch+json"
    first, second, third = server.events(1)
    assert first == cloud
    assert second["time"] == "2026-11-19T00:00:00+00:00"
    assert "subject" not in second
    assert third["data_base64"] == "eyJhIjogM30="
    assert third["id"]


@pytest.mark.parametrize(
    "wrong",
    [
        b" \n",
        7,
        event(n=float("inf")),
        event(n="\ud800"),
        event(n=object()),
        SdkEvent({"id": "1", "source": "s", "type": "t"}, object()),
    ],
    ids=["empty", "number", "infinity", "surrogate", "object", "cloud event"],
)
def test_an_event_that_cannot_be_sent_keeps_no_other_out(wrong: Any) -> None:
    server = Server()
    with server.client() as client:
        result = client.send([wrong, event()])
    assert (result.accepted, result.refused, result.verdicts[0].index) == (1, 1, 0)
    assert Server().client().send([wrong]) == SendResult(refused=1, verdicts=result.verdicts)


def test_bytes_are_sent_as_they_are_on_one_line() -> None:
    (batch,) = batches([b'{"n": 9007199254740993.0,\n "a": 1}', b"no JSON"])
    assert gzip.decompress(batch.body()) == b'{"n": 9007199254740993.0,\r "a": 1}\nno JSON'


def test_a_line_feed_within_a_text_does_not_become_valid() -> None:
    (batch,) = batches([b'{"s": "a\nb"}'])
    with pytest.raises(json.JSONDecodeError, match="control character"):
        json.loads(gzip.decompress(batch.body()))


def test_compression_is_gzip_with_and_without_isal(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b"events" * 1_000
    fast = compress(body)
    monkeypatch.setattr(batching, "igzip", None)
    assert gzip.decompress(fast) == gzip.decompress(compress(body)) == body


@pytest.mark.parametrize(
    "busy",
    [
        httpx.ConnectError("down"),
        httpx.ReadTimeout("slow"),
        problem(503),
        problem(503, b"Service Unavailable"),
        problem(502, b"<html>a proxy</html>"),
        problem(429, **{"Retry-After": "0"}),
    ],
    ids=str,
)
def test_a_request_is_repeated_after_a_temporary_error(busy: Answer, send: Send) -> None:
    server = Server(busy, busy)
    assert send(server, event()).accepted == 1
    assert len(server.requests) == 3
    first, second = server.pauses
    assert 0.5 <= first <= 0.75
    assert 1.0 <= second <= 1.5


def test_the_client_waits_at_least_for_retry_after(send: Send) -> None:
    server = Server(problem(429, **{"Retry-After": "7"}), problem(503, **{"Retry-After": "2"}))
    send(server, event())
    assert 7 <= server.pauses[0] < 11
    assert 2 <= server.pauses[1] <= 3


def test_a_date_is_waited_for_as_seconds_are() -> None:
    """As proxies write it; one that has passed is no wait."""
    later = format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)
    for when, least, most in ((later, 80_000, 86_400), ("Sun, 06 Nov 1994 08:49:37 GMT", 0, 0)):
        wait = retry_after(problem(429, **{"Retry-After": when}))
        assert wait is not None
        assert least <= wait <= most
    assert retry_after(problem(429, **{"Retry-After": "soon"})) is None


FINAL = [
    (problem(400), pulse_client.InvalidRequest),
    (problem(401), pulse_client.Unauthorized),
    (problem(403), pulse_client.Forbidden),
    (problem(404), pulse_client.InvalidRequest),
    (problem(413, b"<html>a proxy</html>"), pulse_client.TooLarge),
    (problem(429), pulse_client.OverQuota),
    (problem(429, **{"Retry-After": "901"}), pulse_client.OverRate),
    (problem(500), pulse_client.Unavailable),
    (problem(200, b"<html>"), pulse_client.UnexpectedAnswer),
    (problem(202, b"[]"), pulse_client.UnexpectedAnswer),
    (problem(202, {}), pulse_client.UnexpectedAnswer),
    (accepted(2), pulse_client.UnexpectedAnswer),
    (accepted(1, refused=[7]), pulse_client.UnexpectedAnswer),
    (accepted(1, refused=[-1]), pulse_client.UnexpectedAnswer),
    (accepted(1, verdicts=[verdict(0), verdict(0)]), pulse_client.UnexpectedAnswer),
    (accepted(1, verdicts=[verdict(True)]), pulse_client.UnexpectedAnswer),
    (accepted(1, verdicts=7), pulse_client.UnexpectedAnswer),
    (problem(202, {"accepted": -1, "refused": 2, "verdicts": []}), pulse_client.UnexpectedAnswer),
    (
        problem(422, {"type": "urn:pulse:problem:events-refused", "verdicts": 7}),
        pulse_client.UnexpectedAnswer,
    ),
    (problem(301, Location="https://there"), pulse_client.UnexpectedAnswer),
]


@pytest.mark.parametrize(("answer", "error"), FINAL, ids=str)
def test_a_permanent_error_is_raised_without_a_retry(
    answer: httpx.Response, error: type[pulse_client.PulseClientError], send: Send
) -> None:
    server = Server(accepted(1), answer)
    with pytest.raises(pulse_client.PulseClientError) as caught:
        send(server, [event("sent"), event()], max_events=1)
    assert type(caught.value) is error
    assert len(server.requests) == 2
    assert caught.value.partial == SendResult(accepted=1)
    assert caught.value.retry_after == (901 if error is pulse_client.OverRate else None)
    assert caught.value.fix or answer.status_code == 413
    assert "the-key" not in repr(caught.value)


def test_an_error_has_the_problem_of_the_server_and_survives_pickling() -> None:
    with pytest.raises(pulse_client.Unauthorized) as caught:
        Server(problem(401)).client().send(event())
    error = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - its own
    assert str(error) == "slow. later"
    assert (error.status, error.problem, error.request_id) == (401, "urn:pulse:problem:unavailable", "r-1")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (
            "https://pulse.example.com/v1/collect",
            "redirects to https://pulse.example.com/v1/collect. If you trust it, use that address: "
            "https://pulse.example.com",
        ),
        ("/login", "redirects to /login. Is this the address"),
        ("", "does not say where"),
    ],
)
def test_a_redirect_is_named_and_not_followed(target: str, words: str, send: Send) -> None:
    server = Server(problem(308, b"<html>", Location=target))
    with pytest.raises(pulse_client.UnexpectedAnswer) as caught:
        send(server, event())
    assert words in str(caught.value)
    assert len(server.requests) == 1


def test_text_of_others_is_cut_and_controls_nothing(send: Send) -> None:
    text = "\x1b[31m\n" + "x" * 100_000
    for answer in (problem(400, {"detail": text, "fix": text, "type": text}), httpx.ConnectError(text)):
        with pytest.raises(pulse_client.PulseClientError) as caught:
            send(Server(*[answer] * 9), event())
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1_200


def test_events_sent_before_the_iterator_fails_are_reported(send: Send) -> None:
    def events() -> Iterator[dict[str, Any]]:
        yield from (event("0"), event("1"), event("2"))
        raise LookupError("the file has ended")

    server = Server()
    with pytest.raises(LookupError, match="the file has ended") as caught:
        send(server, events(), max_events=1)
    assert caught.value.partial == SendResult(accepted=2)  # type: ignore[attr-defined]
    assert len(server.requests) == 2


@pytest.mark.parametrize("key", ["", " ", "a b", "schlüssel", "key\nX-Other: 1"])
def test_an_invalid_key_is_an_error_that_does_not_contain_it(key: str) -> None:
    with pytest.raises(ValueError, match="the key is empty, or has") as caught:
        Client("http://pulse", key)
    assert not key.strip() or key not in str(caught.value)


class NoTime(datetime):
    """As pandas' NaT, a missing time."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, _: object) -> bool:
        return False

    def __ne__(self, _: object) -> bool:
        return True

    def __str__(self) -> str:
        return "NaT"

    isoformat = __str__  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("data", "pointer", "words"),
    [
        (
            {"a": [{"b/c": "x\ud800"}]},
            "/data/a/0/b~1c",
            "character 2 of the text is half of a surrogate pair",
        ),
        ({"a": {"\udfff": 1}}, "/data/a", "the name of a member has half of a surrogate pair"),
        ({"n": 10**4_300}, "/data/n", "the integer has more than 4,300 digits"),
        ({"n": {math.nan: 1}}, "/data/n", "nan is not a number of JSON, and so not the name of a member"),
        ({"n": math.nan}, "/data/n", "nan is not a number of JSON"),
        ({"n": object()}, "/data/n", "object is not a value of JSON"),
        ({"n": [{"price": Decimal("1.10")}]}, "/data/n/0/price", "Decimal is not a value of JSON: make it"),
        ({"n": b"a"}, "/data/n", "bytes is not a value of JSON"),
        ({"at": NoTime(1, 1, 1)}, "/data/at", "NaT is not a time"),
        (
            {"at": datetime(1, 1, 1, tzinfo=timezone(timedelta(seconds=1172)))},
            "/data/at",
            "outside the years 1 to 9999",
        ),
        ({"n": {(1, 2): 3}}, "/data/n", "the name of a member is a text, not tuple"),
    ],
)
def test_a_value_that_is_not_json_is_named_with_its_pointer(
    data: dict[str, Any], pointer: str | None, words: str
) -> None:
    (refused,) = Server().client().send([event(**data)]).verdicts
    assert refused.pointer == pointer
    assert words in refused.detail
    assert refused.detail.isprintable()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1 + 0.2, "0.30000000000000004"),
        (-0.0, "-0.0"),
        (5e-324, "5e-324"),
        (1e22, "1e+22"),
        (9007199254740993, "9007199254740993"),
        (2**64, "18446744073709551616"),
        (datetime(2026, 1, 1, 10), '"2026-01-01T10:00:00"'),
        (
            datetime(2026, 1, 1, 10, 0, 0, 1, timezone(timedelta(hours=5, minutes=45))),
            '"2026-01-01T10:00:00.000001+05:45"',
        ),
        (datetime(1900, 1, 1, tzinfo=timezone(timedelta(seconds=1172))), '"1899-12-31T23:40:28+00:00"'),
        (date(1, 1, 1), '"0001-01-01"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        ("\U0001f600\u2028", '"\U0001f600\u2028"'),
        ((1, None, True), "[1,null,true]"),
    ],
)
def test_a_value_is_written_with_all_its_digits(value: Any, text: str) -> None:
    """A time without a zone stays one: none is made up. An offset with seconds is none of RFC 3339."""
    (batch,) = batches([event(v=value)])
    assert f'"v":{text}}}'.encode() in batch.events[0].payload


def test_an_event_that_contains_itself_is_refused() -> None:
    endless = event()
    endless["data"]["again"] = endless
    (refused,) = Server().client().send([endless]).verdicts
    assert refused.detail == "the event cannot be written as JSON: it contains itself"


def test_attempts_end(send: Send) -> None:
    server = Server(*[problem(503)] * 9)
    with pytest.raises(pulse_client.Unavailable, match="slow"):
        send(server, event(), retries=Retries(attempts=3))
    assert len(server.requests) == 3


def test_a_pause_beyond_the_time_of_the_caller_is_an_error_at_once(send: Send) -> None:
    server = Server(problem(429, **{"Retry-After": "60"}))
    with pytest.raises(pulse_client.OverRate):
        send(server, event(), timeout=30)
    assert server.pauses == []


def test_the_time_of_the_caller_bounds_an_attempt() -> None:
    server = Server()
    server.client().send(event(), timeout=5)
    assert 0 < server.requests[0].extensions["timeout"]["read"] <= 5
    server.client(timeout=math.inf, request_timeout=7).send(event())
    assert server.requests[1].extensions["timeout"]["read"] == 7


def test_pauses_double_up_to_the_longest() -> None:
    retries = replace(Retries(), longest_pause_s=3)
    assert [round(retries.pause(attempt, 0.0) // 0.5) for attempt in (1, 2)] in ([1, 2], [1, 3])
    assert all(3 <= retries.pause(attempt, 0.0) <= 4.5 for attempt in (4, 40, 4_000))


@pytest.mark.parametrize("url", ["pulse.example.com", "localhost:8000", "ftp://pulse", ""])
def test_an_invalid_address_is_an_error_before_the_first_request(url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        Client(url, "key")


class _Drip(httpx.SyncByteStream):
    def __init__(self, pieces: int, size: int, pause_s: float) -> None:
        self._pieces, self._size, self._pause_s = pieces, size, pause_s

    def __iter__(self) -> Iterator[bytes]:
        for _ in range(self._pieces):
            time.sleep(self._pause_s)
            yield b" " * self._size


@pytest.mark.parametrize(
    ("drip", "timeout", "words"),
    [
        (_Drip(10_000, 1, 0.05), 0.3, "takes too long"),
        (_Drip(10_000, 1024 * 1024, 0.0), 60.0, "more than 8,388,608"),
    ],
    ids=["slow", "endless"],
)
def test_an_answer_is_read_in_bounded_time_and_memory(drip: _Drip, timeout: float, words: str) -> None:
    http = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(202, stream=drip)))
    client = Client("http://p", "k", timeout=timeout, retries=Retries(attempts=1), http=http)
    with client, pytest.raises(pulse_client.Unavailable, match=words):
        client.send(event())
