"""Raw objects that the object store no longer holds, by batch, and whether Kafka can give them back."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from pulse_pipelines.domain.batch import OffsetRange
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import kafka, object_store, postgres
from pulse_resources.errors import Transient
from pulse_resources.settings import load_settings

PARTS = """
SELECT batch_id, path, slug, day, events, start + bytes FROM raw_objects
WHERE tenant_id = %s AND removed_at IS NULL ORDER BY batch_id, path, start
"""
# Excluded: rows and letters of erased persons, and, once there was an erasure, duplicates, whose persons no
# record names. None of them is ever rebuilt to a row.
RANGES = """
SELECT r.batch_id, r.partition, r.start_offset, r.end_offset, r.drained, int8multirange(
    int8range(r.start_offset, r.end_offset)) * (
        coalesce((SELECT range_agg(e.offsets) FROM erased_offsets e
            WHERE (e.tenant_id, e.partition) = (r.tenant_id, r.partition)), '{}')
        + coalesce((SELECT range_agg(int8range(l.event_offset, l.event_offset + 1)) FROM dead_letters l
            WHERE (l.tenant_id, l.partition) = (r.tenant_id, r.partition) AND l.resolution = 'erased'), '{}')
        + CASE WHEN EXISTS (SELECT FROM erasures e WHERE e.tenant_id = r.tenant_id)
            THEN r.duplicate_offsets ELSE '{}' END)
FROM ingest_ranges r
WHERE r.tenant_id = %s AND r.batch_id = ANY(%s) AND r.settled_at IS NOT NULL
ORDER BY r.batch_id, r.partition, r.start_offset
"""
POSITIONS = """
SELECT partition, base_offset, topic_id FROM ingest_positions WHERE tenant_id = %s ORDER BY partition
"""
DELETED = """
SELECT path FROM raw_objects WHERE tenant_id = %s GROUP BY path HAVING bool_and(deleted_at IS NOT NULL)
"""
DELETE_AGAIN = """
UPDATE raw_objects SET deleted_at = NULL WHERE tenant_id = %s AND path = ANY(%s) AND removed_at IS NOT NULL
"""

RegisteredPart = tuple[str, str, str, date, int, int]
"""Batch, path, slug, day, events, and where the part ends in its object, in bytes."""


@dataclass(frozen=True)
class LostPart:
    """A part of a raw object that the object store does not hold."""

    path: str
    slug: str
    day: date
    events: int


@dataclass(frozen=True)
class LostBatch:
    """A settled batch of which raw objects are gone."""

    batch_id: str
    parts: tuple[LostPart, ...]
    ranges: tuple[OffsetRange, ...]
    excluded: tuple[OffsetRange, ...]
    """Offsets whose events are not written again, such as those of erased persons."""
    lines: int
    """Lines that the batch's objects have once they are written again."""
    in_kafka: bool
    """Whether the topic still holds all offsets of the ranges."""


@dataclass(frozen=True)
class RawObjects:
    """Parts of a tenant's raw zone that are registered, and the objects that were there after that."""

    registered: Sequence[RegisteredPart]
    sizes: Mapping[str, int]
    """Bytes of the objects, by path."""


def list_objects(tenant: Tenant) -> RawObjects:
    """Read what is registered, then list the objects. Raises OSError: the object store failed."""
    registered = _registered(tenant)
    folder = f"s3://{load_settings().object_store.bucket}/raw/{tenant.tenant_id.hex}"
    return RawObjects(registered, {entry.path: entry.bytes for entry in object_store.listed(folder)})


def find_lost(tenant: Tenant, objects: RawObjects) -> list[LostBatch]:
    """Batches of which raw objects are gone, or shorter than registered, by batch id.

    Raises:
        Transient: the broker does not answer.
    """
    registered, sizes = objects.registered, objects.sizes
    lost: dict[str, list[LostPart]] = defaultdict(list)
    if all(sizes.get(path, 0) >= end for _, path, *_, end in registered):
        return []
    # Retention or an erasure may have removed objects meanwhile.
    for batch, path, slug, day, events, end in set(registered) & set(_registered(tenant)):
        if sizes.get(path, 0) < end:
            lost[batch].append(LostPart(path, slug, day, events))
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        rows: dict[str, list[Any]] = defaultdict(list)
        for name, *row in connection.execute(RANGES, [tenant.tenant_id, list(lost)]):
            rows[name].append(row)
        bases = {partition: base for partition, base, _ in connection.execute(POSITIONS, [tenant.tenant_id])}
    starts = _starts(tenant, bases)
    batches = []
    for batch, of_batch in sorted(lost.items()):
        ranges, excluded, lines = list[OffsetRange](), list[OffsetRange](), 0
        for partition, first, end, drained, spans in rows[batch]:
            ranges.append(OffsetRange(tenant.tenant_id, partition, first, end))
            omitted = [
                OffsetRange(tenant.tenant_id, partition, span.lower or 0, span.upper or 0) for span in spans
            ]
            excluded.extend(omitted)
            lines += drained - sum(span.length for span in omitted)
        in_kafka = bool(ranges) and all(r.start >= starts.get(r.partition, r.end) for r in ranges)
        batches.append(LostBatch(batch, tuple(of_batch), tuple(ranges), tuple(excluded), lines, in_kafka))
    return batches


def _registered(tenant: Tenant) -> list[RegisteredPart]:
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        return connection.execute(PARTS, [tenant.tenant_id]).fetchall()


def find_returned(tenant: Tenant, objects: RawObjects) -> list[str]:
    """Paths of raw objects that were deleted, by retention or an erasure, and that a backup restored."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        deleted = {path for (path,) in connection.execute(DELETED, [tenant.tenant_id])}
    return sorted(objects.sizes.keys() & deleted)


def delete_again(tenant: Tenant, paths: Sequence[str]) -> None:
    """Enter objects of `find_returned` as removed, but not deleted, for `retention.delete_removed`."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        connection.execute(DELETE_AGAIN, [tenant.tenant_id, list(paths)])


def batches_of(batches: Iterable[LostBatch], slug: str) -> dict[date, list[str]]:
    """Days of a dataset with raw objects that are gone, each with the ids of their batches in order."""
    days: dict[date, set[str]] = defaultdict(set)
    for batch in batches:
        for part in batch.parts:
            if part.slug == slug:
                days[part.day].add(batch.batch_id)
    return {day: sorted(names) for day, names in days.items()}


def _starts(tenant: Tenant, bases: Mapping[int, int]) -> dict[int, int]:
    """The first offset that each partition of the topic holds, as Pulse counts them."""
    count = kafka.partition_counts([tenant.topic]).get(tenant.topic, 0)
    partitions = [(tenant.topic, partition) for partition in bases if partition < count]
    starts = {}
    for (_, partition), answer in kafka.offsets(partitions, "earliest").items():
        if not isinstance(answer, int):
            why = f"the broker does not answer: {kafka.error_text(answer)}"
            raise Transient(why, tenant=tenant.slug, partition=partition)
        starts[partition] = bases[partition] + answer
    return starts
