"""Excessive reads."""

import itertools
import random
from collections.abc import Iterator

from chaos.harm import wire
from chaos.harm.attack import Attack, Attacker, may
from chaos.harm.attacks.floods import prepared
from chaos.harm.neighbour import DATASET

AT_ONCE = 60


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


ATTACKS = (
    Attack(
        f"{AT_ONCE} previews at once of 10,000 rows", "read", _previews, may(200, 429, 503), prepare=prepared
    ),
    Attack("SQL at which DuckDB fails", "read", _failing_sql, may(422, 429, 503)),
    Attack("a page of another site asks /mcp", "read", _tools_of_a_page, may(403, 429, 503)),
    Attack("forged cursors and the longest pages", "read", _cursors, may(200, 404, 422, 429, 503)),
)
