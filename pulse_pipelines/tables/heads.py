"""Heads: of each entity of a dataset the newest version, as runs in `entity_heads`.

A head is 40 bytes: the digest of the entity's id, its state (the content hash, zeros where it is deleted) and
the version's `_updated`. A run is sorted by id and has each once; where several runs know an entity, the
highest `_updated` is its head. So appending a thousand versions to a log of ten million writes about a
thousand heads, and an unchanged entity costs a lookup.

They are written by the transaction that lands the versions, which holds the lock on the log's row from its
first statement about it to its end (`advance`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulse_pipelines.domain import entities
from pulse_pipelines.domain.entities import HASH_BYTES
from pulse_pipelines.tables.digests import Digests
from pulse_pipelines.tables.iceberg_schema import HASH
from pulse_pipelines.tables.parquet_files import Positions
from pulse_resources import postgres
from pulse_resources.faults import fail_point

HEAD_BYTES = 40
OF_SYNC = np.uint64(2**64 - 1)
"""Begins the state of a deletion that a full sync sent; the sync's number follows. No head has it."""
FAN_IN = 4
"""So many runs of a size, give or take as many times, become one."""
MERGED = 1_048_576
"""Heads of the largest run that is made."""
Counters = npt.NDArray[np.int64]
NOWHERE: Positions = np.empty(0, np.int64)

LOG = "SELECT generation, updated FROM entity_logs WHERE dataset_id = %s"
RUNS = "SELECT run, heads FROM entity_heads WHERE dataset_id = %s ORDER BY run"
# Locks the log until the transaction ends; no row: somebody else has appended to it, or rebuilt it.
ADVANCE = """
UPDATE entity_logs SET updated = %(after)s
WHERE dataset_id = %(dataset)s AND generation = %(generation)s AND updated = %(before)s
"""
BEGIN_ANEW = """
UPDATE entity_logs SET generation = nextval('entity_generations') WHERE dataset_id = %s
"""
REMOVE = "DELETE FROM entity_heads WHERE dataset_id = %s AND run = ANY(%s)"
ADD = "INSERT INTO entity_heads (tenant_id, dataset_id, entities, heads) VALUES (%s, %s, %s, %s)"


@dataclass(frozen=True, eq=False)
class Heads:
    """Heads in columns of equal length."""

    ids: Digests
    states: Digests
    updated: Counters

    @classmethod
    def unpacked(cls, packed: bytes) -> Self:
        """From what `packed` gave; shares its memory."""
        count = len(packed) // HEAD_BYTES
        words = np.frombuffer(packed, "<u8")
        ids, states = Digests.unpacked(words[: 2 * count]), Digests.unpacked(words[2 * count : 4 * count])
        return cls(ids, states, words[4 * count :].view("<i8"))

    @classmethod
    def newest(cls, parts: "Iterable[Heads]") -> Self:
        """A run of the newest head of each entity in any of these."""
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
    """A dataset's log as it is in one snapshot of Postgres."""

    generation: int
    updated: int
    """Of its last version; 0: it has none."""
    runs: "Sequence[tuple[int, Heads]]"
    """By number, which says nothing of which is newer."""

    def look_up(self, wanted: Digests) -> tuple[Digests, Counters]:
        """The states of entities, and the `_updated` of their newest versions: 0 where there is none."""
        count = len(wanted)
        states = Digests(np.zeros(count, np.uint64), np.zeros(count, np.uint64))
        updated = np.zeros(count, np.int64)
        for _, run in self.runs:
            places = wanted.places_in(run.ids)
            known = np.flatnonzero(places >= 0)
            newer = known[run.updated[places[known]] > updated[known]]
            at = places[newer]
            updated[newer] = run.updated[at]
            states.heads[newer], states.tails[newer] = run.states.heads[at], run.states.tails[at]
        return states, updated


@dataclass(frozen=True, eq=False)
class Append:
    """What a transaction adds to a log."""

    generation: int
    before: int
    """`_updated` of the last version so far."""
    positions: Positions
    """Of the versions (`parquet_files.position`), ascending: the first gets the `_updated` after `before`."""
    heads: Heads
    """Of their entities, with the runs that they replace."""
    replaces: Sequence[int]
    created: Positions = field(default_factory=lambda: NOWHERE)
    """Of the versions: those that are their entity's first, and no deletions."""
    gone: Positions = field(default_factory=lambda: NOWHERE)
    """Of the versions: the deletions, but for ..."""
    swept: Mapping[int, Positions] = field(default_factory=dict)
    """... those of full syncs, by number."""

    @property
    def places(self) -> "Places":
        return Places(self.before, self.positions.tobytes())


@dataclass(frozen=True)
class Places:
    """Which `_updated` the versions of an `Append` get, as a task is told it."""

    before: int
    packed: bytes
    """Their positions."""

    @property
    def positions(self) -> Positions:
        return np.frombuffer(self.packed, np.int64)

    def numbers(self, at: Positions) -> Counters:
        """The `_updated` of the versions at these positions, all of which are among its own."""
        return self.before + 1 + np.searchsorted(self.positions, at)


def states(rows: pa.Table) -> Digests:
    """The states that rows tell: their content hashes, zeros where deleted, `OF_SYNC` where by a full sync.

    Args:
        rows: `_hash`, and of what arrived the `context`, too.
    """
    texts = rows.column(HASH).fill_null("0" * 2 * HASH_BYTES).to_pylist()
    if "context" in rows.column_names and rows.column("context").null_count < len(texts):
        for place, context in enumerate(rows.column("context").to_pylist()):
            if context is not None and (sync := entities.sync_of(context)) is not None:
                texts[place] = f"{OF_SYNC:016x}{sync:016x}"
    words = np.frombuffer(bytes.fromhex("".join(texts)), ">u8").reshape(-1, 2)
    return Digests(words[:, 0].astype("<u8"), words[:, 1].astype("<u8"))


def log(connection: postgres.Connection, dataset_id: UUID) -> Log | None:
    """A dataset's log, in the session of its tenant; None: the dataset is gone."""
    row = connection.execute(LOG, [dataset_id]).fetchone()
    if row is None:
        return None
    found: Any = connection.execute(RUNS, [dataset_id], binary=True)
    return Log(row[0], row[1], [(run, Heads.unpacked(packed)) for run, packed in found])


def append(known: Log, versions: Heads, positions: Positions) -> Append:
    """What adds versions to a log.

    Args:
        versions: one or more of each entity.
        positions: of these, in any order.
    """
    added = Heads.newest([versions])
    replaced = _replaced(len(added), known.runs)
    heads = Heads.newest([added, *(run for _, run in replaced)]) if replaced else added
    numbers = [number for number, _ in replaced]
    return Append(known.generation, known.updated, np.sort(positions), heads, numbers)


def advance(connection: postgres.Connection, tenant_id: UUID, dataset_id: UUID, added: Append) -> bool:
    """Write what is added; False: the log is not what it was staged on, and nothing of this may be committed.

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


def begin_anew(connection: postgres.Connection, dataset_id: UUID) -> None:
    """Have readers of a log begin anew, in the transaction that takes versions from it; events have none.

    The heads stay: who was erased does not come back by being sent again unchanged.
    """
    connection.execute(BEGIN_ANEW, [dataset_id])


def _replaced(added: int, runs: Sequence[tuple[int, Heads]]) -> list[tuple[int, Heads]]:
    """The runs that a new one of so many heads takes in: wherever there are enough of about its size."""
    left = list(runs)
    chosen: list[tuple[int, Heads]] = []
    size = added
    while True:
        level = size.bit_length() // 2
        alike = [each for each in left if len(each[1]).bit_length() // 2 <= level]
        more = sum(len(run) for _, run in alike)
        if len(alike) < FAN_IN - 1 or size + more > MERGED:
            return chosen
        chosen += alike
        left = [each for each in left if each not in alike]
        size += more
