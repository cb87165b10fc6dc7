"""A source of files: a web server that a test decides about."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Mapping[str, str], bytes | Iterator[bytes]]
"""Status, headers and body; one in pieces is sent as they come, with its length in the headers.
With the header X-Cut the connection ends after as many bytes of the body."""


@contextmanager
def web(answer: Callable[[str, str, Mapping[str, str]], Answer]) -> Iterator[str]:
    """A web server, by its address; a function says what it answers to a method, a path and headers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, body = answer(self.command, self.path, self.headers)  # type: ignore[arg-type]
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if isinstance(body, bytes) and not {"Content-Length", "Connection"} & set(headers):
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET" and not isinstance(body, bytes):
                with suppress(ConnectionError):  # whoever asked has had enough
                    for piece in body:
                        self.wfile.write(piece)
            elif self.command == "GET" and isinstance(body, bytes):
                self.wfile.write(body[: int(headers.get("X-Cut", len(body)))])
            if "X-Cut" in headers or "Connection" in headers:
                self.close_connection = True

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
