"""Sources of a tenant's pipes that answer with too much, or too slowly; more pipes than anyone needs."""

import asyncio
import itertools
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from chaos.harm import hostile, wire
from chaos.harm.attack import SOURCE as ADDRESS, Attack, Attacker, may
from chaos.harm.wire import Link
from chaos.sources import SOURCE, stored_source
from pulse_pipelines import pipes, registry
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.tenant import Tenant

LINES = 21_000_000
"""Lines of a page of 63 MB, where 1,000 were asked for."""
AT_ONCE = 8
PIPES = 100
"""Pipes of one tenant, each of which is requested again and again."""
Body = Callable[[], Iterator[bytes]]


def _parquet() -> Iterator[bytes]:
    yield hostile.parquet(80)


def _lines() -> Iterator[bytes]:
    yield b"{}\n" * LINES


def _page() -> Iterator[bytes]:
    yield b'{"_id": "1", "seats": 180}\n'


@contextmanager
def _source(body: Body) -> Iterator[str]:
    """A web server that answers everything with these bytes; its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Pulse-Since", "1")
            self.send_header("ETag", '"1"')
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.close_connection = True
            if self.command == "GET":
                for piece in body():
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")

        do_HEAD = do_GET  # noqa: N815 - named by the library

        def log_message(self, *_: object) -> None:
            """Suppressed: the console belongs to the report."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Whoever asked has had enough."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def _created(attacker: Attacker, body: Body, **other_end: object) -> None:
    """Create a pipe from such a source, in a loop: Pulse derives a schema from what it answers."""
    tenant = registry.find_tenant(attacker.target.tenant)
    request = {"pipe": "hostile", "source": SOURCE, "dataset": "hostile"} | other_end
    with _source(body) as address, stored_source(tenant, address):
        await attacker.flood(wire.request("POST", "/v1/pipes", attacker.key("manage"), request), AT_ONCE)


@asynccontextmanager
async def _endless(attacker: Attacker, begin: bytes, piece: bytes, pause_s: float) -> AsyncIterator[int]:
    """The port of a server that answers with `begin`, then with `piece` until the attack ends."""
    sending = set[asyncio.Task[Any]]()

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        sending.add(task)
        try:
            await reader.read(2**16)
            writer.write(begin)
            while attacker.remaining_s > 0:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)
        except OSError:
            return  # the client has left
        finally:
            writer.transport.abort()  # to close would be to wait for a client that may read no more

    server = await asyncio.start_server(send, wire.HOST, 0)
    yield int(server.sockets[0].getsockname()[1])
    server.close()
    if sending:
        await asyncio.wait(sending)


async def _slow_heads(attacker: Attacker) -> None:
    """Create pipes from a server whose answer begins, and has no end."""
    tenant = registry.find_tenant(attacker.target.tenant)
    request = {"pipe": "slow", "source": SOURCE, "dataset": "slow", "feed": "/x"}
    creation = wire.request("POST", "/v1/pipes", attacker.key("manage"), request)

    async def create() -> None:
        link = await Link.to(attacker.target.api, ADDRESS)
        await attacker.hold(link, creation)
        link.close()

    async with _endless(attacker, b"HTTP/1.1 200 OK\r\nX: ", b"x", pause_s=1.0) as port:
        with stored_source(tenant, f"http://{wire.HOST}:{port}"):
            await asyncio.gather(*(create() for _ in range(AT_ONCE)))


def _postgres(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack(">I", len(content) + 4) + content


async def _notifications(attacker: Attacker) -> None:
    """Create pipes from a database that lets everyone in, and sends notifications without end."""
    tenant = registry.find_tenant(attacker.target.tenant)
    request = {"pipe": "notified", "source": SOURCE, "dataset": "notified", "table": "any"}
    creation = wire.request("POST", "/v1/pipes", attacker.key("manage"), request)
    greeting = _postgres(b"R", struct.pack(">I", 0)) + _postgres(b"Z", b"I")
    notifications = _postgres(b"A", struct.pack(">I", 1) + b"a\0" + b"x" * 7_000 + b"\0") * 128
    async with _endless(attacker, greeting, notifications, pause_s=0.0) as port:
        address = f"host={wire.HOST} port={port} user=any dbname=any sslmode=disable gssencmode=disable"
        with stored_source(tenant, address):
            await attacker.flood(creation, AT_ONCE)


def _create_pipes(tenant: Tenant) -> None:
    with _source(_page) as address, stored_source(tenant, address):
        for number in range(PIPES):
            feed = {"source": SOURCE, "feed": "/x", "pipe": f"p{number}", "dataset": f"fed_{number}"}
            pipes.create(tenant, definition(feed))


async def _requested(attacker: Attacker) -> None:
    """Request runs of all pipes, in a loop; then delete the pipes, so that the next attack begins alone."""
    tenant = registry.find_tenant(attacker.target.tenant)
    key = attacker.key("manage")
    runs = [wire.request("POST", f"/v1/pipes/p{number}/run", key, {}) for number in range(PIPES)]
    with _source(_page) as address, stored_source(tenant, address):
        await attacker.flood(itertools.cycle(runs), AT_ONCE)
        for number in range(PIPES):
            pipes.delete(tenant, f"p{number}")


REFUSED = may(422, 429, 503)
SLOW = may(422, 429, 503, "open")
RUNS = may(202, 429, 503)
ATTACKS = (
    Attack(
        "a pipe of a Parquet file of 24 MB whose footer would become five gigabytes",
        "manage",
        partial(_created, body=_parquet, path="x.parquet", format="parquet", key=["tail"]),
        REFUSED,
    ),
    Attack(
        "a pipe of a feed that answers 21 million lines",
        "manage",
        partial(_created, body=_lines, feed="/x"),
        REFUSED,
    ),
    Attack("pipes of a server that sends a byte of its answer's head a second", "manage", _slow_heads, SLOW),
    Attack("pipes of a database that sends notifications without end", "manage", _notifications, REFUSED),
    Attack(f"runs of {PIPES} pipes, requested in a loop", "manage", _requested, RUNS, _create_pipes),
)
