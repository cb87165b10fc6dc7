"""The ledger of a batch: what became of each tenant's part, range by range. Pure arithmetic.

drained = landed + duplicates + dead_letters holds by construction for every range, and each drained
offset is in exactly one of the three.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from pulse_pipelines.domain.batch import OffsetRange
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.stages.handles import (
    Landed,
    LandingFailed,
    PartitionCount,
    StagedTable,
    TenantSettled,
    TopicDrained,
)


@dataclass(frozen=True)
class TenantPart:
    """Everything of one tenant in this batch."""

    tenant: Tenant
    ranges: tuple[OffsetRange, ...]
    topics: tuple[TopicDrained, ...]
    tables: tuple[StagedTable, ...]
    refused: tuple[LandingFailed, ...]
    parts: tuple[int, ...]
    """Marks of its rows in the staging tables."""


def tenant_parts(landed: Landed, failed: set[UUID], landing_parts: dict[UUID, int]) -> Iterable[TenantPart]:
    """The part of every tenant whose events came through all stages so far."""
    drained = landed.gated.drained
    ranges: dict[UUID, list[OffsetRange]] = defaultdict(list)
    for r in drained.plan.ranges:
        ranges[r.tenant_id].append(r)
    for tenant_id, own in sorted(ranges.items()):
        if tenant_id in failed:
            continue
        topics = tuple(topic for topic in drained.topics if topic.tenant_id == tenant_id)
        refused = tuple(r for r in landed.refused if r.tenant_id == tenant_id)
        yield TenantPart(
            tenant=drained.plan.scopes[tenant_id].tenant,
            ranges=tuple(own),
            topics=topics,
            tables=tuple(t for t in landed.tables if t.tenant_id == tenant_id),
            refused=refused,
            parts=(
                *(topic.part for topic in topics),
                *(landing_parts[r.dataset_id] for r in refused),
            ),
        )


def of_range(landed: Landed, part: TenantPart, r: OffsetRange) -> dict[str, object]:
    """What became of one range: every drained event is in exactly one of the three counts."""
    count = _total(part.topics, r.partition)
    refused = {failed.dataset_id for failed in part.refused}
    copies = sorted(
        offset
        for dataset_id in count.accepted
        for offset in landed.gated.duplicates.get(dataset_id, {}).get(r.partition, [])
    )
    unlanded = sum(
        rows - len(landed.gated.duplicates.get(dataset_id, {}).get(r.partition, []))
        for dataset_id, rows in count.accepted.items()
        if dataset_id in refused
    )
    dead = count.dead_letters + unlanded
    return {
        "drained": count.drained,
        "duplicates": len(copies),
        "dead_letters": dead,
        "landed": count.drained - len(copies) - dead,
        "duplicate_offsets": Multirange(runs(copies)),
        "oldest_received": datetime.fromtimestamp(count.oldest_ms / 1000, UTC) if count.drained else None,
        "absent_offsets": Multirange(Range(first, end) for first, end in sorted(count.absent)),
    }


def _total(topics: Iterable[TopicDrained], partition: int) -> PartitionCount:
    total = PartitionCount()
    for topic in topics:
        if (count := topic.partitions.get(partition)) is None:
            continue
        total.drained += count.drained
        total.oldest_ms = min(total.oldest_ms, count.oldest_ms)
        total.dead_letters += count.dead_letters
        total.absent.extend(count.absent)
        for dataset_id, rows in count.accepted.items():
            total.accepted[dataset_id] = total.accepted.get(dataset_id, 0) + rows
    return total


def runs(offsets: Sequence[int]) -> Iterable[Range[int]]:
    """Sorted offsets as half-open ranges of consecutive ones."""
    start = 0
    for index in range(1, len(offsets) + 1):
        if index == len(offsets) or offsets[index] != offsets[index - 1] + 1:
            yield Range(offsets[start], offsets[index - 1] + 1)
            start = index


def outcome(part: TenantPart, became: Sequence[dict[str, object]]) -> TenantSettled:
    """The sums over all ranges of a tenant's part, from what `of_range` says of each."""
    sums = {"drained": 0, "landed": 0, "duplicates": 0, "dead_letters": 0}
    for entry in became:
        for key in sums:
            sums[key] += entry[key]  # type: ignore[operator]
    return TenantSettled(part.tenant.tenant_id, **sums)
