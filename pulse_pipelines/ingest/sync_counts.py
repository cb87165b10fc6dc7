"""Counts of syncs: records the batch's events of syncs, in the transaction that settles the batch."""

from collections.abc import Sequence
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

    To be called after the positions were advanced.
    """
    tenant_id = part.tenant.tenant_id
    begins = np.array([position(range_.partition, range_.start) for range_ in part.ranges], np.int64)
    failed = [sync for sync in sync_progress.failed_lately(connection, tenant_id) if not sync.is_over(begins)]
    open_syncs = [*sync_progress.unfinished(connection, tenant_id=tenant_id, lock=True), *failed]
    if not open_syncs:
        return
    slugs = {dataset.dataset_id: dataset.slug for dataset in landed.plan.scopes[tenant_id].datasets}
    for sync in open_syncs:
        if sync.dataset_id in slugs:
            _note(connection, landed, part, sync, slugs[sync.dataset_id])
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


def _note(
    connection: postgres.Connection, landed: Landed, part: TenantPart, sync: Unfinished, slug: str
) -> None:
    dataset = next(
        dataset
        for dataset in landed.plan.scopes[part.tenant.tenant_id].datasets
        if dataset.dataset_id == sync.dataset_id
    )
    refused, places = dead_letters(connection, landed.plan, part.tenant.tenant_id, part.parts, slug)
    inside = sync.within(places)
    nameless = sum(bool(is_inside) and row[2] is None for row, is_inside in zip(refused, inside, strict=True))
    if dataset.of_entities:
        counts = _of_entities(connection, landed, part, sync, dataset, refused, places)
    else:
        counts = _of_events(landed, part, sync, places)
    counts = counts._replace(refused=int(inside.sum()), nameless=nameless)
    if any(counts):
        sync_progress.count(connection, sync.sync_id, counts)


def _of_events(landed: Landed, part: TenantPart, sync: Unfinished, refused: Positions) -> Counts:
    """Count the events of a sync: those that land are new, and those that had landed before unchanged."""
    packed = [topic.ids[sync.dataset_id] for topic in part.topics if sync.dataset_id in topic.ids]
    if not packed:
        return Counts()
    arrived = ArrivedIds.unpacked(packed).positions
    copies = np.array(
        [
            position(partition, offset)
            for partition, offsets in landed.verdicts.duplicates.get(sync.dataset_id, {}).items()
            for offset in offsets
        ],
        np.int64,
    )
    landing = np.setdiff1d(
        np.setdiff1d(arrived, copies), refused
    )  # some are refused after they were accepted
    return Counts(created=int(sync.within(landing).sum()), unchanged=int(sync.within(copies).sum()))


def _of_entities(
    connection: postgres.Connection,
    landed: Landed,
    part: TenantPart,
    sync: Unfinished,
    dataset: Dataset,
    refused: Sequence[tuple[int, int, str | None]],
    places: Positions,
) -> Counts:
    """Count the entities of a sync by their result, and record the ids that a full sync contains.

    Args:
        refused: dead letters of the dataset: partition, offset and id ...
        places: ... and their positions.
    """
    arrived, deletions = _arrived(part.topics, sync.dataset_id)
    if sync.is_full:
        after = sync.since(places)
        names = [
            row[2] for row, is_after in zip(refused, after, strict=True) if is_after and row[2] is not None
        ]
        parts = [arrived.digests[sync.since(arrived.positions)], Digests.of(names, dataset.claim_seed)]
        sync_progress.add_ids(connection, part.tenant.tenant_id, sync.sync_id, Digests.joined(parts))
    added = landed.verdicts.appends.get(sync.dataset_id)
    created = changed = deleted_count = 0
    if added is not None:
        created = int(sync.within(added.created).sum())
        deleted_count = int(sync.within(added.deletions).sum())
        sent = np.setdiff1d(added.positions, deletions, assume_unique=True)
        changed = int(sync.within(sent).sum()) - created - deleted_count
        deleted = added.sync_deletions.get(sync.sync_id, NOWHERE)
        deleted_count += len(deleted)
    unchanged = int(sync.within(arrived.positions).sum()) - created - changed
    unchanged -= 0 if added is None else int(sync.within(added.deletions).sum())
    return Counts(created, changed, unchanged, deleted_count)


def _arrived(topics: Sequence[TopicDrained], dataset_id: UUID) -> tuple[ArrivedIds, Positions]:
    """Ids and positions that arrived for a dataset, and apart the positions of full syncs' deletions."""
    dataset_topics = [topic for topic in topics if dataset_id in topic.ids]
    if not dataset_topics:
        return ArrivedIds(Digests.joined([]), NOWHERE), NOWHERE
    arrived = ArrivedIds.unpacked(topic.ids[dataset_id] for topic in dataset_topics)
    states = Digests.joined(Digests.unpacked(topic.states[dataset_id]) for topic in dataset_topics)
    of_syncs = states.heads == heads.OF_SYNC
    return ArrivedIds(arrived.digests[~of_syncs], arrived.positions[~of_syncs]), arrived.positions[of_syncs]
