"""Object store that answers 503, as S3 does when it is throttling."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_SLOW_DOWN = (
    b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>'
)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(503)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(_SLOW_DOWN)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(_SLOW_DOWN)
        self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _refuse  # noqa: N815 - named by the library

    def log_message(self, *args: object) -> None:
        """Suppressed: the console belongs to the report."""


@contextmanager
def server() -> Iterator[int]:
    """Run a store that refuses everything while the block runs; yields its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        try:
            yield httpd.server_port
        finally:
            httpd.shutdown()
            thread.join()
