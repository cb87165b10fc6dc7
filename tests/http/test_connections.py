"""Connections that take more than their share: too many, too slow, too much. They need no services."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse

import httpx
import orjson
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send
from support.http import served

from chaos.waiting import PATIENCE_S
from pulse_api.http import addresses, connections
from pulse_api.http.addresses import address_of
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
def serving(**given: object) -> Iterator[tuple[str, int]]:
    """The app with these settings; where it is."""
    with served(Envelope(app, 2 * LARGE, log=False), **given) as api:
        address = httpx.URL(api.url)
        yield address.host, address.port or 0


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LOOK_S", 0.05)
    monkeypatch.setattr(connections, "CLOSING_S", 0.2)


def connect(address: tuple[str, int], source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(address, PATIENCE_S, (source, 0))


def rest(connection: socket.socket) -> bytes:
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


def test_half_sent_heads_keep_nobody_out() -> None:
    """One address has its share, all have theirs, what watches has a way of its own; and none of it lasts."""
    watched = ports.choose(8003, ())
    limits = {"max_connections": 12, "max_connections_per_address": 8, "head_seconds": 2.0}
    with serving(**limits, health_port=watched) as address, ExitStack() as stack:

        def half(source: str) -> socket.socket:
            connection = stack.enter_context(connect(address, source))
            connection.sendall(HEAD)
            return connection

        first = [half("127.0.0.1") for _ in range(9)]
        assert problem(rest(first[-1])) == (503, "too-many-connections-of-address")
        second = [half("127.0.0.2") for _ in range(5)]
        assert problem(rest(second[-1])) == (503, "too-many-connections")
        url = f"http://{address[0]}:{watched}"
        assert httpx.get(f"{url}/healthz", timeout=PATIENCE_S).status_code == 200
        assert httpx.post(f"{url}/v1/collect", timeout=PATIENCE_S).status_code == 200
        for connection in (*first[:-1], *second[:-1]):
            assert problem(rest(connection)) == (408, "head-timeout")
        assert httpx.get(f"http://{address[0]}:{address[1]}/", timeout=PATIENCE_S).text == "0"


def test_a_body_that_trickles_is_not_waited_for() -> None:
    with serving(body_seconds=0.5) as address, connect(address) as connection:
        connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n1")
        assert problem(rest(connection)) == (408, "body-timeout")


@pytest.mark.parametrize("endless", [b"X-A: " + b"a" * 65_536, b"X-A: a\r\n" * 8_192])
def test_headers_without_an_end_are_refused(endless: bytes) -> None:
    with serving() as address, connect(address) as connection:
        connection.sendall(HEAD + endless[:50_000])
        connection.sendall(endless[50_000:])
        assert problem(rest(connection)) == (431, "headers-too-large")


def test_a_large_head_that_comes_at_once_is_refused() -> None:
    with serving() as address, connect(address) as connection:
        connection.sendall(HEAD + b"X-A: " + b"a" * 70_000 + b"\r\nContent-Length: 1\r\n\r\n1")
        assert problem(rest(connection)) == (431, "headers-too-large")


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
def test_a_body_that_nobody_reads_ends_at_the_limit(start: bytes, piece: bytes) -> None:
    with serving(max_body_bytes=100_000) as address, connect(address) as connection:
        connection.sendall(HEAD.replace(b"/v1/collect", b"/refused") + start)
        sent = sent_until_it_breaks(connection, piece)
        assert sent < 32 * 1024 * 1024, "what the kernel buffers, and a little"


def test_who_does_not_read_the_answer_is_cut_off() -> None:
    with serving(answer_seconds=0.3) as address, connect(address) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: pulse\r\n\r\n")
        time.sleep(1.5)
        assert len(rest(connection)) < LARGE


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
        assert rest(connection).count(b"HTTP/1.1 200") < 1_000


def test_a_connection_that_is_refused_again_and_again_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REST_S", 0.5)
    refused, taken = (
        f"GET /{path} HTTP/1.1\r\nHost: pulse\r\n\r\n".encode() for path in ("refused", "taken")
    )

    def seconds(connection: socket.socket, request: bytes) -> float:
        began = time.monotonic()
        connection.sendall(request)
        with HTTPResponse(connection) as answer:  # whole: what was left of it would be taken for the next one
            answer.begin()
            answer.read()
            assert answer.status == (401 if request is refused else 200)
        return time.monotonic() - began

    with serving() as address, connect(address) as connection:
        took = [seconds(connection, refused) for _ in range(connections.MAX_REFUSED + 3)]
        assert max(took[: connections.MAX_REFUSED + 1]) < 0.4 < min(took[connections.MAX_REFUSED + 1 :])
        time.sleep(0.6)
        assert seconds(connection, taken) < 0.4, "what is not refused ends it"
        assert max(seconds(connection, refused) for _ in range(connections.MAX_REFUSED)) < 0.4


def test_what_is_no_http_is_a_problem_document() -> None:
    with serving() as address, connect(address) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert problem(rest(connection)) == (400, "malformed")


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
def test_whom_a_connection_counts_for(one: str, other: str, same: bool) -> None:
    assert (address_of(one) == address_of(other)) is same


@pytest.mark.parametrize(("path", "limit"), [("refused", "MAX_REFUSED"), ("taken", "MAX_OPENED")])
def test_what_an_address_opens_beyond_its_limits_waits_in_turn(
    path: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection for each request changes nothing; other addresses notice nothing."""
    monkeypatch.setattr(addresses, limit, 3)
    monkeypatch.setattr(connections, "LOOK_S", 5.0)
    monkeypatch.setattr(addresses, "APART_S", 1.0)
    request = f"GET /{path} HTTP/1.1\r\nHost: pulse\r\nConnection: close\r\n\r\n".encode()
    status = b" 401 " if path == "refused" else b" 200 "

    def asked(*sources: str) -> list[float]:
        """How long each waits for its answer, all asking at once."""
        began = time.monotonic()
        with ExitStack() as stack:
            opened = [stack.enter_context(connect(address, source)) for source in sources]
            for connection in opened:
                connection.sendall(request)
            took = []
            for connection in opened:
                assert status in rest(connection).partition(b"\r\n")[0]
                took.append(time.monotonic() - began)
        return took

    with serving() as address, connect(address, "127.0.0.3"):  # so that the looks go on
        before = [took for _ in range(4) for took in asked("127.0.0.1")]
        assert max(before[:3]) < 1.0
        other, first, second = asked("127.0.0.2", "127.0.0.1", "127.0.0.1")
        assert other < 1.0 <= first
        assert second >= 2.0
    with serving(max_connections_per_address=0) as address, connect(address, "127.0.0.3"):
        assert max(took for _ in range(6) for took in asked("127.0.0.1")) < 1.0, "it may be everybody's"
