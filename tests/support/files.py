"""A source of files: a folder of the stack's object store, or a web server that a test decides about."""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

from pulse_resources import object_store
from pulse_resources.settings import Settings

Answer = tuple[int, Mapping[str, str], bytes]
"""Status, headers and body. With the header X-Cut the connection ends after as many bytes of the body."""


class Folder:
    """A folder of a bucket."""

    def __init__(self, settings: Settings) -> None:
        store = settings.object_store
        self._prefix = f"{store.bucket}/test-files/{uuid.uuid4().hex}"
        self._files = object_store.file_system()
        secret = quote(store.secret_key.get_secret_value(), safe="")
        key = quote(store.access_key, safe="")
        self.address = f"s3://{key}:{secret}@{self._prefix}?endpoint={store.endpoint}"

    def write(self, name: str, content: bytes) -> None:
        """Write a file, in place of the one that had the name."""
        with self._files.open_output_stream(f"{self._prefix}/{name}", compression=None) as file:
            file.write(content)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._files.delete_file(f"{self._prefix}/{name}")


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
            if "Content-Length" not in headers and "Connection" not in headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
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
