"""Raw HTTP/1.1 for attackers: arbitrary bytes out, responses as short texts."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import orjson

HOST = "127.0.0.1"
CLOSED = "closed"
"""Result of a connection that ended without a response."""
CONNECT_S = 10.0
_LONGEST_HEAD = 2**16


@dataclass(frozen=True)
class Answer:
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def outcome(self) -> str:
        """The status, with the kind of problem of a refusal; `unclear` if it does not name one."""
        if self.status < 400:
            return str(self.status)
        try:
            document = orjson.loads(self.body)
            outcome = f"{self.status} {_problem(document)}"
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return f"{self.status} unclear"
        if self.status == 503 and "retry-after" not in self.headers:
            outcome += ", unclear when to come again"
        return outcome

    @property
    def last(self) -> bool:
        """Whether the connection ends with it."""
        return self.headers.get("connection") == "close"


def _problem(document: Mapping[str, Any]) -> str:
    """Type of an API problem document or of an error of the catalog, or error of a control-room response."""
    if isinstance(refused := document.get("error"), Mapping):
        assert refused["message"]
        return str(refused["type"])
    if "type" not in document:
        assert document["fix"]
        return str(document["error"])
    assert document["detail"]
    return str(document["type"]).rpartition(":")[2]


class Link:
    """One connection to a port of this machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, port: int, source: str = HOST) -> Self:
        """Connect from an address of this machine.

        Raises:
            OSError: the connection is refused, or times out.
        """
        async with asyncio.timeout(CONNECT_S):
            return cls(
                *await asyncio.open_connection(HOST, port, local_addr=(source, 0), limit=_LONGEST_HEAD)
            )

    @property
    def usable(self) -> bool:
        """Whether the other side has not closed it, as far as known."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    def send(self, content: bytes) -> None:
        """Send without waiting for the peer to read: a response may come first."""
        self._writer.write(content)

    async def answer(self) -> Answer:
        """Read the next response.

        Raises:
            OSError, EOFError: the connection ended first.
        """
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        parts = (line.partition(":") for line in lines if line)
        headers = {name.lower(): value.strip() for name, _, value in parts}
        body = await self._reader.readexactly(int(headers.get("content-length", 0)))
        return Answer(int(first.split()[1]), headers, body)

    async def ask(self, request: bytes) -> Answer:
        """Send a request and wait for its response; raises as `answer` does."""
        self.send(request)
        return await self.answer()

    def close(self) -> None:
        self._writer.transport.abort()


def request(method: str, path: str, key: str | None = None, body: object = b"", **headers: str) -> bytes:
    """Build the bytes of a request.

    Args:
        method: HTTP method.
        path: path with query.
        key: API key, if any.
        body: bytes as they are, anything else as JSON.
        headers: further headers, with `_` for `-`.
    """
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    sent = {"host": HOST, "content-type": "application/json", "content-length": str(len(content))}
    if key is not None:
        sent["authorization"] = f"Bearer {key}"
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + content
