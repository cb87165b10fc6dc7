"""Excessive reads."""

import itertools
import random
from collections.abc import Iterator

from chaos.harm import wire
from chaos.harm.attack import Attack, Attacker, may
from chaos.harm.attacks.floods import prepared
from chaos.harm.neighbour import DATASET

AT_ONCE = 60
WRONG = 90_000


async def _previews(attacker: Attacker) -> None:
    path = f"/v1/datasets/{DATASET}/preview?limit=10000"
    await attacker.flood(wire.request("GET", path, attacker.key("read")), AT_ONCE)


async def _cursors(attacker: Attacker) -> None:
    key = attacker.key("read")

    def requests() -> Iterator[bytes]:
        while True:
            forged = f"{random.randrange(10**9)}-{random.randrange(10**18)}"
            for cursor in (forged, "A" * 200):
                yield wire.request("GET", f"/v1/dead-letters?limit=1000&cursor={cursor}", key)
            yield wire.request("GET", f"/v1/datasets/{DATASET}/snapshots?limit=10000", key)

    await attacker.flood(requests(), 20)


async def _failing_sql(attacker: Attacker) -> None:
    """Queries at which DuckDB fails by itself, or whose result is too large."""
    queries = (
        "SELECT reservoir_quantile(range, 0.5, 2000000000) FROM range(100000)",
        "SELECT repeat('x', 1000000) AS x FROM range(100)",
    )
    key = attacker.key("read")
    requests = [wire.request("POST", "/v1/sql", key, {"sql": sql}) for sql in queries]
    await attacker.flood(itertools.cycle(requests), 8)


async def _tools_of_a_page(attacker: Attacker) -> None:
    """A page of another site asks the tools for agents, with a key that it was given."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    request = wire.request("POST", "/mcp", attacker.key("read"), body, origin="https://evil.example")
    await attacker.flood(request, 8)


async def _wrong_snapshots(attacker: Attacker) -> None:
    """Queries with members that are not snapshot ids."""
    body = {"sql": "SELECT 1", "snapshots": {f"{number:x}": [] for number in range(WRONG)}}
    await attacker.flood(wire.request("POST", "/v1/sql", attacker.key("read"), body), 4)


async def _tools_of_values(attacker: Attacker) -> None:
    """Calls of a tool with most of a megabyte of `[[],[],…]` as argument."""
    call = {"name": "query", "arguments": {"sql": [[]] * 3 * WRONG}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    accept = "application/json, text/event-stream"
    await attacker.flood(wire.request("POST", "/mcp", attacker.key("read"), body, accept=accept), 4)


async def _parameters(attacker: Attacker) -> None:
    """Addresses of 60 kB of parameters, which the framework parses before it authenticates."""
    path = f"/v1/datasets/{DATASET}/entities?{'a=1&' * 15_000}"
    await attacker.flood(wire.request("POST", path), 8)


ATTACKS = (
    Attack("queries with 90,000 wrong snapshot ids", "read", _wrong_snapshots, may(413, 422, 429, 503)),
    Attack("calls of a tool with 270,000 lists", "read", _tools_of_values, may(413, 429, 503)),
    Attack("addresses with 15,000 parameters", "none", _parameters, may(400, 429, 503)),
    Attack(
        f"{AT_ONCE} previews at once of 10,000 rows", "read", _previews, may(200, 429, 503), prepare=prepared
    ),
    Attack("SQL at which DuckDB fails", "read", _failing_sql, may(422, 429, 503)),
    Attack("a page of another site asks /mcp", "read", _tools_of_a_page, may(403, 429, 503)),
    Attack("forged cursors and the longest pages", "read", _cursors, may(200, 404, 422, 429, 503)),
)
