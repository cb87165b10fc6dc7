"""Counts of syncs: records the batch's events of syncs, in the transaction that settles the batch."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.entities import heads, sync_progress
from pulse_pipelines.entities.heads import NOWHERE
from pulse_pipelines.entities.sync_progress import Counts, Unfinished
from pulse_pipelines.ingest.stages import Landed, Plan, TopicDrained
from pulse_pipelines.ingest.staging import named
from pulse_pipelines.ingest.tenant_parts import TenantPart
from pulse_pipelines.tables.digests import ArrivedIds, Digests
from pulse_pipelines.tables.parquet_files import Positions, position
from pulse_resources import postgres
from pulse_resources.process.faults import fail_point

# A dead letter without a dataset may belong to this one.
REFUSED = """
SELECT partition, event_offset, event_id FROM staging.{dead_letters}
WHERE tenant_id = %(tenant)s AND part = ANY(%(parts)s) AND coalesce(dataset, %(slug)s) = %(slug)s
"""


def note(connection: postgres.Connection, landed: Landed, part: TenantPart) -> None:
    """Record the counts of the tenant's syncs, and advance those that are complete now.

    To be called after the positions were advanced. What the batch has of a dataset is read once, however many
    of its syncs have not ended.
    """
    tenant_id = part.tenant.tenant_id
    begins = np.array([position(range_.partition, range_.start) for range_ in part.ranges], np.int64)
    failed = [sync for sync in sync_progress.failed_lately(connection, tenant_id) if not sync.is_over(begins)]
    open_syncs = [*sync_progress.unfinished(connection, tenant_id=tenant_id, lock=True), *failed]
    if not open_syncs:
        return
    by_dataset: dict[UUID, list[Unfinished]] = defaultdict(list)
    for sync in open_syncs:
        by_dataset[sync.dataset_id].append(sync)
    for dataset in landed.plan.scopes[tenant_id].datasets:
        if dataset.dataset_id in by_dataset:
            _note(connection, landed, part, dataset, by_dataset[dataset.dataset_id])
    sync_progress.reached(connection, tenant_id)
    fail_point("sync.after_note")


def dead_letters(
    connection: postgres.Connection, plan: Plan, tenant_id: UUID, parts: Sequence[int], slug: str
) -> tuple[list[tuple[int, int, str | None]], Positions]:
    """The batch's dead letters of a dataset, or of none: partition, offset and id; and their positions."""
    values = {"tenant": tenant_id, "parts": list(parts), "slug": slug}
    letters = connection.execute(named(REFUSED, plan), values).fetchall()
    places = [position(partition, offset) for partition, offset, _ in letters]
    return letters, np.array(places, np.int64)


@dataclass(frozen=True)
class _Refused:
    """The batch's dead letters of a dataset, or of none: their ids, None if unknown, and their positions."""

    ids: Sequence[str | None]
    places: Positions


def _note(
    connection: postgres.Connection,
    landed: Landed,
    part: TenantPart,
    dataset: Dataset,
    syncs: Sequence[Unfinished],
) -> None:
    """Record the counts of a dataset's syncs."""
    letters, places = dead_letters(connection, landed.plan, part.tenant.tenant_id, part.parts, dataset.slug)
    refused = _Refused([name for _, _, name in letters], places)
    if dataset.of_entities:
        counted_syncs = _count_entities(connection, landed, part, dataset, syncs, refused)
    else:
        counted_syncs = _count_events(landed, part, dataset, syncs, refused)
    counts = {}
    for sync, counted in counted_syncs:
        inside = sync.within(places)
        nameless = sum(
            bool(is_inside) and name is None for name, is_inside in zip(refused.ids, inside, strict=True)
        )
        counts[sync.sync_id] = counted._replace(refused=int(inside.sum()), nameless=nameless)
    sync_progress.count(connection, counts)


def _count_events(
    landed: Landed,
    part: TenantPart,
    dataset: Dataset,
    syncs: Sequence[Unfinished],
    refused: _Refused,
) -> Iterator[tuple[Unfinished, Counts]]:
    """Count the events of syncs: those that land are new, and those that had landed before unchanged."""
    dataset_id = dataset.dataset_id
    packed = [topic.ids[dataset_id] for topic in part.topics if dataset_id in topic.ids]
    arrived = ArrivedIds.unpacked(packed).positions if packed else NOWHERE
    copies = np.array(
        [
            position(partition, offset)
            for partition, offsets in landed.verdicts.duplicates.get(dataset_id, {}).items()
            for offset in offsets
        ],
        np.int64,
    )
    # Some are refused after they were accepted.
    landing = np.setdiff1d(np.setdiff1d(arrived, copies), refused.places)
    for sync in syncs:
        created, unchanged = int(sync.within(landing).sum()), int(sync.within(copies).sum())
        yield sync, Counts(created=created, unchanged=unchanged) if packed else Counts()


def _count_entities(
    connection: postgres.Connection,
    landed: Landed,
    part: TenantPart,
    dataset: Dataset,
    syncs: Sequence[Unfinished],
    refused: _Refused,
) -> Iterator[tuple[Unfinished, Counts]]:
    """Count the entities of syncs by their result, and record the ids that full syncs contain."""
    arrived, deletions = _arrived(part.topics, dataset.dataset_id)
    added = landed.verdicts.appends.get(dataset.dataset_id)
    sent = NOWHERE if added is None else np.setdiff1d(added.positions, deletions, assume_unique=True)
    for sync in syncs:
        if sync.is_full:
            is_after = sync.since(refused.places)
            named_ids = [
                name for name, after in zip(refused.ids, is_after, strict=True) if after and name is not None
            ]
            ids = [arrived.digests[sync.since(arrived.positions)], Digests.of(named_ids, dataset.claim_seed)]
            sync_progress.add_ids(connection, part.tenant.tenant_id, sync.sync_id, Digests.joined(ids))
        created = changed = deleted = 0
        unchanged = int(sync.within(arrived.positions).sum())
        if added is not None:
            created, deleted = int(sync.within(added.created).sum()), int(sync.within(added.deletions).sum())
            changed = int(sync.within(sent).sum()) - created - deleted
            unchanged -= created + changed + deleted
            deleted += len(added.sync_deletions.get(sync.sync_id, NOWHERE))
        yield sync, Counts(created, changed, unchanged, deleted)


def _arrived(topics: Sequence[TopicDrained], dataset_id: UUID) -> tuple[ArrivedIds, Positions]:
    """Ids and positions that arrived for a dataset, and apart the positions of full syncs' deletions."""
    dataset_topics = [topic for topic in topics if dataset_id in topic.ids]
    if not dataset_topics:
        return ArrivedIds(Digests.joined([]), NOWHERE), NOWHERE
    arrived = ArrivedIds.unpacked(topic.ids[dataset_id] for topic in dataset_topics)
    states = Digests.joined(Digests.unpacked(topic.states[dataset_id]) for topic in dataset_topics)
    of_syncs = states.heads == heads.OF_SYNC
    return ArrivedIds(arrived.digests[~of_syncs], arrived.positions[~of_syncs]), arrived.positions[of_syncs]
