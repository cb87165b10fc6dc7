"""What strangers send to the control room before its guard knows who they are."""

import asyncio
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest
import uvicorn
from pydantic import SecretStr
from starlette.types import Message, Receive, Scope, Send

from chaos.waiting import PATIENCE_S, wait
from pulse_pipelines.defs.control_room import bounded_heads, guard
from pulse_resources.settings.api_settings import DagsterSettings

BEGIN = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HEADER = b"x: " + b"y" * 6_000 + b"\r\n"
CHUNKED = BEGIN + b"Transfer-Encoding: chunked\r\n\r\n"
SENT = 64 * 1024 * 1024
"""Bytes after which a sender without an end ends, so that one that nobody stops does, too."""


async def read_all(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(read_all, http=bounded_heads.BoundedHeads, lifespan="off", log_level="error")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=[[listener]], daemon=True)
        thread.start()
        wait(lambda: server.started, "the server does not start")
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join()


def is_closed(link: socket.socket) -> bool:
    try:
        return link.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.timeout(60)
@pytest.mark.parametrize("sent", [b"", BEGIN], ids=["nothing", "half a head"])
def test_a_connection_without_a_head_is_closed(
    sent: bytes, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_heads, "HEAD_S", 0.2)
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(sent)
        assert is_closed(link)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (BEGIN, HEADER),
        (BEGIN + b"x: ", b"y" * 6_000),
        (CHUNKED + b"0\r\n", HEADER),
        (CHUNKED, b"1;" + b"y" * 6_000 + b"\r\na\r\n"),
    ],
    ids=["headers", "a header", "trailers", "extensions of chunks"],
)
def test_a_request_whose_framing_does_not_end_is_left(begin: bytes, piece: bytes, port: int) -> None:
    def send() -> None:
        for _ in range(SENT // len(piece)):
            link.sendall(piece)

    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(begin)
        with pytest.raises(ConnectionError):
            send()


def test_large_bodies_and_several_requests_of_a_connection_are_answered(port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        for _ in range(3):
            assert client.post("/", content=b"x" * 3 * bounded_heads.MAX_FRAMING_BYTES).status_code == 200


def test_a_login_without_its_body_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LOGIN_S", 0.1)
    statuses = list[int]()
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": guard.LOGIN, "query_string": b"", "headers": headers}

    async def receive() -> Message:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    door = guard.Guard(read_all, DagsterSettings(token=SecretStr("x" * 32)))
    asyncio.run(asyncio.wait_for(door(scope, receive, send), PATIENCE_S))
    assert statuses == [408]
