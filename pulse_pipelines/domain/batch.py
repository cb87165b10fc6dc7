"""Batches: when a topic is due, which offset ranges a batch takes, and its id. Pure functions.

A batch is a set of offset ranges; its id is derived from them, so that planning the same ranges twice always
names the same batch.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class BatchKind(StrEnum):
    """The kind of a batch: each has a limit of concurrent runs of its own, in dagster.yaml."""

    QUICK = "quick"
    BULK = "bulk"
    """One of its tenants has many events."""
    COSTLY = "costly"
    """Its only tenant has many files or columns (`ingest.costs`)."""


@dataclass(frozen=True, order=True)
class OffsetRange:
    """Offsets [start, end) of one partition of one tenant's events topic."""

    tenant_id: UUID
    partition: int
    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


ORDINARY_BYTES = 4 * 1024
"""An event of twice this size, or more, counts as several: a batch is bounded by bytes, too."""


@dataclass(frozen=True)
class Backlog:
    """The unplanned events of one tenant's topic: per partition the planned position and the end offset."""

    tenant_id: UUID
    ranges: tuple[OffsetRange, ...]
    event_bytes: int = 0
    """Mean size of the tenant's latest events; 0: unknown."""

    @property
    def weight(self) -> int:
        """Ordinary events that would take as long."""
        return sum(r.length for r in self.ranges) * self.event_weight

    @property
    def event_weight(self) -> int:
        return max(1, self.event_bytes // ORDINARY_BYTES)

    def is_bulk(self, flush_rows: int) -> bool:
        """Whether it is due at once, in a batch that gives way to small ones."""
        return self.weight >= flush_rows


def batch_id(ranges: Iterable[OffsetRange]) -> str:
    """The id of the batch that consists of exactly these ranges."""
    digest = hashlib.sha256()
    for r in sorted(ranges):
        digest.update(f"{r.tenant_id.hex}/{r.partition}/{r.start}/{r.end};".encode())
    return digest.hexdigest()[:20]


def due(
    backlogs: Sequence[Backlog],
    waiting_since: Mapping[UUID, float],
    now: float,
    *,
    flush_rows: int,
    flush_seconds: float,
) -> tuple[list[Backlog], list[Backlog]]:
    """The backlogs to flush now, as two groups: those due by waiting time, and bulk ones.

    Backlogs that have waited at least half of `flush_seconds` join the first group: one batch costs less
    than two, and tenants flushed together are due together from then on. The groups are never in one batch:
    a batch settles as a whole at its end, and a large backlog would delay the others.
    """

    def waits(backlog: Backlog, seconds: float) -> bool:
        return bool(backlog.weight) and now - waiting_since.get(backlog.tenant_id, now) >= seconds

    bulk = [b for b in backlogs if b.is_bulk(flush_rows)]
    small = [b for b in backlogs if not b.is_bulk(flush_rows)]
    if any(waits(b, flush_seconds) for b in small):
        return [b for b in small if waits(b, flush_seconds / 2)], bulk
    return [], bulk


def plan(backlogs: Iterable[Backlog], max_rows: int) -> list[OffsetRange]:
    """Choose the ranges of one batch over all due backlogs, at most `max_rows` ordinary events.

    Every topic gets an equal share first, so that a tenant with a large backlog cannot keep others out; the
    unused part of small topics' shares goes to the large ones.
    """
    waiting = sorted(backlogs, key=lambda backlog: backlog.weight)
    ranges: list[OffsetRange] = []
    remaining = max_rows
    for index, backlog in enumerate(waiting):
        share = max(1, remaining // (len(waiting) - index))
        weight = backlog.event_weight
        events = -(-min(share, remaining) // weight)
        for r in sorted(backlog.ranges, key=lambda r: r.length):
            length = min(r.length, events)
            if length:
                ranges.append(OffsetRange(r.tenant_id, r.partition, r.start, r.start + length))
                events -= length
                remaining = max(0, remaining - length * weight)
    return ranges


def share_out(backlogs: Iterable[Backlog], batches: int, worth: int) -> list[list[Backlog]]:
    """Split due backlogs over at most `batches` batches of about equal size.

    Batches of different tenants overlap: one drains while another is in the dedup gate. A batch should have
    at least `worth` events: fewer are not worth a run of their own.
    """
    waiting = sorted(backlogs, key=lambda backlog: backlog.weight, reverse=True)
    total = sum(backlog.weight for backlog in waiting)
    count = max(1, min(batches, len(waiting), total // worth))
    groups: list[list[Backlog]] = [[] for _ in range(count)]
    for backlog in waiting:  # the largest first, each to the group that has least
        min(groups, key=lambda group: sum(b.weight for b in group)).append(backlog)
    return [group for group in groups if group]


def divide(group: Iterable[Backlog], sizes: Mapping[UUID, int], most: int) -> list[list[Backlog]]:
    """Divide one batch's backlogs into batches whose tenants' schemas have at most `most` bytes together.

    Tenants of small schemas come first and together, so that those of large ones delay each other only.

    Args:
        group: the backlogs of one batch.
        sizes: bytes of schemas by tenant; a tenant that is missing has none.
        most: bytes; a tenant that has more by itself has a batch of its own.
    """
    batches: list[list[Backlog]] = []
    used = 0
    for backlog in sorted(group, key=lambda b: sizes.get(b.tenant_id, 0)):
        size = sizes.get(backlog.tenant_id, 0)
        if not batches or used + size > most:
            batches.append([])
            used = 0
        batches[-1].append(backlog)
        used += size
    return batches


def spread(ranges: Iterable[OffsetRange], tasks: int) -> list[list[OffsetRange]]:
    """Split ranges into at most `tasks` groups of about equal length, in topic order.

    Neighbouring ranges stay together, so that one task sees whole topics where they are small and
    writes few, large files; a range longer than a share is cut.
    """
    ordered = sorted(ranges)
    total = sum(r.length for r in ordered)
    groups: list[list[OffsetRange]] = []
    for index in range(tasks):
        quota = total * (index + 1) // tasks - total * index // tasks
        group: list[OffsetRange] = []
        while quota and ordered:
            r = ordered.pop(0)
            length = min(r.length, quota)
            group.append(OffsetRange(r.tenant_id, r.partition, r.start, r.start + length))
            quota -= length
            if length < r.length:
                ordered.insert(0, OffsetRange(r.tenant_id, r.partition, r.start + length, r.end))
        if group:
            groups.append(group)
    return groups
