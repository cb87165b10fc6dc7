"""A process that ends answers whom the kernel let in already, and lets its clients go. No services."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from chaos.waiting import PATIENCE_S
from pulse_api.http import server as module
from pulse_api.http.admission import bounded_protocol
from pulse_api.http.server import Server
from pulse_resources.local import ports
from pulse_resources.settings.api_settings import ApiSettings

REQUEST = b"GET / HTTP/1.1\r\nHost: pulse\r\n\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("answered")(scope, receive, send)


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[Server, Callable[[], socket.socket]]]:
    """A server in this loop, which serves when the loop is free; and what connects to it at once."""
    settings = ApiSettings(host="127.0.0.1", port=ports.choose_any(()), health_port=0)
    server = Server(app, settings)
    server.config.lifespan = "off"
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()

    with contextlib.ExitStack() as opened:

        def connect() -> socket.socket:
            connection = socket.create_connection((settings.host, settings.port), PATIENCE_S)
            connection.setblocking(False)
            return opened.enter_context(connection)

        yield server, connect
        for listening in server.servers:
            listening.close()


async def answer(connection: socket.socket) -> bytes:
    """Everything that comes until the server closes the connection."""
    loop, received = asyncio.get_running_loop(), b""
    while chunk := await asyncio.wait_for(loop.sock_recv(connection, 65_536), PATIENCE_S):
        received += chunk
    return received


def run(test: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=uvicorn.Config(app, loop="uvloop").get_loop_factory()) as runner:
        runner.run(test())  # type: ignore[arg-type]


def test_connections_in_the_kernels_queue_are_answered() -> None:
    async def check() -> None:
        async with serving() as (server, connect):
            waiting = [connect() for _ in range(10)]
            for connection in waiting:
                connection.send(REQUEST)
            await server.shutdown()
            for connection in waiting:
                assert (await answer(connection)).endswith(b"answered")

    run(check)


def test_a_connection_whose_first_request_is_on_its_way_is_answered_and_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded_protocol, "FIRST_REQUEST_S", PATIENCE_S)

    async def check() -> None:
        async with serving() as (server, connect):
            connection = connect()
            while not server.server_state.connections:
                await asyncio.sleep(0.01)
            ending = asyncio.create_task(server.shutdown())
            while server.servers[0].is_serving():
                await asyncio.sleep(0.01)
            connection.send(REQUEST)
            text = await answer(connection)
            assert text.endswith(b"answered")
            assert b"connection: close" in text
            await ending

    run(check)


def test_a_client_that_returns_during_the_end_is_asked_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ACCEPT_S", PATIENCE_S)

    async def check() -> None:
        async with serving() as (server, connect):
            connection = connect()
            connection.send(REQUEST)
            receiving = asyncio.get_running_loop().sock_recv(connection, 65_536)
            first = await asyncio.wait_for(receiving, PATIENCE_S)
            assert first.endswith(b"answered")
            assert b"connection: close" not in first
            ending = asyncio.create_task(server.shutdown())
            await asyncio.sleep(0)
            connection.send(REQUEST)
            assert b"connection: close" in await answer(connection)
            ending.cancel()

    run(check)


def test_a_connection_that_never_asks_does_not_hold_the_end_up() -> None:
    async def check() -> None:
        async with serving() as (server, connect):
            connection = connect()
            while not server.server_state.connections:
                await asyncio.sleep(0.01)
            await asyncio.wait_for(server.shutdown(), PATIENCE_S)
            assert await answer(connection) == b""

    run(check)
