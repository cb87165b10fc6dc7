"""Test load: valid events, copies, late ones and all kinds of invalid ones, determined by the seed."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from pulse_pipelines.domain.reasons import Reason

SCHEMAS: dict[str, dict[str, Any]] = {
    "orders": {
        "type": "object",
        "required": ["country"],
        "properties": {
            "country": {"type": "string", "minLength": 2, "maxLength": 2},
            "amount": {"type": "number", "minimum": 0},
            "count": {"type": "integer"},
            "paid": {"type": "boolean"},
            "address": {"type": "object", "properties": {"zip": {"type": "string"}}},
        },
    },
    "clicks": {
        "type": "object",
        "required": ["page", "ms"],
        "properties": {
            "page": {"type": "string"},
            "ms": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
    },
}
COPIES, LATE, BAD = 0.10, 0.05, 0.05
DAYS = 3
LATE_DAYS = 400
NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)
REMEMBERED = 500
"""Copies repeat one of this many earlier valid events."""


@dataclass(frozen=True)
class Event:
    """A message of one tenant, with its expected fate."""

    payload: bytes
    dataset: str
    event_id: str | None
    """Id of a valid event; None: it must become a dead letter."""
    reason: Reason | None
    """Reason why it cannot land."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Expected content of its row."""


class Load:
    """Endless events of one tenant; loads of the same seed are equal."""

    def __init__(self, seed: int, *, bad: float = BAD) -> None:
        self._random = random.Random(seed)
        self._bad = bad
        self._number = 0
        self._valid: list[Event] = []

    def events(self, count: int) -> Iterator[Event]:
        """The next `count` events."""
        for _ in range(count):
            drawn = self._random.random()
            if drawn < self._bad:
                yield self._bad_event()
            elif drawn < self._bad + COPIES and self._valid:
                yield self._random.choice(self._valid[-REMEMBERED:])
            else:
                event = self._valid_event()
                self._valid.append(event)
                yield event

    def _valid_event(self) -> Event:
        self._number += 1
        draw = self._random
        late = draw.random() < LATE
        back = timedelta(days=draw.randrange(LATE_DAYS) if late else draw.randrange(DAYS))
        timestamp = NOW - back - timedelta(milliseconds=draw.randrange(86_400_000))
        if draw.random() < 0.5:
            dataset = "orders"
            data: dict[str, Any] = {
                "country": draw.choice(("DE", "FR", "NG", "BR")),
                "amount": draw.randrange(100_000) / 4,
                "count": draw.randrange(10**12),
                "paid": draw.random() < 0.5,
                "address": {"zip": f"{draw.randrange(10**5):05}"},
            }
        else:
            dataset = "clicks"
            data = {
                "page": f"/p/{draw.randrange(1_000)}",
                "ms": draw.randrange(-5, 10**6),
                "tags": [f"t{draw.randrange(9)}" for _ in range(draw.randrange(3))],
            }
        event_id = f"event-{self._number}-{draw.getrandbits(32):08x}"
        payload = _envelope(event_id, dataset, timestamp, data)
        return Event(payload, dataset, event_id, None, {"timestamp": timestamp} | data)

    def _bad_event(self) -> Event:
        draw, reason = self._random, self._random.choice(tuple(_BAD))
        mark = f"bad-{draw.getrandbits(64):016x}"
        return Event(_BAD[reason](mark, draw), "orders", None, reason)


def _envelope(event_id: str, dataset: str, timestamp: datetime | str, data: dict[str, Any]) -> bytes:
    when = timestamp if isinstance(timestamp, str) else timestamp.isoformat()
    return orjson.dumps({"event_id": event_id, "dataset": dataset, "timestamp": when, "data": data})


_BAD: dict[Reason, Callable[[str, random.Random], bytes]] = {
    Reason.UNDECODABLE: lambda mark, draw: b"\xff\x00 not JSON " + mark.encode(),
    Reason.SCHEMA_VIOLATION: lambda mark, draw: _envelope(
        mark, "orders", NOW, {"country": draw.randrange(9)}
    ),
    Reason.UNKNOWN_DATASET: lambda mark, draw: _envelope(mark, "nowhere", NOW, {"country": "DE"}),
    Reason.INVALID_TIMESTAMP: lambda mark, draw: _envelope(mark, "orders", "yesterday", {"country": "DE"}),
    Reason.TIMESTAMP_OUT_OF_RANGE: lambda mark, draw: _envelope(
        mark, "orders", f"9999-12-31T{draw.randrange(24):02}:00:00Z", {"country": "DE"}
    ),
    Reason.NUL_CHARACTER: lambda mark, draw: _envelope(mark, "orders", NOW, {"country": "D\0"}),
    Reason.INTEGER_OUT_OF_RANGE: lambda mark, draw: _envelope(
        mark, "orders", NOW, {"country": "DE", "count": 2**63}
    ),
}
