"""Events with a known verdict for each schema version, determined by the seed."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

SLUGS = ("orders", "clicks", "extras")
"""Slugs of the datasets; the last one does not exist initially."""
NAME = "orders"
"""Name of the schema that all of them follow."""
PERSONS = ("p0", "p1", "p2", "p3", "p4")
DAYS = 2
NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)
POOL = 15
"""Ids that are repeated in every sending step."""
AGAIN = 0.4
"""Share of events with a repeated id."""

_AMOUNT = {"type": "integer"}
_RANK = {"type": "integer", "maximum": 5}
_COUNTRY = {"type": "string", "minLength": 2, "maxLength": 2}
_FIRST = {"country": _COUNTRY, "person": {"type": "string"}, "amount": _AMOUNT, "rank": _RANK}
_CHANGES: Sequence[dict[str, Any]] = (
    {},
    {"amount": {"type": "number"}},  # makes dead letters with fractions valid
    {"coupon": {"type": "string"}},  # earlier versions accept any coupon
    {"rank": {"type": "integer", "maximum": 10}},
    {"gift": {"type": "boolean"}},
)


def _versions() -> Iterator[dict[str, Any]]:
    properties: dict[str, Any] = dict(_FIRST)
    for change in _CHANGES:
        properties = properties | change
        yield {"type": "object", "required": ["country"], "properties": properties}


DOCUMENTS = tuple(orjson.dumps(document).decode() for document in _versions())
"""Schema versions, starting with 1; a dataset can move from each to any later one."""
VERSIONS = frozenset(range(1, len(DOCUMENTS) + 1))

KINDS: dict[str, tuple[dict[str, Any], frozenset[int]]] = {
    # Fields of each kind of event, and the versions that accept it.
    "plain": ({}, VERSIONS),
    "voucher": ({"coupon": "SPRING"}, VERSIONS),
    "fraction": ({"amount": 1.5}, frozenset({2, 3, 4, 5})),
    "coupon": ({"coupon": 5}, frozenset({1, 2})),
    "rank": ({"rank": 7}, frozenset({4, 5})),
    "gift": ({"gift": "yes"}, frozenset({1, 2, 3, 4})),
    "invalid": ({"country": 5}, frozenset()),
}
WEIGHTS = {"plain": 8, "voucher": 2, "fraction": 2, "coupon": 2, "rank": 1, "gift": 2, "invalid": 1}
NAMED = 0.06
"""Share of events that name a schema version."""
UNDECODABLE = 0.02
HOSTILE = 0.3
"""Share of hostile events of the hostile tenant."""
MOMENTS = (
    "9999-12-31T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+14:00",
    "1900-01-01T00:00:00Z",
    "1969-12-31T23:59:59Z",
    "2263-01-01T00:00:00Z",
    "2199-06-01T00:00:00Z",
    "1582-10-10T00:00:00Z",
    "not a time",
)


@dataclass(frozen=True)
class Event:
    """A message, and what is known about it."""

    payload: bytes
    slug: str
    """Dataset that it names."""
    event_id: str | None = None
    """None: it has no readable id."""
    person: str | None = None
    versions: frozenset[int] = frozenset()
    """Schema versions that accept it."""
    named: int | None = None
    """Version that it names."""
    hostile: bool = False
    """Whether it can land is not predicted; it must be accounted for."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Its data, and its timestamp if that is usual."""

    def valid(self, version: int) -> bool:
        """Whether a dataset at `version`, whose history includes the named one, accepts it."""
        return (self.named or version) in self.versions


def events(seed: int, slug: str, count: int, *, hostile: bool = False, fit: bool = False) -> Iterator[Event]:
    """Events of one step.

    Args:
        hostile: include timestamps and ids at and beyond all limits.
        fit: only events that every version accepts.
    """
    draw = random.Random(seed)
    for number in range(count):
        drawn = draw.random()
        if not fit and drawn < UNDECODABLE:
            yield Event(b"\xff\x00 not JSON " + f"{seed}-{number}".encode(), slug)
        else:
            yield _event(draw, f"e-{seed}-{number}", slug, hostile=hostile, fit=fit)


def _event(draw: random.Random, fresh: str, slug: str, *, hostile: bool, fit: bool) -> Event:
    kind = "plain" if fit else draw.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))[0]
    again = draw.randrange(POOL) if draw.random() < AGAIN else None
    event_id = fresh if again is None else f"again-{again}"
    person = draw.choice(PERSONS) if again is None else PERSONS[again % len(PERSONS)]
    at = NOW - timedelta(days=draw.randrange(DAYS), milliseconds=draw.randrange(40_000_000))
    named = draw.choice(tuple(VERSIONS)) if not fit and draw.random() < NAMED else None
    numbers = {"amount": draw.randrange(100), "rank": draw.randrange(5)}
    moment, odd = None, hostile and draw.random() < HOSTILE
    if odd and draw.random() < 0.7:
        moment = draw.choice(MOMENTS)
    elif odd:
        event_id = fresh.ljust(draw.choice((511, 512, 513, 5_000)), "x")
    return replace(event(event_id, slug, kind, person, at, named, moment, **numbers), hostile=odd)


def event(
    event_id: str,
    slug: str,
    kind: str = "plain",
    person: str = PERSONS[0],
    at: datetime = NOW,
    named: int | None = None,
    moment: str | None = None,
    **numbers: int,
) -> Event:
    """Make one event.

    Args:
        kind: one of `KINDS`.
        named: schema version that it names.
        moment: its timestamp, valid or not; default `at`.
        numbers: numbers in its data.
    """
    change, versions = KINDS[kind]
    data: dict[str, Any] = {"country": "DE", "person": person} | numbers | change
    envelope: dict[str, Any] = {"event_id": event_id, "dataset": slug, "data": data}
    envelope["timestamp"] = at.isoformat() if moment is None else moment
    if named is not None:
        envelope["schema_version"] = named
    fields = data if moment is not None else data | {"timestamp": at}
    return Event(orjson.dumps(envelope), slug, event_id, person, versions, named, fields=fields)
