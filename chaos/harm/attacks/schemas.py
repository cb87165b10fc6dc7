"""Schemas that are expensive to validate with, and endless publishing and creating."""

import itertools
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import orjson

from chaos.harm import wire
from chaos.harm.attack import Attack, Attacker, may
from pulse_pipelines.domain.schemas.cost import Bound
from pulse_pipelines.domain.schemas.schema import check_document
from pulse_resources.errors import UserError

FLOATS = [number + 0.5 for number in range(30_000)]
EVENT_BYTES = 250_000
AT_ONCE = 4
"""Events per request: more would have too many values."""


def _schema(fragment: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": fragment}}


def _event(number: int, dataset: str, values: list[Any]) -> dict[str, object]:
    return {
        "event_id": f"{dataset}-{number}",
        "dataset": dataset,
        "timestamp": "2026-11-19T10:00:00Z",
        "data": {"a": values},
    }


async def _refused(attacker: Attacker) -> None:
    schema = _schema({"items": {"not": {"enum": FLOATS}}})
    body = {"name": "dear", "schema": schema}
    await attacker.flood(wire.request("POST", "/v1/schemas", attacker.key("manage"), body), 4)


async def _wrong(attacker: Attacker) -> None:
    """Each is an error; to list them took seconds of the event loop."""
    body = {"name": "wrong", "fields": {"a": "string"}, "required": [1] * 450_000}
    await attacker.flood(wire.request("POST", "/v1/schemas", attacker.key("manage"), body), 4)


@cache
def _most() -> int:
    """Maximum number of floats in an accepted enum of items."""
    low, high = 1, len(FLOATS)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            check_document(orjson.dumps(_schema({"items": {"enum": FLOATS[:middle]}})).decode(), Bound())
            low = middle
        except UserError:
            high = middle
    return low


UNIQUE = _schema({"type": "array", "uniqueItems": True})


async def _accepted(attacker: Attacker) -> None:
    """Send the largest events, which the most expensive schemas validate completely."""
    most = _most()
    dearest: dict[str, tuple[dict[str, Any], list[Any]]] = {
        "enum": (_schema({"items": {"enum": FLOATS[:most]}}), [FLOATS[most - 1]] * (EVENT_BYTES // 6)),
        "unique": (UNIQUE, [{"a": number} for number in range(EVENT_BYTES // 13)]),
    }
    bodies = []
    for slug, (schema, values) in dearest.items():
        published = await attacker.ask("POST", "/v1/schemas", "manage", {"name": slug, "schema": schema})
        assert published, "no answer"
        uri = orjson.loads(published.body)["schema_uri"]
        await attacker.ask("POST", "/v1/datasets", "manage", {"slug": slug, "schema_uri": uri})
        bodies.append([_event(number, slug, values) for number in range(AT_ONCE)])
    key = attacker.key("collect")
    requests = [wire.request("POST", "/v1/collect", key, body) for body in bodies]
    await attacker.flood(itertools.cycle(requests), 8)


async def _published(attacker: Attacker) -> None:
    """Publish new versions with thousands of properties each."""
    fields = {f"f{number}": {"type": "string", "maxLength": 100} for number in range(500)}

    def requests() -> Iterator[bytes]:
        for number in itertools.count():
            schema = {"type": "object", "properties": fields, "title": f"version {number}"}
            body = {"name": f"s{random.randrange(100)}", "schema": schema}
            yield wire.request("POST", "/v1/schemas", attacker.key("manage"), body)

    await attacker.flood(requests(), 8)


async def _datasets(attacker: Attacker) -> None:
    key = attacker.key("manage")

    def requests() -> Iterator[bytes]:
        for number in itertools.count():
            body = {"slug": f"d{number}", "schema_uri": f"pulse://{attacker.target.tenant}/orders/1"}
            yield wire.request("POST", "/v1/datasets", key, body)
            if number >= 20:
                yield wire.request("DELETE", f"/v1/datasets/d{number - 20}", key)

    await attacker.flood(requests(), 8)


async def _names(attacker: Attacker) -> None:
    """Create datasets of ever new names, and delete none: each is an asset for everybody."""
    names = random.randrange(10**9)

    def requests() -> Iterator[bytes]:
        for number in itertools.count():
            body = {"slug": f"n{names}_{number}", "schema_uri": f"pulse://{attacker.target.tenant}/orders/1"}
            yield wire.request("POST", "/v1/datasets", attacker.key("manage"), body)

    await attacker.flood(requests(), 8)


ATTACKS = (
    Attack("schema that is not one of 30,000 floats, in a loop", "manage", _refused, may(422, 429, 503)),
    Attack(
        "the dearest schemas that are accepted, and the dearest events for them",
        "manage, collect",
        _accepted,
        may(201, 202, 207, 422, 429, 503),
    ),
    Attack("450,000 numbers in a list of fields", "manage", _wrong, may(413, 422, 429, 503)),
    Attack("new schema versions in a loop", "manage", _published, may(201, 200, 422, 429, 503)),
    Attack("datasets of new names, up to the limit", "manage", _names, may(201, 429, 503)),
    Attack("datasets created and deleted in a loop", "manage", _datasets, may(201, 200, 404, 409, 429, 503)),
)
