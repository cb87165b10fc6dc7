"""Selection of open dead letters by id or by filter, page by page, locked until the transaction ends.

Two concurrent replays of one filter skip rows that the other has locked, and so share the work; at the end
each waits for the rows it skipped, which the other may have left open. A selection by id waits for locked
rows, and then reports their state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from psycopg.rows import TupleRow

from pulse_pipelines.dead_letters.letters import FIELDS, MATCHES, Cursor, DeadLetter, Filter, Opened, position
from pulse_pipelines.dead_letters.verdicts import DeadLetterOutcome, Verdict
from pulse_resources import postgres

PAGE = 250
"""Letters in a transaction: with `ingest.max_event_bytes` it bounds the memory that a page takes."""

PAYLOAD = "CASE WHEN octet_length(payload) <= %(max_bytes)s THEN payload ELSE '' END"
BY_FILTER = f"""
SELECT settled_at, partition, event_offset FROM dead_letters
WHERE resolution IS NULL AND settled_at <= %(begun)s AND {MATCHES}
  AND (settled_at, partition, event_offset) > (%(at)s::timestamptz, %(partition)s, %(offset)s)
ORDER BY settled_at, partition, event_offset LIMIT %(limit)s
"""  # noqa: S608 - from constants
NAMED = f"""
SELECT {FIELDS}, {PAYLOAD} FROM dead_letters
WHERE (partition, event_offset) IN (SELECT * FROM unnest(%(partitions)s::int[], %(offsets)s::bigint[]))
"""  # noqa: S608
# In the lock order of the publisher of dead letters (`ingest.dead_letter_topic`), which prevents deadlocks.
BY_ID = f"{NAMED} ORDER BY partition, event_offset"
OPEN = f"{NAMED} AND resolution IS NULL ORDER BY {{order}}"
THE_OLDEST_FIRST = "settled_at, partition, event_offset"
RESOLVE = """
UPDATE dead_letters SET resolution = %s, resolved_at = now()
WHERE (partition, event_offset) IN (SELECT * FROM unnest(%s::int[], %s::bigint[]))
"""


@dataclass(frozen=True)
class Selected:
    """A page of a selection: its open letters, and verdicts on ids that are unknown or already resolved.

    The payload of a letter above the size limit is left out: such an event cannot land.
    """

    letters: tuple[Opened, ...]
    verdicts: tuple[Verdict, ...] = ()


class Selection(Protocol):
    """The letters that a caller chose, read page by page."""

    next: str | None
    """Cursor for the next call, if the limit was reached; else None."""

    def page(self, connection: postgres.Connection, max_bytes: int, *, lock: bool) -> Selected | None:
        """The next page, its rows locked if `lock`; None after the last."""


def select(chosen: Filter | Sequence[str], limit: int | None, after: str | None) -> Selection:
    """Make the selection of a caller's filter or ids; limit and cursor apply to filters only.

    Raises:
        NotFound: no such cursor.
    """
    if isinstance(chosen, Filter):
        return ByFilter(chosen, limit, after)
    return ByIds(chosen)


class ByFilter:
    """Letters that match a filter, the oldest first, without letters that settled after the work began.

    Otherwise a letter that fails again after its replay would be replayed endlessly.
    """

    def __init__(self, where: Filter, limit: int | None, after: str | None) -> None:
        self.next: str | None = None
        self._where = where
        self._remaining = limit
        self._skipped: list[tuple[int, int]] = []
        self._cursor = Cursor.parse(after) if after is not None else Cursor("-infinity")
        self._begun: datetime | None = None
        self._done = limit == 0

    def page(self, connection: postgres.Connection, max_bytes: int, *, lock: bool) -> Selected | None:
        """See `Selection`."""
        if self._done:
            named, self._skipped = self._skipped[:PAGE], self._skipped[PAGE:]
            waited = OPEN.format(order="partition, event_offset FOR UPDATE")
            return Selected(_open(connection, waited, named, max_bytes)) if named else None
        if self._begun is None:
            ((self._begun,),) = connection.execute("SELECT now()").fetchall()
        limit = PAGE if self._remaining is None else min(PAGE, self._remaining)
        at, partition, offset = self._cursor
        values = self._where.values() | {"begun": self._begun, "limit": limit}
        values |= {"at": at, "partition": partition, "offset": offset}
        rows = connection.execute(BY_FILTER, values).fetchall()
        named = [(partition, offset) for _, partition, offset in rows]
        query = OPEN.format(order=THE_OLDEST_FIRST + (" FOR UPDATE SKIP LOCKED" if lock else ""))
        letters = _open(connection, query, named, max_bytes)
        if lock:
            places = {(opened.letter.partition, opened.letter.offset) for opened in letters}
            self._skipped += set(named) - places
        if self._remaining is not None:
            self._remaining -= len(rows)
        if rows:
            settled_at, *place = rows[-1]
            self._cursor = Cursor(settled_at.isoformat(), *place)
        self._done = len(rows) < limit or self._remaining == 0
        if self._done:
            self._skipped.sort()
        self.next = str(self._cursor) if len(rows) == limit and self._remaining == 0 else None
        return Selected(letters)


class ByIds:
    """Letters with given ids, each once."""

    def __init__(self, letter_ids: Sequence[str]) -> None:
        self.next: str | None = None
        self._pending_ids = sorted(dict.fromkeys(letter_ids), key=lambda name: position(name) or (-1, -1))

    def page(self, connection: postgres.Connection, max_bytes: int, *, lock: bool) -> Selected | None:
        """See `Selection`."""
        named, self._pending_ids = self._pending_ids[:PAGE], self._pending_ids[PAGE:]
        if not named:
            return None
        places = {place: name for name in named if (place := position(name)) is not None}
        values = {"partitions": [p for p, _ in places], "offsets": [o for _, o in places]}
        query = BY_ID + (" FOR UPDATE" if lock else "")
        rows = connection.execute(query, values | {"max_bytes": max_bytes})
        letters = [_opened(row) for row in rows]
        read_places = {(opened.letter.partition, opened.letter.offset) for opened in letters}
        lost = [name for name in named if (place := position(name)) is None or place not in read_places]
        resolved = [_resolved(opened.letter) for opened in letters if opened.letter.resolution is not None]
        return Selected(
            tuple(opened for opened in letters if opened.letter.resolution is None),
            (*(Verdict(name, DeadLetterOutcome.NOT_FOUND) for name in lost), *resolved),
        )


def _open(
    connection: postgres.Connection, query: str, named: Sequence[tuple[int, int]], max_bytes: int
) -> tuple[Opened, ...]:
    values = {"partitions": [p for p, _ in named], "offsets": [o for _, o in named], "max_bytes": max_bytes}
    return tuple(_opened(row) for row in connection.execute(query, values))


def _opened(row: TupleRow) -> Opened:
    return Opened(DeadLetter(*row[:-1]), bytes(row[-1]))


def _resolved(letter: DeadLetter) -> Verdict:
    outcome = DeadLetterOutcome(f"already_{letter.resolution}")
    return Verdict(letter.letter_id, outcome, letter.dataset, letter.event_id)


def resolve(connection: postgres.Connection, resolution: str, letters: Sequence[DeadLetter]) -> None:
    """Mark letters of the session's tenant as replayed or discarded."""
    partitions = [letter.partition for letter in letters]
    connection.execute(RESOLVE, [resolution, partitions, [letter.offset for letter in letters]])
