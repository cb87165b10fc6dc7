"""Sources of a tenant's pipes that answer with what is too much."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from chaos.harm import hostile, wire
from chaos.harm.attack import Attack, Attacker, may
from chaos.sources import SOURCE, stored_source
from pulse_pipelines import registry

LINES = 21_000_000
"""Lines of a page of 63 MB, where 1,000 were asked for."""
AT_ONCE = 8
Body = Callable[[], Iterator[bytes]]


def _parquet() -> Iterator[bytes]:
    yield hostile.parquet(80)


def _lines() -> Iterator[bytes]:
    yield b"{}\n" * LINES


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


REFUSED = may(422, 429, 503)
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
)
