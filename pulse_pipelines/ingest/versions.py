"""Versions: the arrived entities that are new versions in their dataset's log, and their places in it.

An arrived entity is a new version if its state (content hash, or deleted) differs from that of the version
before it: the entity's head, or an earlier arrival in the same batch. Unchanged entities count as duplicates.
The places are valid only if the log is unchanged between gate and settle: otherwise the whole result is
discarded.

A deletion that a full sync sent (see `ingest.sync_deletions`) is a version only while the sync is deleting,
and if the entity has not arrived since the sync began: otherwise it counts as unchanged.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.syncs import State
from pulse_pipelines.entities import heads, index_entries, index_runs, sync_progress
from pulse_pipelines.entities.heads import NOWHERE, Append, Counters, Heads, Places
from pulse_pipelines.entities.index_entries import Index, Indexed
from pulse_pipelines.ingest import candidate_files, sync_counts
from pulse_pipelines.ingest.stages import Plan, Positions, TopicDrained
from pulse_pipelines.tables import parquet_files
from pulse_pipelines.tables.digests import ArrivedIds, Digests, Mask
from pulse_pipelines.tables.iceberg_schema import UPDATED
from pulse_pipelines.tables.written_files import CandidateFile
from pulse_resources import postgres


def judge(
    connection: postgres.Connection, plan: Plan, dataset: Dataset, topics: Sequence[TopicDrained]
) -> tuple[Positions, Append | None]:
    """Find the unchanged among a dataset's arrived entities, and the changes that the others make to its log.

    Args:
        connection: with one snapshot, in the tenant's session.
        topics: everything that was drained of the tenant.
    """
    dataset_id = dataset.dataset_id
    tasks = [topic for topic in topics if dataset_id in topic.ids]
    arrived = ArrivedIds.unpacked(topic.ids[dataset_id] for topic in tasks)
    order = arrived.digests.order(then=arrived.positions)
    ids, positions = arrived.digests[order], arrived.positions[order]
    states = Digests.joined(Digests.unpacked(topic.states[dataset_id]) for topic in tasks)[order]
    known = heads.log(connection, dataset_id)
    if known is None:  # the dataset is gone: landing rejects the events
        return {}, None
    again = ids.repeats()
    first = np.flatnonzero(~again)
    before, updated = known.look_up(ids[first])
    of_syncs = states.heads == heads.OF_SYNC
    if of_syncs.any():
        sync_ids = states.tails.copy()
        parts = [topic.part for topic in topics]
        refused = sync_counts.dead_letters(connection, plan, dataset.tenant_id, parts, dataset.slug)
        states = _decided(connection, dataset, refused, ids, states, first, before)
    changed = ~(again & states.repeats())
    first_states = states[first]
    changed[first] = (
        (updated == 0) | (before.heads != first_states.heads) | (before.tails != first_states.tails)
    )
    changed[first] &= ~(of_syncs[first] & (updated == 0))  # deleting an unknown entity makes no version
    before_first = updated[np.cumsum(~again) - 1]
    unchanged = parquet_files.by_partition(positions[~changed]) if not changed.all() else {}
    if not changed.any():
        return unchanged, None
    landing = positions[changed]
    places = known.updated + 1 + np.searchsorted(np.sort(landing), landing)
    added = heads.append(known, Heads(ids[changed], states[changed], places), landing)
    new = np.zeros(len(ids), np.bool_)
    new[first] = updated == 0
    deleted = states.is_zero()
    swept = changed & of_syncs
    by_sync = (
        {int(each): positions[swept & (sync_ids == each)] for each in np.unique(sync_ids[swept])}
        if swept.any()
        else {}
    )
    indexed = index_entries.current(connection, dataset, known.updated)
    previous = _previous(places, ids[changed].repeats(), before_first[changed]) if indexed else NOWHERE
    earlier = np.where(previous > known.updated, 0, previous)
    return unchanged, replace(
        added,
        indexes=[Indexed(each, index_runs.values_at(connection, each.index_id, earlier)) for each in indexed],
        previous=previous,
        created=positions[changed & new & ~deleted],
        gone=positions[changed & deleted & ~swept],
        swept=by_sync,
    )


def _previous(places: Counters, again: Mask, before: Counters) -> Counters:
    """For each version, in order of place, the place of its entity's preceding version; 0: none.

    Args:
        places: of the versions, by entity and then in their order.
        again: whether the version follows another one of its entity here.
        before: place of the newest version that its entity had.
    """
    previous = np.where(again, np.roll(places, 1), before)
    return previous[np.argsort(places)]


def _decided(
    connection: postgres.Connection,
    dataset: Dataset,
    refused: tuple[Sequence[tuple[int, int, str | None]], parquet_files.Positions],
    ids: Digests,
    states: Digests,
    first: "np.ndarray[Any, np.dtype[np.intp]]",
    before: Digests,
) -> Digests:
    """The states of arrived entities, with deletions of full syncs resolved to deleted or unchanged.

    Args:
        refused: the batch's dead letters, which count as brought, and their positions.
    """
    decided = Digests(states.heads.copy(), states.tails.copy())
    of_syncs = states.heads == heads.OF_SYNC
    rows, places = refused
    at_it = {}
    for each in sync_progress.unfinished(connection, dataset_id=dataset.dataset_id):
        if each.state is State.DELETING:
            since = zip(rows, each.since(places), strict=True)
            names = [row[2] for row, mine in since if mine and row[2] is not None]
            late = Digests.of(names, dataset.claim_seed)
            at_it[each.sync_id] = Digests.joined([sync_progress.ids(connection, each.sync_id), late]).run()
    heads_of_first = dict(zip(first.tolist(), range(len(first)), strict=True))
    for place in np.flatnonzero(of_syncs):
        came = at_it.get(int(states.tails[place]))
        if place not in heads_of_first:  # an earlier event of the batch is about it
            decided.heads[place], decided.tails[place] = decided.heads[place - 1], decided.tails[place - 1]
        elif came is None or ids[place : place + 1].places_in(came)[0] >= 0:
            head = heads_of_first[place]
            decided.heads[place], decided.tails[place] = before.heads[head], before.tails[head]
        else:
            decided.heads[place], decided.tails[place] = 0, 0
    return decided


def numbered(
    dataset: Dataset, candidate: CandidateFile, places: Places | None, indexed: Sequence[Index]
) -> CandidateFile | None:
    """Write a candidate's new versions with their places to a file of their own; None if it has none.

    Args:
        indexed: indexes of the log, for which the file has the values of its versions.

    Raises:
        OSError: the object store failed.
    """
    if places is None:
        return None
    rows = candidate_files.read_rows(dataset, candidate)
    at = parquet_files.positions(rows).combine_chunks()
    landing = pc.is_in(at, pa.array(places.positions))
    rows, at = rows.filter(landing), at.filter(landing)
    if not rows.num_rows:
        return None
    place = rows.schema.get_field_index(UPDATED)
    numbers = pa.array(places.numbers(at.to_numpy()), pa.int64())
    rows = rows.set_column(place, rows.schema.field(place), numbers)
    values = {
        each.index_id: index_entries.values(rows, each.of(dataset), dataset).packed() for each in indexed
    }
    return replace(candidate_files.with_rows(dataset, candidate, rows), values=values)
