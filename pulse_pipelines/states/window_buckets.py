"""Windows of states: per key and minute of event time the number of events, the first and last, and sums.

Buckets are added to, so that each row must be added once: a file's own (`frame`) by the transaction that
lands it (`land`), those of the table as it was when the windows began by their build
(`states.window_build`). Both hold the row of `event_windows`. What changes a table's rows in another
way makes windows begin again (`changed`). Addition, minimum and maximum have no order, and nor do sums: these
are of decimals, and exact.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from decimal import Decimal, localcontext
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.schemas.columns import Column, Kind
from pulse_pipelines.domain.windows import AHEAD_S, MINUTE_US, RETENTION_MINUTES, end_of
from pulse_pipelines.tables.arrow_streams import packed, unpacked
from pulse_resources import postgres
from pulse_resources.process.faults import fail_point

SUMMABLE = (Kind.LONG, Kind.DOUBLE)
SCALE = 12
"""Digits after the point that Arrow sums; Python sums doubles with more, of `LARGE`, or below `SMALL`."""
LARGE = 1e15
SMALL = 10.0**-SCALE
DIGITS = 1_400
"""More than a sum of any doubles has."""
TRIMMED = 20_000
"""Buckets that a batch removes, beside two for each that it brings."""
FILLED = 0.9
"""Part of the room that is left filled where there was too little: making room is not for every batch."""
NEVER = -(2**31)
"""Before every minute."""

# Held until the transaction ends: who adds to the buckets is alone.
HOLD = """
SELECT number, sums, max_buckets, buckets, newest, dropped_to, built FROM event_windows
WHERE dataset_id = %s FOR NO KEY UPDATE
"""
TRIM = """
DELETE FROM event_window_buckets WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM event_window_buckets WHERE number = %s AND minute <= %s LIMIT %s))
"""
UNKNOWN = """
SELECT count(DISTINCT (key, minute)) FROM unnest(%(key)s::text[], %(minute)s::int[]) AS b (key, minute)
WHERE NOT EXISTS (
    SELECT FROM event_window_buckets k
    WHERE k.dataset_id = %(dataset)s AND k.key = b.key COLLATE "C" AND k.minute = b.minute)
"""
BY_MINUTE = "SELECT minute, count(*) FROM event_window_buckets WHERE number = %s GROUP BY minute"
# With a column of the parameters, `s0` and so on, for each sum.
MERGE = """
WITH buckets AS MATERIALIZED (
    SELECT key COLLATE "C" AS key, minute, sum(events)::bigint AS events, min(first_at) AS first_at,
        max(last_at) AS last_at, ARRAY[{summed}]::numeric[] AS sums
    FROM unnest(%(key)s::text[], %(minute)s::int[], %(events)s::bigint[], %(first_at)s::bigint[],
        %(last_at)s::bigint[]{given}) AS b (key, minute, events, first_at, last_at{names})
    GROUP BY 1, 2
), known AS (
    UPDATE event_window_buckets k
    SET events = k.events + b.events, first_at = least(k.first_at, b.first_at),
        last_at = greatest(k.last_at, b.last_at), sums = ARRAY[{added}]::numeric[]
    FROM buckets b WHERE k.dataset_id = %(dataset)s AND k.key = b.key AND k.minute = b.minute
), added AS (
    INSERT INTO event_window_buckets
        (tenant_id, dataset_id, number, key, minute, events, first_at, last_at, sums)
    SELECT %(tenant)s, %(dataset)s, %(number)s, key, minute, events, first_at, last_at, sums FROM buckets b
    WHERE NOT EXISTS (
        SELECT FROM event_window_buckets k
        WHERE k.dataset_id = %(dataset)s AND k.key = b.key AND k.minute = b.minute)
    RETURNING 1
)
SELECT count(*) FROM added
"""
KEEP = "UPDATE event_windows SET buckets = %s, newest = %s, dropped_to = %s WHERE dataset_id = %s"
RESTART = """
UPDATE event_windows SET buckets = 0, newest = NULL, dropped_to = NULL, built = false, round = round + 1,
    base = NULL, read_files = 0, read_pieces = 0
WHERE dataset_id = %s
"""
EMPTY = "DELETE FROM event_window_buckets WHERE dataset_id = %s"


def can_be_summed(column: Column) -> bool:
    """Whether windows can have sums of a column."""
    return column.type.kind in SUMMABLE


def columns(dataset: Dataset) -> Sequence[str]:
    """The columns of rows that `frame` needs, of a dataset whose state has windows."""
    assert dataset.state is not None  # noqa: S101 - windows are a state's
    return tuple(dict.fromkeys((dataset.state[1], "timestamp", "ingested_at", *(dataset.windows or ()))))


def frame(dataset: Dataset, keys: pa.Array, rows: pa.Table) -> bytes:
    """The buckets of rows with usable keys, packed.

    Args:
        keys: of the rows, as texts.
        rows: with at least the `columns`.
    """
    at = pc.cast(rows.column("timestamp"), pa.int64()).to_numpy()
    received = pc.cast(rows.column("ingested_at"), pa.int64()).to_numpy()
    sums = {f"s{number}": rows.column(name) for number, name in enumerate(dataset.windows or ())}
    table = pa.table({"key": keys, "minute": pa.array(np.floor_divide(at, MINUTE_US)), "at": at} | sums)
    table = table.filter(pa.array(at <= received + AHEAD_S * 1_000_000))
    fitting = {name: _decimals(table.column(name)) for name in sums}
    aggregates: list[tuple[Any, ...]] = [("at", "count"), ("at", "min"), ("at", "max")]
    for name, decimals in fitting.items():
        if decimals is not None:
            table = table.set_column(table.schema.get_field_index(name), name, decimals)
            aggregates.append((name, "sum", pc.ScalarAggregateOptions(min_count=0)))
    grouped = table.group_by(["key", "minute"]).aggregate(aggregates)
    buckets = {name: grouped.column(name) for name in ("key", "minute")}
    buckets |= {"events": grouped.column("at_count")}
    buckets |= {"first_at": grouped.column("at_min"), "last_at": grouped.column("at_max")}
    for name, decimals in fitting.items():
        by_arrow = None if decimals is None else grouped.column(f"{name}_sum").cast(pa.string())
        buckets[name] = by_arrow if by_arrow is not None else _summed(table, name, grouped)
    return packed(pa.table(buckets))


def _decimals(values: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Numbers as the decimals that they are; None: they are too large or too fine for Arrow's."""
    if pa.types.is_integer(values.type):
        return values.cast(pa.decimal128(38, 0))
    sizes = pc.abs(values)
    smallest, largest = pc.min_max(sizes.filter(pc.greater(sizes, 0))).as_py().values()
    # Arrow makes 0 of a text with an exponent such as -135 instead of refusing it.
    if largest is not None and (largest >= LARGE or smallest < SMALL):
        return None
    try:
        return _texts(values).cast(pa.decimal128(38, SCALE))
    except pa.ArrowInvalid:
        return None


def _texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Doubles as the shortest texts that give them: as a rule what was sent."""
    return values.cast(pa.string())


def _summed(table: pa.Table, name: str, buckets: pa.Table) -> pa.Array:
    """Sums of doubles, as texts, for buckets in their order."""
    totals: dict[tuple[str, int], Decimal] = defaultdict(Decimal)
    by = (table.column("key").to_pylist(), table.column("minute").to_pylist())
    with localcontext() as exactly:
        exactly.prec = DIGITS
        for key, minute, text in zip(*by, _texts(table.column(name)).to_pylist(), strict=True):
            if text is not None:
                totals[key, minute] += Decimal(text)
    places = zip(buckets.column("key").to_pylist(), buckets.column("minute").to_pylist(), strict=True)
    return pa.array([format(totals[place], "f") for place in places], pa.string())


def land(
    connection: postgres.Connection, tenant_id: UUID, dataset_id: UUID, frames: Iterable[bytes | None]
) -> None:
    """Add the frames of files to their dataset's windows, in the transaction that lands the files."""
    row = connection.execute(HOLD, [dataset_id]).fetchone()
    if row is not None:  # else they are dropped
        add(connection, tenant_id, dataset_id, row, [frame for frame in frames if frame is not None])


def add(
    connection: postgres.Connection,
    tenant_id: UUID,
    dataset_id: UUID,
    row: Sequence[Any],
    frames: Iterable[bytes],
) -> int | None:
    """Add frames to windows that are held, and drop buckets that are too old, or exceed the maximum.

    Args:
        row: what `HOLD` gave.

    Returns:
        The minute after which buckets are kept; None: all are, since there was no event yet.
    """
    newest: int | None
    dropped_to: int | None
    number, sums, most, count, newest, dropped_to, _ = row
    buckets = pa.concat_tables([unpacked(frame) for frame in frames])
    if not buckets.num_rows:
        return retained_after(newest, dropped_to)
    newest = max(int(pc.max(buckets.column("minute")).as_py()), NEVER if newest is None else newest)
    after = _retained_after(newest, dropped_to)
    buckets = buckets.filter(pc.greater(buckets.column("minute"), after))
    limit = TRIMMED + 2 * buckets.num_rows
    count -= connection.execute(TRIM, [number, after, limit]).rowcount
    full = (
        _full(connection, dataset_id, number, most, count, buckets)
        if count + buckets.num_rows > most
        else None
    )
    if full is not None:
        if full > after:
            after = dropped_to = full
        buckets = buckets.filter(pc.greater(buckets.column("minute"), after))
        count -= connection.execute(TRIM, [number, after, None]).rowcount
    values = {name: buckets.column(name).to_pylist() for name in buckets.column_names}
    values |= {"tenant": tenant_id, "dataset": dataset_id, "number": number}
    fail_point("event_windows.before_merge")
    ((added,),) = connection.execute(_merge(len(sums)), values).fetchall()
    connection.execute(KEEP, [count + added, newest, dropped_to, dataset_id])
    fail_point("event_windows.after_merge")
    return after


def retained_after(newest: int | None, dropped_to: int | None) -> int | None:
    """The minute after which buckets are kept; None: no event has landed yet."""
    return None if newest is None else _retained_after(newest, dropped_to)


def _retained_after(newest: int, dropped_to: int | None) -> int:
    return max(newest - RETENTION_MINUTES, NEVER if dropped_to is None else dropped_to)


def _full(
    connection: postgres.Connection, dataset_id: UUID, number: int, most: int, count: int, added: pa.Table
) -> int | None:
    """The minute up to which buckets must go for the added ones; None: there is room for all."""
    places = {name: added.column(name).to_pylist() for name in ("key", "minute")}
    ((unknown,),) = connection.execute(UNKNOWN, places | {"dataset": dataset_id}).fetchall()
    if count + unknown <= most:
        return None
    of_minute: Counter[int] = Counter(dict(connection.execute(BY_MINUTE, [number]).fetchall()))
    of_minute.update(places["minute"])  # some are there already: that leaves a little more room
    retained = 0
    for minute in sorted(of_minute, reverse=True):
        if retained + of_minute[minute] > (int(FILLED * most) if retained else most):
            return minute
        retained += of_minute[minute]
    return None


def changed(connection: postgres.Connection, dataset_id: UUID, days: Iterable[date]) -> None:
    """Restart the windows, in the transaction that changes rows of these days otherwise than by landing.

    They are incomplete until they are built. Days that are too old for them change nothing.
    """
    row = connection.execute(HOLD, [dataset_id]).fetchone()
    if row is None:
        return
    number, _, _, count, newest, dropped_to, built = row
    after = retained_after(newest, dropped_to)
    if built and after is not None and all(end_of(day) <= after for day in days):
        count -= connection.execute(TRIM, [number, after, None]).rowcount  # what was not removed yet
        connection.execute(KEEP, [count, newest, dropped_to, dataset_id])
        return
    restart(connection, dataset_id)


def restart(connection: postgres.Connection, dataset_id: UUID) -> None:
    """Empty the windows, which then have to be built."""
    connection.execute(RESTART, [dataset_id])
    connection.execute(EMPTY, [dataset_id])


def _merge(sums: int) -> str:
    numbers = range(sums)
    parts: Mapping[str, str] = {
        "given": "".join(f", %(s{n})s::numeric[]" for n in numbers),
        "names": "".join(f", s{n}" for n in numbers),
        "summed": ", ".join(f"sum(s{n})" for n in numbers),
        "added": ", ".join(f"k.sums[{n}] + b.sums[{n}]" for n in range(1, sums + 1)),
    }
    return MERGE.format(**parts)
