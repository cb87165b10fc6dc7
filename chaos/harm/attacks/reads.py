"""Excessive reads."""

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


ATTACKS = (
    Attack(
        f"{AT_ONCE} previews at once of 10,000 rows", "read", _previews, may(200, 429, 503), prepare=prepared
    ),
    Attack("forged cursors and the longest pages", "read", _cursors, may(200, 404, 422, 429, 503)),
)
