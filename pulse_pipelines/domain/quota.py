"""Quotas and rates of a tenant. Positive: a maximum; -1: unlimited; 0: none configured."""

from collections.abc import Sequence
from dataclasses import dataclass

UNLIMITED = -1
NOT_CONFIGURED = 0
EVENTS, ENTITIES = "events", "entities"
"""Kinds of datasets (`domain.dataset.DatasetKind`); each kind has quotas of its own."""
LAKE = "lake"
"""Tables that the tenant's own engines write; their quotas are beside those."""

COUNTED = "pulse.counted"
"""Header of a message whose event took its place in the month before it was published, as its sender says.
Who lies gets no place by it that the tenant has not: only its own other events go without."""


@dataclass(frozen=True)
class Limits:
    """What a tenant may have and do; a limit that is not configured is the installation's default."""

    max_datasets: int = NOT_CONFIGURED
    max_records_per_month: int = NOT_CONFIGURED
    requests_per_second: float = NOT_CONFIGURED
    events_per_second: float = NOT_CONFIGURED
    max_entity_datasets: int = NOT_CONFIGURED
    max_lake_tables: int = NOT_CONFIGURED
    max_lake_bytes: int = NOT_CONFIGURED

    def over(self, defaults: "Limits") -> "Limits":
        """These limits, with the defaults where none is configured."""
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
    """Whether a limit, after defaults, is a maximum at all."""
    return limit > 0


def part(rate: float, own: float, others: Sequence[float]) -> float:
    """What one of several processes may let through of a rate, by what each is asked for (all per second).

    Each gets what it is asked for, up to an equal part of what is left by those who are asked for less; of
    what nobody is asked for each gets an equal part. So all parts together are the rate.
    """
    left, asking = rate, sorted((own, *others))
    while asking and asking[0] <= left / len(asking):
        left -= asking.pop(0)
    if asking:
        return min(own, left / len(asking))
    return own + left / (len(others) + 1)


def admit(used: int, asked: "list[int]", maximum: int) -> list[bool]:
    """Which of these requests, in order, still fit: one too large does not keep a later one out."""
    verdicts = []
    for count in asked:
        fits = used + count <= maximum
        used += count if fits else 0
        verdicts.append(fits)
    return verdicts
