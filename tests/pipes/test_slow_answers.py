"""Servers of sources and sinks that send heads or framing byte by byte: each request has a time limit."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat

import pytest

from pulse_pipelines.pipes import slow_answers, web
from pulse_pipelines.pipes.sinks.http import Service
from pulse_resources.errors import Transient

OK = b"HTTP/1.1 200 OK\r\n"
Pieces = Callable[[], Iterator[bytes]]


@contextmanager
def server(pieces: Pieces) -> Iterator[str]:
    """A server that answers every request with these pieces, 10 ms apart, until the block ends."""
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(65_536)
                for piece in pieces():
                    connection.sendall(piece)
                    if ended.wait(0.01):
                        return
            except OSError:
                """Whoever asked has had enough."""

    def accept() -> None:
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)


def head_by_bytes() -> Iterator[bytes]:
    return chain([OK], repeat(b"a", 90_000))


def continued() -> Iterator[bytes]:
    return repeat(b"HTTP/1.1 100 Continue\r\n\r\n")


def chunk_by_bytes() -> Iterator[bytes]:
    """A body whose first chunk has an extension without an end."""
    return chain([OK + b"Transfer-Encoding: chunked\r\n\r\n1"], repeat(b";", 90_000))


SLOW = pytest.mark.parametrize("pieces", [head_by_bytes, continued, chunk_by_bytes])


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_answers, "HEAD_S", 0.2)
    monkeypatch.setattr(slow_answers, "PACE_S", 0.2)
    monkeypatch.setattr(web, "ATTEMPTS", 1)


@SLOW
@pytest.mark.timeout(20)
def test_a_slowly_trickling_source_is_abandoned(pieces: Pieces) -> None:
    with (
        server(pieces) as address,
        web.client(web.site(address)) as client,
        pytest.raises(Transient, match="ReadTimeout"),
        web.answer(client, "GET", address) as response,
    ):
        response.read()


@SLOW
@pytest.mark.timeout(20)
def test_a_slowly_trickling_sink_is_abandoned(pieces: Pieces) -> None:
    with server(pieces) as address, Service(address) as sink, pytest.raises(Transient, match="ReadTimeout"):
        sink.push({}, b"{}\n")


def test_an_answer_whose_head_came_in_time_is_read_whole() -> None:
    def whole() -> Iterator[bytes]:
        return chain([OK, b"Content-Length: 40\r\n\r\n"], repeat(b"a", 40))

    with (
        server(whole) as address,
        web.client(web.site(address)) as client,
        web.answer(client, "GET", address) as response,
    ):
        assert response.extensions["network_stream"].get_extra_info("socket") is not None
        assert response.status_code == 200
