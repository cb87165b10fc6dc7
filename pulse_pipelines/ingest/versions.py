"""Versions: the arrived entities that are new versions in their dataset's log, and their places in it.

An arrived entity is a new version if its state (content hash, or deleted) differs from that of the version
before it: the entity's head, or an earlier arrival in the same batch. Unchanged entities count as duplicates.
The places are valid only if the log is unchanged between gate and settle: otherwise the whole result is
discarded.

A deletion that a full sync sent (see `ingest.sync_deletions`) is a version only while the sync is deleting,
and if the entity has not arrived since the sync began: otherwise it counts as unchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.syncs import SyncState
from pulse_pipelines.entities import heads, index_entries, index_runs, sync_progress
from pulse_pipelines.entities.heads import NOWHERE, Append, Heads, Log, Places
from pulse_pipelines.entities.index_entries import Index, Indexed
from pulse_pipelines.entities.index_runs import Counters
from pulse_pipelines.ingest import candidate_files, sync_counts
from pulse_pipelines.ingest.stages import Plan, Positions, TopicDrained
from pulse_pipelines.tables import parquet_files
from pulse_pipelines.tables.digests import ArrivedIds, Digests, Indices, Mask
from pulse_pipelines.tables.iceberg_schema import UPDATED
from pulse_pipelines.tables.written_files import CandidateFile
from pulse_resources import postgres


@dataclass(frozen=True)
class _Arrivals:
    """The arrived entities of a dataset, by id and then in received order.

    Arrivals of three entities, with the states that the log has of them before the batch (`-`: none):

        ids       a a b b c
        states    1 1 2 3 5
        head      1   -   5
        again     . x . x .    another arrival of the same entity precedes it
        changed   . . x x .    it becomes a version; the others are unchanged
    """

    ids: Digests
    states: Digests
    positions: parquet_files.Positions
    again: Mask
    of_syncs: Mask
    """The deletions that full syncs sent; until they are resolved, their states have the sync's number."""

    @cached_property
    def first(self) -> Indices:
        """Places of the first arrival of each entity."""
        return np.flatnonzero(~self.again)


def compare_versions(
    connection: postgres.Connection, plan: Plan, dataset: Dataset, topics: Sequence[TopicDrained]
) -> tuple[Positions, Append | None]:
    """Find the unchanged among a dataset's arrived entities, and the changes that the others make to its log.

    Args:
        connection: with one snapshot, in the tenant's session.
        topics: everything that was drained of the tenant.
    """
    arrivals = _sort_arrivals(topics, dataset)
    log = heads.log(connection, dataset.dataset_id)
    if log is None:  # the dataset is gone: landing rejects the events
        return {}, None
    before, updated = log.find_states(arrivals.ids[arrivals.first])
    sync_ids = arrivals.states.tails
    if arrivals.of_syncs.any():
        parts = [topic.part for topic in topics]
        refused = sync_counts.dead_letters(connection, plan, dataset.tenant_id, parts, dataset.slug)
        resolved = _resolve_deletions(connection, dataset, arrivals, refused, before)
        arrivals = replace(arrivals, states=resolved)
    changed = _find_changes(arrivals, before, updated)
    unchanged = parquet_files.by_partition(arrivals.positions[~changed]) if not changed.all() else {}
    if not changed.any():
        return unchanged, None
    by_sync, positions = changed & arrivals.of_syncs, arrivals.positions
    return unchanged, replace(
        _append(connection, dataset, arrivals, changed, log, updated),
        deletions=positions[changed & arrivals.states.is_zero() & ~by_sync],
        sync_deletions={
            int(number): positions[by_sync & (sync_ids == number)] for number in np.unique(sync_ids[by_sync])
        },
    )


def _sort_arrivals(topics: Sequence[TopicDrained], dataset: Dataset) -> _Arrivals:
    dataset_id = dataset.dataset_id
    tasks = [topic for topic in topics if dataset_id in topic.ids]
    arrived = ArrivedIds.unpacked(topic.ids[dataset_id] for topic in tasks)
    states = Digests.joined(Digests.unpacked(topic.states[dataset_id]) for topic in tasks)
    order = arrived.digests.order(then=arrived.positions)
    ids, states = arrived.digests[order], states[order]
    return _Arrivals(
        ids=ids,
        states=states,
        positions=arrived.positions[order],
        again=ids.repeats(),
        of_syncs=states.heads == heads.OF_SYNC,
    )


def _find_changes(arrivals: _Arrivals, before: Digests, updated: Counters) -> Mask:
    """The arrivals whose state differs from that of the version before them.

    Args:
        before: by first arrival, the state that the log has of its entity.
        updated: by first arrival, the place of that version; 0: the entity is unknown.
    """
    first, states = arrivals.first, arrivals.states
    changed = ~(arrivals.again & states.repeats())
    first_states = states[first]
    changed[first] = (
        (updated == 0) | (before.heads != first_states.heads) | (before.tails != first_states.tails)
    )
    changed[first] &= ~(arrivals.of_syncs[first] & (updated == 0))  # deleting an unknown entity makes none
    return changed


def _append(
    connection: postgres.Connection,
    dataset: Dataset,
    arrivals: _Arrivals,
    changed: Mask,
    log: Log,
    updated: Counters,
) -> Append:
    """The versions that the changed arrivals add to the log, and to its indexes."""
    ids, states, positions = arrivals.ids, arrivals.states, arrivals.positions
    landing = positions[changed]
    places = log.updated + 1 + np.searchsorted(np.sort(landing), landing)
    added = heads.append(log, Heads(ids[changed], states[changed], places), landing)
    new = np.zeros(len(ids), np.bool_)
    new[arrivals.first] = updated == 0
    indexed = index_entries.current(connection, dataset, log.updated)
    before_first = updated[np.cumsum(~arrivals.again) - 1]
    previous = _previous(places, ids[changed].repeats(), before_first[changed]) if indexed else NOWHERE
    earlier = np.where(previous > log.updated, 0, previous)
    return replace(
        added,
        indexes=[
            Indexed(index, index_runs.values_at(connection, index.index_id, earlier)) for index in indexed
        ],
        previous=previous,
        created=positions[changed & new & ~states.is_zero()],
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


def _resolve_deletions(
    connection: postgres.Connection,
    dataset: Dataset,
    arrivals: _Arrivals,
    refused: tuple[Sequence[tuple[int, int, str | None]], parquet_files.Positions],
    before: Digests,
) -> Digests:
    """The states of the arrivals, with deletions of full syncs resolved to deleted or unchanged.

    Args:
        refused: the batch's dead letters, which count as brought, and their positions.
        before: by first arrival, the state that the log has of its entity.
    """
    ids, states = arrivals.ids, arrivals.states
    resolved = Digests(states.heads.copy(), states.tails.copy())
    rows, places = refused
    arrived_since = {}
    for sync in sync_progress.unfinished(connection, dataset_id=dataset.dataset_id):
        if sync.state is SyncState.DELETING:
            since = zip(rows, sync.since(places), strict=True)
            names = [row[2] for row, is_since in since if is_since and row[2] is not None]
            late = Digests.of(names, dataset.claim_seed)
            arrived_since[sync.sync_id] = Digests.joined(
                [sync_progress.ids(connection, sync.sync_id), late]
            ).run()
    heads_of_first = {place: head for head, place in enumerate(arrivals.first.tolist())}
    for place in np.flatnonzero(arrivals.of_syncs):
        arrived = arrived_since.get(int(states.tails[place]))
        if place not in heads_of_first:  # an earlier event of the batch is about it
            resolved.heads[place], resolved.tails[place] = (
                resolved.heads[place - 1],
                resolved.tails[place - 1],
            )
        elif arrived is None or ids[place : place + 1].places_in(arrived)[0] >= 0:
            head = heads_of_first[place]
            resolved.heads[place], resolved.tails[place] = before.heads[head], before.tails[head]
        else:
            resolved.heads[place], resolved.tails[place] = 0, 0
    return resolved


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
        index.index_id: index_entries.values(rows, index.of(dataset), dataset).packed() for index in indexed
    }
    return replace(candidate_files.with_rows(dataset, candidate, rows), values=values)
