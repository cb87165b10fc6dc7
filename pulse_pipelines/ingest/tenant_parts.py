"""The tenants' parts of a batch, and the accounting of their ranges, computed from counts alone."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from pulse_pipelines.domain.batch import OffsetRange
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest.stages import (
    Landed,
    LandingFailed,
    PartitionCount,
    StagedTable,
    TenantSettled,
    TopicDrained,
)
from pulse_pipelines.tables.ledger import RangeAccounting


@dataclass(frozen=True)
class TenantPart:
    """One tenant's part of a batch: ranges, files, tables and staged dead letters."""

    tenant: Tenant
    ranges: tuple[OffsetRange, ...]
    topics: tuple[TopicDrained, ...]
    tables: tuple[StagedTable, ...]
    refused: tuple[LandingFailed, ...]
    parts: tuple[int, ...]
    """Marks of its rows in the staging tables."""


def tenant_parts(
    landed: Landed, failed: set[UUID], marks: Mapping[UUID, Sequence[int]]
) -> Iterable[TenantPart]:
    """The parts of the tenants that have not failed, by tenant id."""
    ranges: dict[UUID, list[OffsetRange]] = defaultdict(list)
    for r in landed.plan.ranges:
        ranges[r.tenant_id].append(r)
    for tenant_id, tenant_ranges in sorted(ranges.items()):
        if tenant_id in failed:
            continue
        topics = tuple(topic for topic in landed.topics if topic.tenant_id == tenant_id)
        yield TenantPart(
            tenant=landed.plan.scopes[tenant_id].tenant,
            ranges=tuple(tenant_ranges),
            topics=topics,
            tables=tuple(t for t in landed.tables if t.tenant_id == tenant_id),
            refused=tuple(r for r in landed.refused if r.tenant_id == tenant_id),
            parts=(*(topic.part for topic in topics), *marks.get(tenant_id, ())),
        )


def accounting(landed: Landed, part: TenantPart, r: OffsetRange) -> RangeAccounting:
    """The accounting of one range: every drained event is in exactly one of the three counts."""
    count = _total(part.topics, r.partition)
    refused = {failed.dataset_id for failed in part.refused}
    verdicts = landed.verdicts
    copies = sorted(
        offset for dataset_id in count.accepted for offset in verdicts.duplicates_of(dataset_id, r.partition)
    )
    unlanded = sum(
        rows - len(verdicts.duplicates_of(dataset_id, r.partition))
        if dataset_id in refused
        else len(verdicts.over_quota_of(dataset_id, r.partition))
        for dataset_id, rows in count.accepted.items()
    )
    dead = count.dead_letters + unlanded
    return RangeAccounting(
        drained=count.drained,
        event_bytes=count.bytes // max(1, count.drained),
        landed=count.drained - len(copies) - dead,
        duplicates=len(copies),
        dead_letters=dead,
        duplicate_offsets=copies,
        absent=count.absent,
        oldest_received=datetime.fromtimestamp(count.oldest_ms / 1000, UTC) if count.drained else None,
    )


def _total(topics: Iterable[TopicDrained], partition: int) -> PartitionCount:
    total = PartitionCount()
    for topic in topics:
        if (count := topic.partitions.get(partition)) is None:
            continue
        total.drained += count.drained
        total.bytes += count.bytes
        total.oldest_ms = min(total.oldest_ms, count.oldest_ms)
        total.dead_letters += count.dead_letters
        total.absent.extend(count.absent)
        for dataset_id, rows in count.accepted.items():
            total.accepted[dataset_id] = total.accepted.get(dataset_id, 0) + rows
    return total


def settled(part: TenantPart, ranges: Iterable[RangeAccounting]) -> TenantSettled:
    """The sums over all ranges of a tenant's part."""
    counts = [(o.drained, o.landed, o.duplicates, o.dead_letters) for o in ranges]
    return TenantSettled(part.tenant.tenant_id, *map(sum, zip(*counts, strict=True)))
