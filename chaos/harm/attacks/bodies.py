"""Request bodies that cost more than their size, or that arrive slowly."""

import asyncio
import gzip
from functools import partial

from chaos.harm import wire
from chaos.harm.attack import OPEN, SOURCE, Attack, Attacker, may
from chaos.harm.wire import Link

MIB = 1024 * 1024
NESTED = b"[" + b"[]," * (8 * MIB // 3 - 2) + b"[]]"
MEMBER = gzip.compress(b"")
LINES = b"{}\n" * (8 * MIB // 3)
SLOW = 240
"""Connections; fewer than the limit per address."""


async def _collect(attacker: Attacker, body: bytes, connections: int = 4, **headers: str) -> None:
    key = attacker.key("collect")
    await attacker.flood(wire.request("POST", "/v1/collect", key, body, **headers), connections)


async def _trickle(attacker: Attacker) -> None:
    head = wire.request("POST", "/v1/collect", attacker.key("collect"), b"", content_length="100000")

    async def send_slowly() -> None:
        link = await Link.to(attacker.target.api, SOURCE)
        link.send(head)
        answered = asyncio.create_task(attacker.counted(link))
        while attacker.remaining_s > 0 and not answered.done():
            link.send(b" ")
            await asyncio.wait([answered], timeout=1.0)
        if not answered.done():
            answered.cancel()
            attacker.counts[OPEN] += 1
        link.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(SLOW):
            group.create_task(send_slowly())


async def _no_key(attacker: Attacker) -> None:
    body = b'{"name": "orders", "fields": {"a": "' + b"a" * 8 * MIB + b'"}}'
    await attacker.flood(wire.request("POST", "/v1/schemas", None, body), 8)


CUT = may(413, "closed")
"""A client that is refused while still sending may not get to read the reason."""
ATTACKS = (
    Attack("8 MB of `[[],[],…]`", "collect", partial(_collect, body=NESTED), CUT),
    Attack(
        "the same as 8 KB of gzip",
        "collect",
        partial(_collect, body=gzip.compress(NESTED), content_encoding="gzip"),
        CUT,
    ),
    Attack(
        "4 MiB of empty gzip members",
        "collect",
        partial(_collect, body=MEMBER * (4 * MIB // len(MEMBER)), content_encoding="gzip"),
        CUT,
    ),
    Attack(
        "2.7 million lines",
        "collect",
        partial(_collect, body=LINES, content_type="application/x-ndjson"),
        CUT,
    ),
    Attack("eight 8 MB bodies to /v1/schemas", "none", _no_key, may(401, "closed")),
    Attack(f"{SLOW} bodies of a byte per second", "collect", _trickle, may(408, 429, "open")),
)
