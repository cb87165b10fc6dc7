"""Many, slow or unusual connections; most need no key."""

import asyncio
import os
import socket
import uuid
from collections.abc import Iterator, Sequence

from chaos.harm import wire
from chaos.harm.attack import OPEN, SOURCE, Attack, Attacker, may
from chaos.harm.wire import Link

HEADS = 1_005
ADDRESSES = 100
READERS = 200
PIPELINED = 64
PIECES = 1_000_000
CHUNKS, TRAILERS = b"1\r\n \r\n" * PIECES, b"0\r\n" + b"a:\r\n" * PIECES
SMALL = 4_096
"""Receive buffer of a slow reader, in bytes."""


async def _half_heads(attacker: Attacker) -> None:
    await _send_half_heads(attacker, [SOURCE])


async def _half_heads_of_many(attacker: Attacker) -> None:
    await _send_half_heads(attacker, [f"127.0.1.{number}" for number in range(1, ADDRESSES + 1)])


async def _send_half_heads(attacker: Attacker, sources: Sequence[str]) -> None:
    """Open connections from these addresses in turn, and reconnect."""

    async def hold_half_heads(source: str) -> None:
        while attacker.remaining_s > 0:
            try:
                link = await Link.to(attacker.target.api, source)
            except OSError:
                attacker.counts["refused"] += 1
                continue
            await attacker.hold(link, b"POST /v1/collect HTTP/1.1\r\nHost: pulse\r\n")
            link.close()
            await asyncio.sleep(1.0)  # reconnect, like all others

    async with asyncio.TaskGroup() as group:
        for number in range(HEADS):
            group.create_task(hold_half_heads(sources[number % len(sources)]))


async def _slow_readers(attacker: Attacker) -> None:
    """Send sixteen requests for large responses and read nothing."""
    loop = asyncio.get_running_loop()

    async def request_without_reading() -> None:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
            connection.setblocking(False)
            connection.bind((SOURCE, 0))
            await loop.sock_connect(connection, (wire.HOST, attacker.target.api))
            await loop.sock_sendall(connection, wire.request("GET", "/openapi.json") * 16)
            await asyncio.sleep(max(0.0, attacker.remaining_s))
            attacker.counts[OPEN] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(READERS):
            group.create_task(request_without_reading())


async def _churn(attacker: Attacker) -> None:
    await attacker.flood(wire.request("GET", "/v1/usage", attacker.key("read")), 20, keep=False)


async def _pipelined(attacker: Attacker) -> None:
    many = wire.request("GET", "/v1/usage", attacker.key("read")) * PIPELINED

    async def send_pipelined() -> None:
        while attacker.remaining_s > 0:
            link = await Link.to(attacker.target.api, SOURCE)
            answer = await attacker.counted(link, many)
            while answer and not answer.last:
                answer = await attacker.counted(link)
            link.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(send_pipelined())


async def _unknown_keys(attacker: Attacker) -> None:
    def requests() -> Iterator[bytes]:
        while True:
            key = f"pulse_{uuid.uuid4().hex}_{os.urandom(6).hex()}_{'A' * 43}"
            yield wire.request("GET", "/v1/usage", key)

    await attacker.flood(requests(), 40)


async def _tiny_chunks(attacker: Attacker) -> None:
    await _send_without_end(attacker, CHUNKS, attacker.key("collect"))


async def _trailers(attacker: Attacker) -> None:
    await _send_without_end(attacker, TRAILERS)


async def _send_without_end(attacker: Attacker, body: bytes, key: str | None = None) -> None:
    """Send such a chunked body over eight connections."""
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    head = f"POST /v1/collect HTTP/1.1\r\nHost: pulse\r\n{authorization}Transfer-Encoding: chunked\r\n\r\n"
    await attacker.flood(head.encode() + body, 8, keep=False)


async def _large_headers(attacker: Attacker) -> None:
    def requests() -> Iterator[bytes]:
        while True:
            for size in (60_000, 70_000):
                yield wire.request("POST", "/v1/collect", "A" * size)

    await attacker.flood(requests(), 20)


ATTACKS = (
    Attack(
        f"{HEADS:,} half-sent headers, again and again",
        "none",
        _half_heads,
        may(408, 503, "refused", "closed", "open"),
    ),
    Attack(
        f"{HEADS:,} half-sent headers from {ADDRESSES} addresses",
        "none",
        _half_heads_of_many,
        may(408, 503, "refused", "closed", "open"),
    ),
    Attack(f"{READERS} who read no answer", "none", _slow_readers, may("open")),
    Attack("a million chunks of a byte", "collect", _tiny_chunks, may(413, 429, 503, "closed")),
    Attack("a million trailers", "none", _trailers, may(401, 413, 429, 503, "closed")),
    Attack("a connection for each request", "read", _churn, may(200, 429, 503, "closed")),
    Attack(
        f"{PIPELINED} requests at once per connection", "read", _pipelined, may(200, 400, 429, 503, "closed")
    ),
    Attack("a new unknown key for each request", "none", _unknown_keys, may(401, 429, 503)),
    Attack("Authorization of 60,000 and 70,000 bytes", "none", _large_headers, may(401, 431, "closed")),
)
