"""Connections that take more than their share: too many, too slow, too much. They need no services."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPResponse

import httpx
import orjson
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send
from support.http import served
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from chaos.surroundings import TLS
from chaos.waiting import PATIENCE_S, wait
from pulse_api.http.admission import addresses, bounded_protocol, connections
from pulse_api.http.admission.addresses import address_of
from pulse_api.http.middleware import Envelope
from pulse_resources.local import ports

pytestmark = pytest.mark.long

HEAD = b"POST /v1/collect HTTP/1.1\r\nHost: pulse\r\n"
LARGE = 32 * 1024 * 1024


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuses without a look at the body, gives much, or reads everything."""
    if scope["type"] != "http":
        raise ValueError("nothing to start")
    request = Request(scope, receive)
    answer: Response = PlainTextResponse("no", 401)
    if request.url.path == "/large":
        answer = Response(b" " * LARGE)
    elif request.url.path != "/refused":
        answer = PlainTextResponse(str(len(await request.body())))
    await answer(scope, receive, send)


@contextmanager
def serving(**options: object) -> Iterator[tuple[str, int]]:
    """The app with these settings; where it is."""
    with served(Envelope(app, 2 * LARGE, log=False), **options) as api:
        address = httpx.URL(api.url)
        yield address.host, address.port or 0


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CHECK_INTERVAL_S", 0.05)
    monkeypatch.setattr(bounded_protocol, "CLOSING_S", 0.2)


def connect(address: tuple[str, int], source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(address, PATIENCE_S, (source, 0))


def read_to_end(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    received = b""
    try:
        while chunk := connection.recv(65_536):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def problem(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    document = orjson.loads(body)
    assert b"application/problem+json" in head
    assert int(head.split()[1]) == document["status"]
    assert document["request_id"]
    return document["status"], document["type"].rpartition(":")[2]


def test_half_sent_heads_do_not_block_other_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """One address has its share, all have theirs, what watches has a way of its own; and none of it lasts."""
    watched, late = ports.choose_any(()), threading.Event()
    limits = {"max_connections": 12, "max_connections_per_address": 8, "head_seconds": 3_600.0}
    check = bounded_protocol.BoundedProtocol.check_deadlines
    # Their time is over when the test says so: all of them have come by then.
    shifted = lambda protocol, now: check(protocol, now + 7_200 * late.is_set())  # noqa: E731
    monkeypatch.setattr(bounded_protocol.BoundedProtocol, "check_deadlines", shifted)
    with serving(**limits, health_port=watched) as address, ExitStack() as stack:

        def half(source: str) -> socket.socket:
            connection = stack.enter_context(connect(address, source))
            connection.sendall(HEAD)
            return connection

        first = [half("127.0.0.1") for _ in range(9)]
        assert problem(read_to_end(first[-1])) == (503, "too-many-connections-of-address")
        second = [half("127.0.0.2") for _ in range(4)]
        second += [half("127.0.0.2") for _ in range(2)]  # all places are taken, most by another address
        for connection in first[:2]:
            assert problem(read_to_end(connection)) == (503, "too-many-connections")
        refused = half("127.0.0.2")
        assert problem(read_to_end(refused)) == (503, "too-many-connections")
        url = f"http://{address[0]}:{watched}"
        assert httpx.get(f"{url}/healthz", timeout=PATIENCE_S, verify=TLS).status_code == 200
        assert httpx.post(f"{url}/v1/collect", timeout=PATIENCE_S, verify=TLS).status_code == 200
        late.set()
        for connection in (*first[2:-1], *second):
            assert problem(read_to_end(connection)) == (408, "head-timeout")
        late.clear()
        assert httpx.get(f"http://{address[0]}:{address[1]}/", timeout=PATIENCE_S, verify=TLS).text == "0"


def test_places_that_wait_go_to_addresses_with_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand connections from a hundred addresses kept all others out, for as long as they came again."""
    monkeypatch.setattr(bounded_protocol, "CLOSING_S", PATIENCE_S)
    limits = {"max_connections": 6, "max_connections_per_address": 3, "head_seconds": 3_600.0}
    url = "http://{}:{}/".format
    with serving(**limits, keep_alive_seconds=3_600.0) as address, ExitStack() as stack:
        with_key = stack.enter_context(httpx.Client(verify=TLS, timeout=PATIENCE_S))
        assert with_key.get(url(*address)).text == "0"  # idle, and alone: it stays
        crowd = [stack.enter_context(connect(address, f"127.0.0.{2 + number % 2}")) for number in range(5)]
        for connection in crowd:
            connection.sendall(HEAD)
        uploading = stack.enter_context(connect(address, "127.0.0.4"))
        uploading.sendall(HEAD + b"Content-Length: 3\r\n\r\n")
        assert problem(read_to_end(crowd[0])) == (503, "too-many-connections")
        assert with_key.get(url(*address)).text == "0"
        uploading.sendall(b"abc")
        with HTTPResponse(uploading) as answer:
            answer.begin()
            assert (answer.status, answer.read()) == (200, b"3")


def test_a_body_that_trickles_is_not_waited_for() -> None:
    with serving(body_seconds=0.5) as address, connect(address) as connection:
        connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n1")
        assert problem(read_to_end(connection)) == (408, "body-timeout")


@pytest.mark.parametrize("endless", [b"X-A: " + b"a" * 65_536, b"X-A: a\r\n" * 8_192])
def test_headers_without_an_end_are_refused(endless: bytes) -> None:
    with serving() as address, connect(address) as connection:
        connection.sendall(HEAD + endless[:50_000])
        connection.sendall(endless[50_000:])
        assert problem(read_to_end(connection)) == (431, "headers-too-large")


def test_a_large_head_that_comes_at_once_is_refused() -> None:
    with serving() as address, connect(address) as connection:
        connection.sendall(HEAD + b"X-A: " + b"a" * 70_000 + b"\r\nContent-Length: 1\r\n\r\n1")
        assert problem(read_to_end(connection)) == (431, "headers-too-large")


def sent_until_it_breaks(connection: socket.socket, piece: bytes) -> int:
    sent, deadline = 0, time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline:
            connection.sendall(piece)
            sent += len(piece)
    except OSError:
        return sent
    raise AssertionError(f"{sent:,} bytes, and it still takes more")


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"Content-Length: 99999999999\r\n\r\n", b" " * 65_536),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b" " * 65_536 + b"\r\n"),
        (b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X-Trailer: a\r\n" * 5_000),
    ],
    ids=["length", "chunks", "trailers"],
)
def test_an_unread_body_ends_at_the_limit(start: bytes, piece: bytes) -> None:
    with serving(max_body_bytes=100_000) as address, connect(address) as connection:
        connection.sendall(HEAD.replace(b"/v1/collect", b"/refused") + start)
        sent = sent_until_it_breaks(connection, piece)
        assert sent < 32 * 1024 * 1024, "what the kernel buffers, and a little"


@pytest.mark.parametrize(
    "piece", [b"1\r\n \r\n", b"1;" + b"x" * 4_096 + b"\r\n \r\n"], ids=["chunks", "extensions"]
)
def test_chunks_that_are_hardly_a_body_are_refused(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what follows the limit is not parsed: each chunk is a call in the loop that serves all others."""
    parsed, on_body = [0], bounded_protocol.BoundedProtocol.on_body

    def count(protocol: bounded_protocol.BoundedProtocol, body: bytes) -> None:
        parsed[0] += 1
        on_body(protocol, body)

    monkeypatch.setattr(bounded_protocol.BoundedProtocol, "on_body", count)
    most = (bounded_protocol.MAX_FRAMING_BYTES + bounded_protocol.SLICE_BYTES) // (len(piece) - 1.25)
    pieces = piece * int(16 * most)
    with serving() as address, connect(address) as connection:
        with suppress(ConnectionError):  # the server may close before it has read everything
            connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + pieces)
        assert problem(read_to_end(connection)) == (413, "too-large")
    assert parsed[0] <= most


def test_a_body_in_small_chunks_is_whole() -> None:
    chunks = [b"3\r\nabc\r\n"] * 10_000
    with serving() as address, connect(address) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n")
        answer = HTTPResponse(connection)
        answer.begin()
        assert answer.read() == b"30000"


@pytest.mark.parametrize("path", [b"/v1/collect", b"/refused"], ids=["read", "refused"])
def test_trailers_are_not_kept_as_headers(path: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """No code reads them: as headers they take thirty times their size, and are not checked."""
    header_names = list[bytes]()

    def note(self: HttpToolsProtocol, name: bytes, value: bytes) -> None:
        header_names.append(name.lower())

    monkeypatch.setattr(HttpToolsProtocol, "on_header", note)
    with serving() as address, connect(address) as connection:
        connection.sendall(HEAD.replace(b"/v1/collect", path) + b"Transfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"1\r\na\r\n0\r\n" + b"X-Trailer: a\r\n" * 1_000 + b"\r\n")
        answer = HTTPResponse(connection)
        answer.begin()
        assert answer.status in (200, 401)
    assert set(header_names) == {b"host", b"transfer-encoding"}


def test_a_client_that_does_not_read_the_answer_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, connection_lost = threading.Event(), bounded_protocol.BoundedProtocol.connection_lost

    def recorded_loss(protocol: bounded_protocol.BoundedProtocol, error: Exception | None) -> None:
        connection_lost(protocol, error)
        lost.set()

    monkeypatch.setattr(bounded_protocol.BoundedProtocol, "connection_lost", recorded_loss)
    with serving(answer_seconds=0.3) as address, connect(address) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: pulse\r\n\r\n")
        wait(lost.is_set, "the server holds the connection")
        assert len(read_to_end(connection)) < LARGE


@pytest.mark.parametrize("dribble", [b"", b"\r\n"])
def test_a_connection_without_a_request_is_closed(dribble: bytes) -> None:
    with serving(keep_alive_seconds=1) as address, connect(address) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: pulse\r\n\r\n")
        assert connection.recv(65_536).endswith(b"0")
        deadline = time.monotonic() + PATIENCE_S
        connection.settimeout(0.2)
        while True:
            assert time.monotonic() < deadline
            try:
                connection.sendall(dribble)
                assert connection.recv(1) == b""
                break
            except TimeoutError:
                continue
            except OSError:
                break


def test_requests_that_wait_on_one_connection_are_few() -> None:
    with serving() as address, connect(address) as connection:
        request = HEAD + b"Content-Length: 1\r\n\r\n1"
        connection.sendall(request * 4)
        received = b""
        while received.count(b"HTTP/1.1 200") < 4:
            received += connection.recv(65_536)
        connection.sendall(request * 5_000)
        assert read_to_end(connection).count(b"HTTP/1.1 200") < 1_000


def test_a_connection_that_is_refused_again_and_again_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own order shows it: it begins no request between the start of a rest and its end."""
    events, moments = list[str](), list[float]()

    def recorded(name: str, original: Callable[..., None]) -> Callable[..., None]:
        def call(protocol: bounded_protocol.BoundedProtocol, *arguments: float) -> None:
            events.append(" ".join((name, *map(str, arguments))))
            moments.append(protocol.loop.time())
            original(protocol, *arguments)

        return call

    monkeypatch.setattr(bounded_protocol, "REST_S", 0.5)
    for name, method in {
        "rest": "_pause_reading",
        "go on": "_resume_reading",
        "request": "on_message_begin",
    }.items():
        original = getattr(bounded_protocol.BoundedProtocol, method)
        monkeypatch.setattr(bounded_protocol.BoundedProtocol, method, recorded(name, original))

    def send(connection: socket.socket, path: str, status: int) -> None:
        connection.sendall(f"GET /{path} HTTP/1.1\r\nHost: pulse\r\n\r\n".encode())
        with HTTPResponse(connection) as answer:  # whole: what was left of it would be taken for the next one
            answer.begin()
            answer.read()
            assert answer.status == status

    most = bounded_protocol.MAX_REFUSED
    with serving() as address, connect(address) as connection:
        for refusals in (most + 3, most):
            for _ in range(refusals):
                send(connection, "refused", 401)
            send(connection, "taken", 200)
    rested = ["rest 0.5", "go on", "request"]
    assert events[: most + 1 + 9] == ["request"] * (most + 1) + rested * 3
    assert events[most + 1 + 9 :] == ["request"] * (most + 1), "what is not refused ends it"
    rests = [
        after - before
        for name, before, after in zip(events, moments, moments[1:], strict=False)
        if "rest" in name
    ]
    assert min(rests) > 0.4


def test_behind_a_proxy_no_connection_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next request on it may be another client's."""
    rests = list[float]()
    monkeypatch.setattr(bounded_protocol.BoundedProtocol, "_pause_reading", lambda _, s: rests.append(s))
    with (
        serving(max_connections_per_address=0) as (host, port),
        httpx.Client(base_url=f"http://{host}:{port}", verify=TLS, timeout=PATIENCE_S) as proxy,
    ):
        for _ in range(3 * bounded_protocol.MAX_REFUSED):
            assert proxy.get("/refused").status_code == 401
    assert not rests


def test_bytes_that_are_not_http_get_a_problem_document() -> None:
    with serving() as address, connect(address) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert problem(read_to_end(connection)) == (400, "malformed")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_a_connection_counts_for_its_address_or_network(one: str, other: str, same: bool) -> None:
    assert (address_of(one) == address_of(other)) is same


@pytest.mark.parametrize(("path", "limit"), [("refused", "MAX_REFUSED"), ("taken", "MAX_OPENED")])
def test_connections_beyond_the_limits_of_an_address_wait_in_turn(
    path: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection for each request changes nothing; other addresses notice nothing."""
    monkeypatch.setattr(addresses, limit, 3)
    monkeypatch.setattr(connections, "CHECK_INTERVAL_S", 3_600.0)  # nothing is forgotten meanwhile
    monkeypatch.setattr(addresses, "APART_S", 1.0)
    request = f"GET /{path} HTTP/1.1\r\nHost: pulse\r\nConnection: close\r\n\r\n".encode()
    status = b" 401 " if path == "refused" else b" 200 "
    waits, turns = list[float](), list[float]()
    wait_s = addresses.RecentActivity.wait_s

    def recorded_wait(recent: addresses.RecentActivity, address: str, now: float) -> float:
        waits.append(wait_s(recent, address, now))
        turns.append(now + waits[-1])
        return waits[-1]

    monkeypatch.setattr(addresses.RecentActivity, "wait_s", recorded_wait)

    def send(*sources: str) -> list[float]:
        """How long each waits for its answer, after all have sent a request."""
        waits.clear()
        turns.clear()
        began = time.monotonic()
        with ExitStack() as stack:
            opened = [stack.enter_context(connect(address, source)) for source in sources]
            for connection in opened:
                connection.sendall(request)
            took = []
            for connection in opened:
                assert status in read_to_end(connection).partition(b"\r\n")[0]
                took.append(time.monotonic() - began)
        return took

    with serving() as address:
        for _ in range(3):
            send("127.0.0.1")
            assert waits == [0.0]
        send("127.0.0.1")
        _, first, second = send("127.0.0.2", "127.0.0.1", "127.0.0.1")
        assert waits[0] == 0.0, "another address"
        assert min(waits[1:]) > 0.9
        assert turns[2] - turns[1] > 0.9, "one after the other"
        assert min(first, second) > 0.9, "the server waits for as long as it said"
    with serving(max_connections_per_address=0) as address:
        for _ in range(6):
            send("127.0.0.1")
            assert waits == [0.0], "it may be everybody's"
