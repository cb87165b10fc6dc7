"""Keys used beyond their scopes or their validity."""

import itertools

import orjson

from chaos.harm import wire
from chaos.harm.attack import SOURCE, Attack, Attacker, may
from chaos.harm.wire import Link

PATH = "/v1/keys"


async def _minted(attacker: Attacker) -> None:
    bodies = ({"name": "more", "scopes": scopes} for scopes in (["collect"], ["manage", "read"]))
    requests = [wire.request("POST", PATH, attacker.key("manage"), body) for body in bodies]
    await attacker.flood(itertools.cycle(requests), 8)


async def _children(attacker: Attacker) -> None:
    """Use a key's child and grandchild after the key is revoked."""

    async def issued(by: str) -> dict[str, str]:
        link = await Link.to(attacker.target.api, SOURCE)
        answer = await attacker.counted(
            link, wire.request("POST", PATH, by, {"name": "child", "scopes": ["manage"]})
        )
        link.close()
        assert answer, "no answer"
        issued: dict[str, str] = orjson.loads(answer.body)
        return issued

    first = await issued(attacker.key("manage"))
    child = await issued(first["key"])
    grandchild = await issued(child["key"])
    await attacker.ask("DELETE", f"{PATH}/{first['key_id']}", "manage")
    requests = [wire.request("GET", PATH, key["key"]) for key in (first, child, grandchild)]
    attacker.counts.clear()
    await attacker.flood(itertools.cycle(requests), 8)


async def _many(attacker: Attacker) -> None:
    body = {"name": "one more", "scopes": ["manage"]}
    await attacker.flood(wire.request("POST", PATH, attacker.key("manage"), body), 20)


ATTACKS = (
    Attack("a key mints keys with scopes that it has not", "manage", _minted, may(403, 429, 503)),
    Attack(
        "a revoked key, its child and its grandchild are used", "manage, revoked", _children, may(401, 429)
    ),
    Attack("new keys in a loop", "manage", _many, may(201, 429, 503)),
)
