"""Sources that send without end: the client library would keep all of it in the memory of a service."""

import resource
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pulse_pipelines.domain.pipe_sources import Files
from pulse_pipelines.pipes import turns
from pulse_pipelines.pipes.files.stores import S3, Listed
from pulse_pipelines.pipes.postgres import sessions
from pulse_resources.errors import UserError

PATIENCE_S = 300.0
TAKEN = 4 * sessions.MOST_RECEIVED
SENT = 4 * TAKEN
"""Bytes after which a server gives up, so that a client that takes everything ends, too."""


def message(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack(">I", len(content) + 4) + content


ADMITTED = message(b"R", struct.pack(">I", 0))
CONNECTED = ADMITTED + message(b"Z", b"I")
TEXT = struct.pack(">IHIHIH", 0, 0, 25, 0xFFFF, 0xFFFFFFFF, 0)
COLUMN = message(b"T", struct.pack(">H", 1) + b"a\0" + TEXT)
HUGE = b"D" + struct.pack(">IHI", 2**30 + 10, 1, 2**30)
ROW = message(b"D", struct.pack(">HI", 1, 2**16) + b"x" * 2**16)
FLOODS = {
    "rows": (CONNECTED, COLUMN, ROW),
    "notifications": (CONNECTED, b"", message(b"A", struct.pack(">I", 1) + b"a\0" + b"x" * 7_000 + b"\0")),
    "notices": (CONNECTED, b"", message(b"N", b"SNOTICE\0C00000\0M" + b"x" * 2**16 + b"\0\0")),
    "a row of a gigabyte": (CONNECTED, COLUMN + HUGE, b"x" * 2**16),
    "settings, before it is ready": (b"", ADMITTED, message(b"S", b"a\0" + b"x" * 2**14 + b"\0")),
}


@contextmanager
def flooding(greeting: bytes, begin: bytes, piece: bytes) -> Iterator[int]:
    """The port of a server that answers the first query, or the first message, with piece after piece."""

    def serve() -> None:
        while True:
            try:
                link, _ = server.accept()
            except OSError:
                return  # the test has ended
            with link:
                try:
                    if link.recv(2**16)[4:8] == struct.pack(">I", 80877103):  # whether it speaks TLS
                        link.sendall(b"N")
                        link.recv(2**16)
                    if greeting:
                        link.sendall(greeting)
                        link.recv(2**16)
                    link.sendall(begin)
                    for _ in range(SENT // len(piece)):
                        link.sendall(piece)
                except OSError:
                    continue  # the client has had enough

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize("flood", FLOODS)
def test_a_source_that_sends_too_much_is_left(flood: str) -> None:
    with (
        flooding(*FLOODS[flood]) as port,
        sessions.within(PATIENCE_S),
        pytest.raises(UserError, match=r"the source sends more than 16,777,216 bytes .* An operator checks"),
        sessions.connect(f"host=127.0.0.1 port={port} user=any dbname=any gssencmode=disable"),
    ):
        pass


CHUNKED = b"\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"10000\r\n" + b"x" * 2**16 + b"\r\n"


@pytest.mark.parametrize(
    ("status", "is_listing"),
    [(b"200 OK", True), (b"404 Not Found", True), (b"404 Not Found", False), (b"500 Server Error", False)],
)
def test_an_object_store_that_answers_without_end_is_left(status: bytes, is_listing: bool) -> None:
    """botocore would keep the page of a listing, or the error of a file, until the run's memory is used."""
    files = Files.parse({"source": "shop", "path": "x.csv"}, {"key": ["id"]})
    with flooding(b"", b"HTTP/1.1 " + status + CHUNKED, CHUNK) as port:
        place = S3(f"s3://key:secret@bucket/?endpoint=http://127.0.0.1:{port}")
        opened = place.opened(Listed("x.csv", 1, '"1"', None))
        with pytest.raises(UserError, match=r"the source sends more than 8,388,608 bytes"):
            place.listed(files) if is_listing else opened.__enter__()


def test_a_run_that_needs_too_much_memory_fails_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever records the failure has memory again."""
    monkeypatch.setattr(turns, "MEMORY", TAKEN)
    turn = turns.Turn(turns.no_one_waits, lambda: 0, None)
    with (
        pytest.raises(UserError, match=r"the run needs more than the 64 MiB of memory that it may have"),
        turn.waiting(),
    ):
        bytearray(2 * TAKEN)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    assert soft == hard
