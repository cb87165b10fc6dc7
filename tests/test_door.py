"""What a request may cost, in this process and without services: who asks is known before a body is read."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import orjson
import pytest
from starlette.types import ASGIApp, Message

from pulse_api.http.app import create_app


@dataclass
class Exchange:
    """A request as the server hands it to the app, and what came of it."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    chunks: Iterable[bytes] = ()
    read: int = 0
    """Chunks of the body that were asked for."""
    status: int = 0
    body: bytes = b""

    def run(self, app: ASGIApp) -> "Exchange":
        chunks = iter(self.chunks)

        async def receive() -> Message:
            self.read += 1
            chunk = next(chunks, None)
            return {"type": "http.request", "body": chunk or b"", "more_body": chunk is not None}

        async def send(message: Message) -> None:
            self.status = message.get("status", self.status)
            self.body += message.get("body", b"")

        scope = {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "headers": [(name.lower().encode(), value.encode()) for name, value in self.headers.items()],
            "query_string": b"",
        }
        asyncio.run(app(scope, receive, send))
        return self

    @property
    def kind(self) -> str:
        """Of the problem that it ended with."""
        return str(orjson.loads(self.body)["type"].rpartition(":")[2])


DOCUMENT = create_app().openapi()["paths"]
WITH_A_BODY = sorted(
    (method.upper(), path)
    for path, methods in DOCUMENT.items()
    for method, said in methods.items()
    if "requestBody" in said
)


@pytest.mark.parametrize(("method", "template"), WITH_A_BODY)
def test_without_a_key_no_byte_of_a_body_is_read(method: str, template: str) -> None:
    path = template.replace("{key_id}", "0" * 12).replace("{slug}", "orders").replace("{tenant}", "acme")
    headers = {"content-type": "application/json"}
    found = Exchange(method, path, headers, [b"["] * 3).run(create_app())
    assert (found.status, found.kind, found.read) == (401, "unauthorized", 0)
