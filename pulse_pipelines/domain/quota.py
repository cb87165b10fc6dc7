"""Quotas and rates of a tenant: positive is a maximum, -1 unlimited, 0 not configured."""

from collections.abc import Sequence
from dataclasses import dataclass

UNLIMITED = -1
NOT_CONFIGURED = 0
EVENTS, ENTITIES = "events", "entities"
"""Kinds of datasets (`domain.dataset.DatasetKind`); each kind has quotas of its own."""
SLOWEST, FASTEST = 0.001, 1e9
"""Bounds of a rate, per second: at a slower one no client could wait for the next request."""
MOST = 2**53
"""Maximum of a limit that is a count: up to it all of JSON's readers agree."""
STATE_KEYS = 100_000
"""Keys of a state of events, unless fewer are asked for, and at most."""
STATE_BUCKETS = 1_000_000
"""Buckets of the windows of a state, unless fewer are asked for, and at most."""
LAKE = "lake"
"""Tables that the tenant's own engines write; their quotas are beside those."""

COUNTED = "pulse.counted"
"""Header of a message whose event has a place in the month's quota, reserved before it was published. A
producer that forges it gains no place: only other events of the same tenant lose theirs."""


@dataclass(frozen=True)
class Limits:
    """Limits of a tenant; a limit that is not configured falls back to the installation's default."""

    max_datasets: int = NOT_CONFIGURED
    max_records_per_month: int = NOT_CONFIGURED
    requests_per_second: float = NOT_CONFIGURED
    events_per_second: float = NOT_CONFIGURED
    max_entity_datasets: int = NOT_CONFIGURED
    max_lake_tables: int = NOT_CONFIGURED
    max_lake_bytes: int = NOT_CONFIGURED

    def over(self, defaults: "Limits") -> "Limits":
        """These limits, completed by the defaults."""
        return Limits(
            self.max_datasets or defaults.max_datasets,
            self.max_records_per_month or defaults.max_records_per_month,
            self.requests_per_second or defaults.requests_per_second,
            self.events_per_second or defaults.events_per_second,
            self.max_entity_datasets or defaults.max_entity_datasets,
            self.max_lake_tables or defaults.max_lake_tables,
            self.max_lake_bytes or defaults.max_lake_bytes,
        )


def limited(limit: float) -> bool:
    """Whether a limit, after defaults, is a maximum."""
    return limit > 0


def checked_rate(value: float) -> float:
    """A rate, if it may be set. Raises ValueError."""
    if value in (UNLIMITED, NOT_CONFIGURED) or SLOWEST <= value <= FASTEST:
        return value
    raise ValueError(
        f"must be from {SLOWEST} to {FASTEST:,.0f} per second, {UNLIMITED} (unlimited) or "
        f"{NOT_CONFIGURED} (the installation's default)"
    )


def part(rate: float, demand: float, other_demands: Sequence[float]) -> float:
    """The share of a rate for one of several processes, by the demand on each of them (all per second).

    Max-min fair: each gets its demand, up to an equal part of what processes with less demand leave; any
    remainder is divided equally. So all shares add up to the rate.
    """
    remaining, asking = rate, sorted((demand, *other_demands))
    while asking and asking[0] <= remaining / len(asking):
        remaining -= asking.pop(0)
    if asking:
        return min(demand, remaining / len(asking))
    return demand + remaining / (len(other_demands) + 1)


def admit(used: int, requests: "list[int]", maximum: int) -> list[bool]:
    """Whether each request, in order, still fits: one that is too large does not exclude later ones."""
    verdicts = []
    for count in requests:
        fits = used + count <= maximum
        used += count if fits else 0
        verdicts.append(fits)
    return verdicts
