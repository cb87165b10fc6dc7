"""Floods of valid and of invalid events."""

import asyncio
import gzip
import itertools
import os
from collections.abc import Iterator
from datetime import date, timedelta
from functools import partial
from typing import Any

import orjson

from chaos.harm import wire
from chaos.harm.attack import Attack, Attacker, may
from chaos.harm.neighbour import DATASET
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import kafka

BODIES = 64
"""Bodies prepared in advance and sent in turns: the first round has new events, the others copies."""
PREPARED = 10_000
DAYS = 2_000


def _event(valid: bool, dataset: str = DATASET, at: str = "2026-11-19T10:00:00Z") -> bytes:
    data: dict[str, Any] = {"country": "DE" if valid else 7, "amount": 2.5}
    return orjson.dumps({"event_id": os.urandom(12).hex(), "dataset": dataset, "timestamp": at, "data": data})


def _bodies(events: int, dataset: str = DATASET, *, valid: bool = True) -> Iterator[bytes]:
    bodies = [b"\n".join(_event(valid, dataset) for _ in range(events)) for _ in range(BODIES)]
    return itertools.cycle(bodies)


async def _saturating(attacker: Attacker) -> None:
    key = attacker.key("collect")
    requests = (wire.request("POST", "/v1/collect", key, body) for body in _bodies(1))
    await attacker.flood(requests, 40)


async def _large(attacker: Attacker) -> None:
    await _packed(attacker, _bodies(2_000))


def _of_days() -> list[bytes]:
    """Events each of which is a file of its batch, which takes minutes."""
    begin = date(1971, 1, 1)
    return [_event(True, at=f"{begin + timedelta(days=number)}T10:00:00Z") for number in range(DAYS)]


def _prepare_days(tenant: Tenant) -> None:
    """The first such batch: from then on Pulse knows whom it has to deal with."""
    producer = kafka.producer()
    for event in _of_days():
        producer.produce(tenant.topic, event)
    assert producer.flush(60) == 0


async def _days(attacker: Attacker) -> None:
    body = b"\n".join(_of_days())
    await attacker.ask("POST", "/v1/collect", "collect", body, content_type="application/x-ndjson")
    await asyncio.sleep(attacker.remaining_s)


async def _invalid(attacker: Attacker) -> None:
    body = {
        "slug": "bad",
        "schema_uri": f"pulse://{attacker.target.tenant}/orders/1",
        "on_invalid": "dead_letter",
    }
    await attacker.ask("POST", "/v1/datasets", "manage", body)
    await _packed(attacker, _bodies(500, "bad", valid=False))


async def _packed(attacker: Attacker, bodies: Iterator[bytes]) -> None:
    key = attacker.key("collect")
    how = {"content_type": "application/x-ndjson", "content_encoding": "gzip"}
    packed = itertools.cycle(gzip.compress(next(bodies), 1) for _ in range(BODIES))
    requests = (wire.request("POST", "/v1/collect", key, body, **how) for body in packed)
    await attacker.flood(requests, 8)


def prepared(tenant: Tenant, *, valid: bool = True) -> None:
    """Send a tenant's events, which become rows, or permanent dead letters if they are not valid."""
    producer = kafka.producer()
    for _ in range(PREPARED):
        producer.produce(tenant.topic, _event(valid))
    assert producer.flush(60) == 0


async def _replayed(attacker: Attacker) -> None:
    body = {"filter": {}, "limit": PREPARED}
    await attacker.flood(wire.request("POST", "/v1/dead-letters/replay", attacker.key("manage"), body), 16)


SERVED = may(202, 413, 429, 503)
ATTACKS = (
    Attack("40 connections of honest requests, as fast as they are answered", "collect", _saturating, SERVED),
    Attack("2,000 valid events per request, as fast as they are answered", "collect", _large, SERVED),
    Attack(f"{DAYS:,} events of as many days", "collect", _days, SERVED, prepare=_prepare_days),
    Attack(
        "invalid events for the dead letters, 500 per request",
        "manage, collect",
        _invalid,
        may(201, 202, 429, 503),
    ),
    Attack(
        f"{PREPARED:,} dead letters replayed in a loop",
        "manage",
        _replayed,
        may(200, 429, 503),
        prepare=partial(prepared, valid=False),
    ),
)
