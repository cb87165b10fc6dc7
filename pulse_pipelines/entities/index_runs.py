"""Runs of an index: the values that consecutive versions of a log have, and the values that they replaced.

A value is its digest; zeros stand for none. Runs are in the order of `_updated`, without gaps between them,
and are searched by comparing all of their values.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

import numpy as np
import numpy.typing as npt

from pulse_pipelines.tables.digests import Digests
from pulse_resources import postgres

VERSION_BYTES = 32
LONGEST = 65_536
"""Versions of a run, at most: what is read at a time."""
READ_AT_ONCE = (1, 3, 12)
"""Runs that are read at a time for a page; it ends after all of these, with whatever was found."""
SPARSE = 64
"""Versions of a run per one that is wanted: from here on only the wanted are fetched."""
Counters = npt.NDArray[np.int64]
WITHIN = """
SELECT first, versions FROM entity_index_runs WHERE index_id = %s AND first <= %s AND first + versions > %s
ORDER BY first
"""
NEW = """
SELECT substring(packed FROM 1 FOR 16 * versions) FROM entity_index_runs WHERE index_id = %s AND first = %s
"""
NEW_OF_SOME = """
SELECT string_agg(substring(packed FROM 8 * at + 1 FOR 8), '' ORDER BY n)
    || string_agg(substring(packed FROM 8 * (versions + at) + 1 FOR 8), '' ORDER BY n)
FROM entity_index_runs, unnest(%s::integer[]) WITH ORDINALITY AS wanted (at, n)
WHERE index_id = %s AND first = %s
"""
NEWEST = """
SELECT first, versions, packed FROM entity_index_runs WHERE index_id = %s AND versions <= %s
    AND first = (SELECT max(first) FROM entity_index_runs WHERE index_id = %s)
"""
REMOVE = "DELETE FROM entity_index_runs WHERE index_id = %s AND first = %s"
ADD = (
    "INSERT INTO entity_index_runs (tenant_id, index_id, first, versions, packed) VALUES (%s, %s, %s, %s, %s)"
)
READ = """
SELECT first, packed FROM entity_index_runs
WHERE index_id = %(index)s AND first > %(after)s - %(longest)s AND first + versions - 1 > %(after)s
ORDER BY first LIMIT %(runs)s
"""


@dataclass(frozen=True, eq=False)
class Values:
    """Values of some versions."""

    updated: Counters
    digests: Digests

    @classmethod
    def unpacked(cls, packed: bytes) -> Self:
        """Read what `packed` wrote; shares its memory."""
        words = np.frombuffer(packed, "<u8")
        split = len(words) // 3
        return cls(words[:split].view("<i8"), Digests.unpacked(words[split:]))

    def packed(self) -> bytes:
        """Places, digests."""
        return self.updated.astype("<i8").tobytes() + self.digests.packed()


@dataclass(frozen=True, eq=False)
class Run:
    """Entries of an index for consecutive versions."""

    first: int
    """`_updated` of the first."""
    new: Digests
    old: Digests

    @classmethod
    def unpacked(cls, first: int, packed: bytes | bytearray) -> Self:
        """Read what `packed` wrote; shares its memory."""
        words = np.frombuffer(packed, "<u8")
        half = len(words) // 2
        return cls(first, Digests.unpacked(words[:half]), Digests.unpacked(words[half:]))

    def __len__(self) -> int:
        return len(self.new)

    def __getitem__(self, part: slice) -> "Run":
        return Run(self.first + (part.start or 0), self.new[part], self.old[part])

    def after(self, before: "Run") -> "Run":
        """This run with the one before it."""
        new, old = (Digests.joined(pair) for pair in ((before.new, self.new), (before.old, self.old)))
        return Run(before.first, new, old)

    def packed(self) -> bytes:
        """New values, old values."""
        return self.new.packed() + self.old.packed()

    @property
    def entries(self) -> int:
        """Number of values in it."""
        return 2 * len(self) - int(self.new.is_zero().sum()) - int(self.old.is_zero().sum())


def build_run(before: int, previous: Counters, old: Digests, added: Iterable[Values]) -> Run:
    """The run of the versions after a place: see `indexes.advance`."""
    new, first = none(len(previous)), before + 1
    for part in added:
        at = part.updated - first
        new.heads[at], new.tails[at] = part.digests.heads, part.digests.tails
    had = Digests(old.heads.copy(), old.tails.copy())
    later = np.flatnonzero(previous > before)  # of an entity with several versions
    had.heads[later], had.tails[later] = (
        new.heads[previous[later] - first],
        new.tails[previous[later] - first],
    )
    same = (had.heads == new.heads) & (had.tails == new.tails)
    had.heads[same] = had.tails[same] = 0
    return Run(first, new, had)


def append(connection: postgres.Connection, tenant_id: UUID, index_id: int, run: Run) -> None:
    """Write a run that follows the newest, merged with those that are not larger."""
    while (newest := _newest(connection, index_id, len(run))) is not None:
        connection.execute(REMOVE, [index_id, newest.first])
        run = run.after(newest)
    for start in range(0, len(run), LONGEST):
        part = run[start : start + LONGEST]
        connection.execute(ADD, [tenant_id, index_id, part.first, len(part), part.packed()])


def values_at(connection: postgres.Connection, index_id: int, places: Counters) -> Digests:
    """The values of versions that the index has, by `_updated`; zeros where it has none, as for 0."""
    values = none(len(places))
    some = places[places > 0]
    if not len(some):
        return values
    within = [index_id, int(some.max()), int(some.min())]
    for first, versions in connection.execute(WITHIN, within).fetchall():
        selected = np.flatnonzero((places >= first) & (places < first + versions))
        if not len(selected):
            continue
        at = places[selected] - first
        if len(at) * SPARSE < versions:
            row: Any = connection.execute(NEW_OF_SOME, [at.tolist(), index_id, first], binary=True).fetchone()
            new = Digests.unpacked(row[0])
        else:
            row = connection.execute(NEW, [index_id, first], binary=True).fetchone()
            new = Digests.unpacked(row[0])[at]
        values.heads[selected], values.tails[selected] = new.heads, new.tails
    return values


def read(
    connection: postgres.Connection, index_id: int, key: Digests, after: int, limit: int
) -> tuple[dict[int, bool], int | None]:
    """The log of a subset after a place, as far as a few runs have it.

    Args:
        key: digest of the value.
        limit: versions, at most.

    Returns:
        Whether the entity is in the subset, else it has left it, by `_updated`, ascending; and the last place
        that was looked at: None if that is all that the index has.
    """
    changes: dict[int, bool] = {}
    for count in READ_AT_ONCE:
        piece = runs(connection, index_id, after, count)
        for run in piece:
            enters = (run.new.heads == key.heads) & (run.new.tails == key.tails)
            leaves = (run.old.heads == key.heads) & (run.old.tails == key.tails)
            for at in np.flatnonzero(enters | leaves):
                updated = run.first + int(at)
                if updated > after:
                    changes[updated] = bool(enters[at])
                    if len(changes) == limit:
                        return changes, updated
            after = run.first + len(run) - 1
        if len(piece) < count:
            return changes, None
    return changes, after


def with_values(
    connection: postgres.Connection, index_id: int, value_run: Digests
) -> tuple[Counters, Digests]:
    """The versions that have one of several values, by `_updated`, ascending; and the value of each.

    Args:
        wanted: digests of the values, as a run.
    """
    numbers, values = [np.empty(0, np.int64)], [none(0)]
    for run in _after(connection, index_id, 0):
        at = np.flatnonzero(run.new.places_in(value_run) >= 0)
        numbers.append(run.first + at)
        values.append(run.new[at])
    return np.concatenate(numbers), Digests.joined(values)


def of_changes(connection: postgres.Connection, index_id: int, after: int) -> Digests:
    """The values of the versions after a place, and the values that they replaced, as a run."""
    parts = [none(0)]
    for run in _after(connection, index_id, after):
        changed = run[max(0, after + 1 - run.first) :]
        parts += [changed.new, changed.old]
    values = Digests.joined(parts).run()
    return values[~values.is_zero()]


def _after(connection: postgres.Connection, index_id: int, after: int) -> Iterator[Run]:
    while piece := runs(connection, index_id, after, READ_AT_ONCE[-1]):
        yield from piece
        after = piece[-1].first + len(piece[-1]) - 1


def runs(connection: postgres.Connection, index_id: int, after: int, count: int) -> list[Run]:
    """The next runs with versions after a place, in their order."""
    place = {"index": index_id, "after": after, "longest": LONGEST, "runs": count}
    rows: Any = connection.execute(READ, place, binary=True)
    return [Run.unpacked(first, packed) for first, packed in rows]


def _newest(connection: postgres.Connection, index_id: int, versions: int) -> Run | None:
    """The newest run, if it is not larger than one that follows, and both together are not too long."""
    most = min(versions, LONGEST - versions)
    row: Any = connection.execute(NEWEST, [index_id, most, index_id], binary=True).fetchone()
    return Run.unpacked(row[0], row[2]) if row else None


def none(count: int) -> Digests:
    """So many times no value."""
    return Digests(np.zeros(count, np.uint64), np.zeros(count, np.uint64))
