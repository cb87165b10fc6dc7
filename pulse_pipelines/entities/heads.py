"""Heads: the newest version of each entity of a dataset, stored as sorted runs in `entity_heads`.

A head is 40 bytes: the digest of the entity's id, its state (the content hash; zeros if deleted) and the
version's `_updated`. A run is sorted by id, without repeats; where several runs contain an entity, the
highest `_updated` wins. So appending a thousand versions to a log of ten million writes about a thousand
heads, and an unchanged entity costs a lookup.

Heads are written by the transaction that lands the versions, which holds the lock on the log's row from its
first statement on that row until it ends (`advance`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import UUID

import numpy as np
import pyarrow as pa

from pulse_pipelines.domain import entities
from pulse_pipelines.domain.entities import HASH_BYTES
from pulse_pipelines.entities.index_entries import Indexed
from pulse_pipelines.entities.index_runs import Counters
from pulse_pipelines.tables.digests import Digests
from pulse_pipelines.tables.iceberg_schema import HASH
from pulse_pipelines.tables.parquet_files import Positions
from pulse_resources import postgres
from pulse_resources.process.faults import fail_point

HEAD_BYTES = 40
OF_SYNC = np.uint64(2**64 - 1)
"""Prefix of the state of a deletion by a full sync; the sync's number follows. Never stored in a head."""
FAN_IN = 4
"""Number of runs of similar size, within this factor, at which they are merged."""
MERGED = 1_048_576
"""Number of heads that a merged run does not exceed."""
NOWHERE: Positions = np.empty(0, np.int64)

LOG = "SELECT generation, updated FROM entity_logs WHERE dataset_id = %s"
RUNS = "SELECT run, heads FROM entity_heads WHERE dataset_id = %s ORDER BY run"
# Locks the log until the transaction ends; no row: another writer has appended to it, or rebuilt it.
ADVANCE = """
UPDATE entity_logs SET updated = %(after)s
WHERE dataset_id = %(dataset)s AND generation = %(generation)s AND updated = %(before)s
"""
NEW_GENERATION = """
UPDATE entity_logs SET generation = nextval('entity_generations') WHERE dataset_id = %s
"""
REMOVE = "DELETE FROM entity_heads WHERE dataset_id = %s AND run = ANY(%s)"
ADD = "INSERT INTO entity_heads (tenant_id, dataset_id, entities, heads) VALUES (%s, %s, %s, %s)"


@dataclass(frozen=True, eq=False)
class Heads:
    """Heads as columns of equal length."""

    ids: Digests
    states: Digests
    updated: Counters

    @classmethod
    def unpacked(cls, packed: bytes) -> Self:
        """Read what `packed` wrote; shares its memory."""
        count = len(packed) // HEAD_BYTES
        words = np.frombuffer(packed, "<u8")
        ids, states = Digests.unpacked(words[: 2 * count]), Digests.unpacked(words[2 * count : 4 * count])
        return cls(ids, states, words[4 * count :].view("<i8"))

    @classmethod
    def newest(cls, parts: "Iterable[Heads]") -> Self:
        """Merge runs: the newest head of each entity."""
        parts = [*parts, NONE]
        ids = Digests.joined(part.ids for part in parts)
        updated = np.concatenate([part.updated for part in parts])
        order = ids.order(then=-updated)
        order = order[~ids[order].repeats()]
        return cls(ids[order], Digests.joined(part.states for part in parts)[order], updated[order])

    def __len__(self) -> int:
        return len(self.ids)

    def packed(self) -> bytes:
        """Ids, states, counters."""
        return self.ids.packed() + self.states.packed() + self.updated.astype("<i8").tobytes()


NONE = Heads(Digests.joined([]), Digests.joined([]), np.empty(0, np.int64))


@dataclass(frozen=True)
class Log:
    """A dataset's log as seen in one snapshot of Postgres."""

    generation: int
    updated: int
    """`_updated` of its last version; 0: it is empty."""
    runs: "Sequence[tuple[int, Heads]]"
    """By number; numbers do not order the runs by age."""

    def find_states(self, entity_ids: Digests) -> tuple[Digests, Counters]:
        """Look up the states of entities, and `_updated` of their newest versions: 0 for unknown entities."""
        count = len(entity_ids)
        states = Digests(np.zeros(count, np.uint64), np.zeros(count, np.uint64))
        updated = np.zeros(count, np.int64)
        for _, run in self.runs:
            places = entity_ids.places_in(run.ids)
            existing = np.flatnonzero(places >= 0)
            newer = existing[run.updated[places[existing]] > updated[existing]]
            at = places[newer]
            updated[newer] = run.updated[at]
            states.heads[newer], states.tails[newer] = run.states.heads[at], run.states.tails[at]
        return states, updated


@dataclass(frozen=True, eq=False)
class Append:
    """The changes that a transaction makes to a log."""

    generation: int
    before: int
    """`_updated` of the last version before it."""
    positions: Positions
    """Positions (`parquet_files.position`) of the versions, ascending: `_updated` continues from `before`."""
    heads: Heads
    """Heads of their entities, merged with the runs that they replace."""
    replaces: Sequence[int]
    created: Positions = field(default_factory=lambda: NOWHERE)
    """Positions of versions that are the first of their entity, and no deletions."""
    deletions: Positions = field(default_factory=lambda: NOWHERE)
    """Positions of deletions, except ..."""
    sync_deletions: Mapping[int, Positions] = field(default_factory=dict)
    """... those of full syncs, by sync number."""
    indexes: Sequence[Indexed] = ()
    """The log's indexes that have all versions before."""
    previous: Counters = field(default_factory=lambda: NOWHERE)
    """If there are such: by version, in order, `_updated` of its entity's version before; 0: none."""

    @property
    def places(self) -> "Places":
        return Places(self.before, self.positions.tobytes())


@dataclass(frozen=True)
class Places:
    """The assignment of `_updated` to the versions of an `Append`, in the form that is sent to tasks."""

    before: int
    packed: bytes
    """Positions of the versions."""

    @property
    def positions(self) -> Positions:
        return np.frombuffer(self.packed, np.int64)

    def numbers(self, at: Positions) -> Counters:
        """`_updated` of the versions at these positions, all of which must be in the `Append`."""
        return self.before + 1 + np.searchsorted(self.positions, at)


def states(rows: pa.Table, later_columns: Sequence[str] = ()) -> Digests:
    """States of rows: the content hash, zeros if deleted, `OF_SYNC` and the number if deleted by a full sync.

    A row with a value in a column that a move added has another state than one with the same content from
    before the move, whose value is in `_extra`. So an entity that is sent again unchanged fills the column.

    Args:
        rows: with `_hash`, for arrived events `context`, and those of the later columns that they have.
        later_columns: see `Dataset.later_columns`.
    """
    texts = rows.column(HASH).fill_null("0" * 2 * HASH_BYTES).to_pylist()
    if "context" in rows.column_names and rows.column("context").null_count < len(texts):
        for place, context in enumerate(rows.column("context").to_pylist()):
            if context is not None and (sync := entities.sync_of(context)) is not None:
                texts[place] = f"{OF_SYNC:016x}{sync:016x}"
    words = np.frombuffer(bytes.fromhex("".join(texts)), ">u8").reshape(-1, 2)
    of_rows = Digests(words[:, 0].astype("<u8"), words[:, 1].astype("<u8"))
    for name in later_columns:
        if name in rows.column_names:
            has_value = rows.column(name).is_valid().to_numpy()
            mark = np.frombuffer(bytes.fromhex(entities.content_hash(name.encode())), "<u8")
            of_rows.heads[has_value] ^= mark[0]
            of_rows.tails[has_value] ^= mark[1]
    return of_rows


def log(connection: postgres.Connection, dataset_id: UUID) -> Log | None:
    """Load a dataset's log, in the session of its tenant; None: the dataset does not exist."""
    row = connection.execute(LOG, [dataset_id]).fetchone()
    if row is None:
        return None
    stored_runs: Any = connection.execute(RUNS, [dataset_id], binary=True)
    return Log(row[0], row[1], [(run, Heads.unpacked(packed)) for run, packed in stored_runs])


def append(log_before: Log, versions: Heads, positions: Positions) -> Append:
    """Compute the changes that add versions to a log.

    Args:
        versions: one or more of each entity.
        positions: of the versions, in any order.
    """
    added = Heads.newest([versions])
    replaced = _replaced(len(added), log_before.runs)
    heads = Heads.newest([added, *(run for _, run in replaced)]) if replaced else added
    numbers = [number for number, _ in replaced]
    return Append(log_before.generation, log_before.updated, np.sort(positions), heads, numbers)


def advance(connection: postgres.Connection, tenant_id: UUID, dataset_id: UUID, added: Append) -> bool:
    """Write an append; False: the log has changed since it was staged, and the caller must roll back.

    To be called in the transaction that lands the versions.
    """
    values = {
        "dataset": dataset_id,
        "generation": added.generation,
        "before": added.before,
        "after": added.before + len(added.positions),
    }
    fail_point("heads.before_advance")
    if connection.execute(ADVANCE, values).rowcount != 1:
        return False
    if connection.execute(REMOVE, [dataset_id, list(added.replaces)]).rowcount != len(added.replaces):
        return False
    connection.execute(ADD, [tenant_id, dataset_id, len(added.heads), added.heads.packed()])
    fail_point("heads.after_advance")
    return True


def start_generation(connection: postgres.Connection, dataset_id: UUID) -> None:
    """Start a new generation of a log, so that readers restart, in the transaction that removes versions.

    The heads stay: an erased entity does not reappear when it is sent again unchanged. Events have no log.
    """
    connection.execute(NEW_GENERATION, [dataset_id])


def _replaced(added: int, runs: Sequence[tuple[int, Heads]]) -> list[tuple[int, Heads]]:
    """Choose the runs to merge with a new one of `added` heads: wherever enough of similar size exist."""
    candidates = list(runs)
    chosen: list[tuple[int, Heads]] = []
    size = added
    while True:
        level = size.bit_length() // 2
        alike = [run for run in candidates if len(run[1]).bit_length() // 2 <= level]
        more = sum(len(run) for _, run in alike)
        if len(alike) < FAN_IN - 1 or size + more > MERGED:
            return chosen
        chosen += alike
        candidates = [run for run in candidates if run not in alike]
        size += more
