"""The ledger, and its only writer: how far each tenant's topic was ingested, and the result of every offset.

    drained = landed + duplicates + dead_letters

holds for every settled range, and for the sums of its partition: each drained offset is in exactly one of the
three. Later changes (a backfill lands dead letters, an erasure removes such rows) move offsets from one count
to another. `landings` records by table and day what each commit added. Everything is written in the tenant's
session, in the transaction that makes it true.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from pulse_pipelines.domain.batch import OffsetRange
from pulse_resources import postgres
from pulse_resources.errors import Fenced, Terminal

ADD_POSITION = """
INSERT INTO ingest_positions (tenant_id, partition, planned_offset, settled_offset)
VALUES (%s, %s, 0, 0) ON CONFLICT DO NOTHING
"""
# Locks the position until the batch is recorded; no row: another planner, or an operator, moved it.
ADVANCE_PLANNED = """
UPDATE ingest_positions p SET planned_offset = %(end)s, topic_id = %(topic_id)s
WHERE tenant_id = %(tenant)s AND partition = %(partition)s
  AND planned_offset = %(start)s AND settled_offset = planned_offset AND base_offset = %(base)s
  AND NOT EXISTS (
    SELECT FROM ingest_ranges r
    WHERE (r.tenant_id, r.partition) = (p.tenant_id, p.partition) AND r.start_offset >= %(start)s)
"""
PLAN_RANGE = """
INSERT INTO ingest_ranges (batch_id, tenant_id, partition, start_offset, end_offset)
VALUES (%s, %s, %s, %s, %s)
"""
UNPLAN = "DELETE FROM ingest_ranges WHERE tenant_id = %s AND settled_at IS NULL"
REWIND = "UPDATE ingest_positions SET planned_offset = settled_offset WHERE tenant_id = %s"
SKIPPED_RANGE = """
INSERT INTO ingest_ranges (batch_id, tenant_id, partition, start_offset, end_offset, settled_at,
    drained, landed, duplicates, dead_letters, duplicate_offsets, absent_offsets)
VALUES (%s, %s, %s, %s, %s, now(), 0, 0, 0, 0, '{}', %s)
"""
# A compare-and-swap: only from the known position, base and topic.
REPOSITION = """
UPDATE ingest_positions
SET planned_offset = %(to)s, settled_offset = %(to)s, base_offset = %(base)s, topic_id = %(topic_id)s
WHERE tenant_id = %(tenant)s AND partition = %(partition)s AND settled_offset = %(position)s
  AND base_offset = %(known_base)s AND topic_id IS NOT DISTINCT FROM %(known_topic_id)s
"""
SETTLE_RANGE = """
UPDATE ingest_ranges
SET settled_at = now(), drained = %(drained)s, landed = %(landed)s, duplicates = %(duplicates)s,
    dead_letters = %(dead_letters)s, duplicate_offsets = %(duplicate_offsets)s,
    absent_offsets = %(absent_offsets)s, oldest_received = %(oldest_received)s
WHERE batch_id = %(batch)s AND tenant_id = %(tenant)s AND partition = %(partition)s
  AND start_offset = %(start)s AND settled_at IS NULL
"""
ADVANCE_SETTLED = """
UPDATE ingest_positions SET settled_offset = %(end)s, landed = landed + %(landed)s,
    duplicates = duplicates + %(duplicates)s, dead_letters = dead_letters + %(dead_letters)s,
    event_bytes = greatest(%(event_bytes)s, event_bytes * 9 / 10)
WHERE tenant_id = %(tenant)s AND partition = %(partition)s AND settled_offset = %(start)s
"""
# The range of an offset is the last one that starts at or before it.
MOVE_IN_RANGES = """
UPDATE ingest_ranges r SET landed = r.landed + %(sign)s * n, dead_letters = r.dead_letters - %(sign)s * n
FROM (
    SELECT l.partition, o.start_offset, count(*) AS n
    FROM unnest(%(partitions)s::int[], %(offsets)s::bigint[]) AS l (partition, event_offset)
    CROSS JOIN LATERAL (
        SELECT start_offset FROM ingest_ranges i
        WHERE i.tenant_id = %(tenant)s AND i.partition = l.partition AND i.start_offset <= l.event_offset
        ORDER BY start_offset DESC LIMIT 1) o
    GROUP BY 1, 2
) moved
WHERE r.tenant_id = %(tenant)s AND r.partition = moved.partition AND r.start_offset = moved.start_offset
"""
MOVE_IN_POSITION = """
UPDATE ingest_positions SET landed = landed + %(count)s, dead_letters = dead_letters - %(count)s
WHERE tenant_id = %(tenant)s AND partition = %(partition)s
"""
# An erasure that continues enters the same key again: what a later commit removes is added to the row.
LANDING = """
INSERT INTO landings AS l (batch_id, tenant_id, dataset_id, slug, day, rows, duplicates, bytes, files,
    snapshot_id, metadata_location)
VALUES (%(batch_id)s, %(tenant_id)s, %(dataset_id)s, %(slug)s, %(day)s, %(rows)s, %(duplicates)s, %(bytes)s,
    %(files)s, %(snapshot_id)s, %(metadata_location)s)
ON CONFLICT (batch_id, dataset_id, day) DO UPDATE SET rows = l.rows + EXCLUDED.rows,
    bytes = l.bytes + EXCLUDED.bytes, files = l.files + EXCLUDED.files, snapshot_id = EXCLUDED.snapshot_id,
    metadata_location = EXCLUDED.metadata_location, landed_at = EXCLUDED.landed_at
"""
USAGE = """
INSERT INTO usage AS u (tenant_id, kind, month, records, bytes, early)
VALUES (%s, %s, date_trunc('month', now() AT TIME ZONE 'UTC')::date, %s, %s, %s)
ON CONFLICT (tenant_id, kind, month) DO UPDATE
SET records = u.records + EXCLUDED.records, bytes = u.bytes + EXCLUDED.bytes, early = u.early + EXCLUDED.early
"""

# Tells reconciliation which rows may lack their claim.
CLAIMS_FROM = """
UPDATE ingest_positions SET claims_from = greatest(claims_from, %(end)s)
WHERE tenant_id = %(tenant)s AND partition = %(partition)s
"""

Places = Iterable[tuple[int, int]]
"""Partitions and offsets of events."""


@dataclass(frozen=True)
class RangeAccounting:
    """The accounting of the offsets of one range: each drained one has landed, or is in one other count."""

    drained: int
    landed: int
    duplicates: int
    dead_letters: int
    duplicate_offsets: Sequence[int] = ()
    absent: Sequence[tuple[int, int]] = ()
    """Offsets that hold no message, as half-open ranges."""
    oldest_received: datetime | None = None
    event_bytes: int = 0
    """Mean size of the drained events."""

    def __post_init__(self) -> None:
        """Raises Terminal: the invariant does not hold."""
        parts = (self.landed, self.duplicates, self.dead_letters)
        if min(parts) < 0 or self.drained != sum(parts):
            raise Terminal(
                f"{self.drained} events were drained, and {parts[0]} landed, {parts[1]} are duplicates and "
                f"{parts[2]} dead letters: nothing was settled",
                fix="This is a defect of Pulse: the next attempt drains the events again",
            )


@dataclass(frozen=True)
class Position:
    """Position up to which a partition is settled."""

    offset: int
    base: int
    """What is added to the broker's offsets."""
    topic_id: str | None


@dataclass(frozen=True)
class Landing:
    """Rows and files that a commit added to, or removed from, one day of a dataset's table."""

    batch_id: str
    """The batch, backfill or erasure."""
    tenant_id: UUID
    dataset_id: UUID
    slug: str
    day: date
    rows: int
    duplicates: int
    bytes: int
    files: int
    snapshot_id: int | None
    metadata_location: str | None


def add_partition(connection: postgres.Connection, tenant_id: UUID, partition: int) -> None:
    """Add the position of a partition of the tenant's topic, unless it exists."""
    connection.execute(ADD_POSITION, [tenant_id, partition])


def advance_planned(connection: postgres.Connection, r: OffsetRange, topic_id: str | None, base: int) -> bool:
    """Move a partition's planned position to the range's end; False if it was not at the range's start."""
    values = {"tenant": r.tenant_id, "partition": r.partition, "start": r.start, "end": r.end}
    return connection.execute(ADVANCE_PLANNED, values | {"topic_id": topic_id, "base": base}).rowcount == 1


def plan(connection: postgres.Connection, batch: str, r: OffsetRange) -> None:
    """Enter a range of a batch, not yet settled."""
    connection.execute(PLAN_RANGE, [batch, r.tenant_id, r.partition, r.start, r.end])


def unplan(connection: postgres.Connection, tenant_id: UUID) -> None:
    """Delete all unsettled ranges of a tenant, to be planned again."""
    connection.execute(UNPLAN, [tenant_id])
    connection.execute(REWIND, [tenant_id])


def skip(connection: postgres.Connection, batch: str, r: OffsetRange) -> None:
    """Enter a settled range of lost offsets, which are never drained."""
    absent = Multirange([Range(r.start, r.end)])
    connection.execute(SKIPPED_RANGE, [batch, r.tenant_id, r.partition, r.start, r.end, absent])


def reposition(
    connection: postgres.Connection, tenant_id: UUID, partition: int, expected: Position, to: Position
) -> bool:
    """Move a position to another offset, possibly of a new topic; False if it is not the `expected` one."""
    values = {
        "tenant": tenant_id,
        "partition": partition,
        "to": to.offset,
        "base": to.base,
        "topic_id": to.topic_id,
        "position": expected.offset,
        "known_base": expected.base,
        "known_topic_id": expected.topic_id,
    }
    return connection.execute(REPOSITION, values).rowcount == 1


def claims_expired(connection: postgres.Connection, tenant_id: UUID, partition: int, end: int) -> None:
    """Record that rows before this offset may lack their claims."""
    connection.execute(CLAIMS_FROM, {"tenant": tenant_id, "partition": partition, "end": end})


def settle(connection: postgres.Connection, batch: str, r: OffsetRange, accounting: RangeAccounting) -> None:
    """Write the accounting of a range, and move the settled position to its end.

    Raises:
        Fenced: the range is settled already, or the position is not at its start.
    """
    values: Mapping[str, object] = {
        "batch": batch,
        "tenant": r.tenant_id,
        "partition": r.partition,
        "start": r.start,
        "end": r.end,
        "drained": accounting.drained,
        "landed": accounting.landed,
        "duplicates": accounting.duplicates,
        "dead_letters": accounting.dead_letters,
        "duplicate_offsets": Multirange(runs(accounting.duplicate_offsets)),
        "absent_offsets": Multirange(Range(first, end) for first, end in sorted(accounting.absent)),
        "oldest_received": accounting.oldest_received,
        "event_bytes": accounting.event_bytes,
    }
    settled = connection.execute(SETTLE_RANGE, values).rowcount
    if settled != 1 or connection.execute(ADVANCE_SETTLED, values).rowcount != 1:
        raise Fenced(
            "the position is not where this batch begins",
            tenant=r.tenant_id,
            batch=batch,
            partition=r.partition,
            offset=r.start,
        )


def dead_letters_landed(connection: postgres.Connection, tenant_id: UUID, places: Places) -> None:
    """Move settled dead letters to the count of landed events."""
    _move(connection, tenant_id, places, 1)


def landed_are_dead_letters(connection: postgres.Connection, tenant_id: UUID, places: Places) -> None:
    """Move landed events (back) to the count of dead letters."""
    _move(connection, tenant_id, places, -1)


def _move(connection: postgres.Connection, tenant_id: UUID, places: Places, sign: int) -> None:
    partitions, offsets = [], []
    for partition, offset in places:
        partitions.append(partition)
        offsets.append(offset)
    if not offsets:
        return
    values = {"tenant": tenant_id, "partitions": partitions, "offsets": offsets, "sign": sign}
    connection.execute(MOVE_IN_RANGES, values)
    for partition in sorted(set(partitions)):  # in the order of settle, so no two deadlock
        count = sign * partitions.count(partition)
        connection.execute(MOVE_IN_POSITION, {"tenant": tenant_id, "partition": partition, "count": count})


def land(connection: postgres.Connection, landings: Iterable[Landing]) -> None:
    """Enter the landings of a commit."""
    with connection.cursor() as cursor:
        cursor.executemany(LANDING, [vars(landing) for landing in landings])


def use(
    connection: postgres.Connection, tenant_id: UUID, kind: str, records: int, size: int, early: int = 0
) -> None:
    """Add to the tenant's usage of this month, by kind of dataset; `early` records: of the month before."""
    connection.execute(USAGE, [tenant_id, kind, records, size, early])


def runs(offsets: Sequence[int]) -> Iterable[Range[int]]:
    """Sorted offsets as half-open ranges of consecutive ones."""
    start = 0
    for index in range(1, len(offsets) + 1):
        if index == len(offsets) or offsets[index] != offsets[index - 1] + 1:
            yield Range(offsets[start], offsets[index - 1] + 1)
            start = index
