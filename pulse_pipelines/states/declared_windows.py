"""Windows of states: declared with the state, shown, read by key (see `states.window_buckets`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.moments import EPOCH, utc_text
from pulse_pipelines.domain.quota import STATE_BUCKETS
from pulse_pipelines.domain.schemas.columns import Column
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.domain.windows import (
    LENGTHS,
    MAX_GAP_S,
    MAX_SUMS,
    MIN_GAP_S,
    MINUTE_US,
    RETENTION_MINUTES,
    Windows,
    minute,
    plain,
)
from pulse_pipelines.states import window_buckets
from pulse_pipelines.states.window_buckets import can_be_summed, retained_after
from pulse_resources import postgres
from pulse_resources.errors import Conflict, QuotaExceeded, UserError, meant

TENANT_BUCKETS = 2_000_000
"""Buckets of the windows of all of a tenant's states together, at most."""

FIND = """
SELECT sums, session_gap_s, max_buckets, buckets, newest, dropped_to, built
FROM event_windows WHERE dataset_id = %s
"""
DECLARE = """
INSERT INTO event_windows (tenant_id, dataset_id, sums, session_gap_s, max_buckets)
VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (dataset_id) DO UPDATE
SET sums = excluded.sums, session_gap_s = excluded.session_gap_s, max_buckets = excluded.max_buckets
"""
# Files that were written for other windows bring what these cannot take.
RENUMBER = """
UPDATE event_states SET state_id = nextval('event_state_numbers') WHERE dataset_id = %s
"""
DROP = "DELETE FROM event_windows WHERE dataset_id = %s"
TOTAL = "SELECT coalesce(sum(max_buckets), 0) FROM event_windows WHERE tenant_id = app_tenant()"
# One statement: what is kept, and the buckets that are, of one moment. A session begins with the last bucket
# whose first event came later than the gap after the last event before.
OF_KEY = """
WITH b AS (
    SELECT minute, events, first_at, last_at, sums, first_at - lag(last_at) OVER (ORDER BY minute)
        > 1000000 * (SELECT session_gap_s::bigint FROM event_windows WHERE dataset_id = %(dataset)s) AS begins
    FROM event_window_buckets
    WHERE dataset_id = %(dataset)s AND key = %(key)s COLLATE "C" AND minute <= %(last)s AND minute > (
        SELECT greatest(newest - %(kept)s, dropped_to) FROM event_windows WHERE dataset_id = %(dataset)s)
), session AS (
    SELECT min(first_at) AS first_at, max(last_at) AS last_at, sum(events)::bigint AS events FROM b
    WHERE minute >= coalesce((SELECT max(minute) FROM b WHERE begins), minute)
)
SELECT w.sums, w.session_gap_s, w.newest, w.dropped_to, w.built, s.first_at, s.last_at, s.events, t.*
FROM event_windows w, session s, (SELECT {windows} FROM b) t WHERE w.dataset_id = %(dataset)s
"""
COUNTED = "coalesce(sum(events) FILTER (WHERE minute > %(last)s - {length}), 0)::bigint"
SUMMED = "coalesce(sum(sums[{number}]) FILTER (WHERE minute > %(last)s - {length}), 0)"


@dataclass(frozen=True)
class DeclaredWindows:
    sums: tuple[str, ...]
    """Columns that are summed."""
    session_gap_s: int | None
    max_buckets: int
    buckets: int
    """Keys and minutes that are kept."""
    kept_from: str | None
    """What begins before is not known: it is too old, or there was no room; None: there was no event yet."""
    full: bool
    """Whether less is kept than windows need, for want of room."""
    complete: bool
    """Whether they have all that the table has from then on."""


@dataclass(frozen=True)
class Window:
    """The events of a key in some minutes."""

    start: str
    events: int
    sums: Mapping[str, Decimal]


@dataclass(frozen=True)
class Session:
    """The latest session of a key."""

    first: str
    last: str
    events: int
    open: bool
    """Whether the moment is not later than the gap after its last event."""
    complete: bool
    """Whether it is all of the session: no event before what is kept can belong to it."""


@dataclass(frozen=True)
class KeyWindows:
    """The windows of a key as of a moment."""

    to: str
    """End of the moment's minute, and of all windows."""
    complete: bool
    """Whether they are built: they have all that the table has. If not, they may lack anything."""
    windows: Mapping[str, Window | None]
    """By their names in `LENGTHS`; None: one that begins before what is kept."""
    session: Session | None
    """None: no sessions are declared, or no event of the time that is kept has the key."""


def checked(dataset: Dataset, windows: Windows, where: Mapping[str, str]) -> Windows:
    """Windows as they can be declared, with names of columns. Raises UserError."""
    if not 1 <= windows.max_buckets <= STATE_BUCKETS:
        raise UserError(f"windows have from 1 to {STATE_BUCKETS:,} buckets", **where)
    gap = windows.session_gap_s
    if gap is not None and not MIN_GAP_S <= gap <= MAX_GAP_S:
        raise UserError(f"the gap of sessions is from {MIN_GAP_S} to {MAX_GAP_S:,} seconds", **where)
    if len(windows.sums) > MAX_SUMS:
        raise UserError(f"at most {MAX_SUMS} properties are summed", **where)
    fitting = [column for column in dataset.columns if can_be_summed(column)]
    names = {name: column.name for column in fitting for name in (column.field, column.name)}
    for name in windows.sums:
        if name not in names:
            raise UserError(
                f"only properties of the schema that are numbers have sums: {name} is not one",
                fix=meant(name, [column.name for column in fitting]),
                **where,
            )
    sums = tuple(dict.fromkeys(names[name] for name in windows.sums))
    return Windows(sums, gap, windows.max_buckets)


def declare(
    connection: postgres.Connection, dataset: Dataset, windows: Windows | None, where: Mapping[str, str]
) -> None:
    """Declare the windows of a state that the transaction holds; None: remove them.

    They begin again if their sums differ, or if minutes were left out that now have room.

    Raises:
        UserError: what is declared cannot be.
        QuotaExceeded: the tenant's windows have as many buckets as they may have.
    """
    dataset_id = dataset.dataset_id
    if windows is None:
        connection.execute(DROP, [dataset_id])
        return
    declared = checked(dataset, windows, where)
    row = connection.execute(window_buckets.HOLD, [dataset_id]).fetchone()
    values = (
        dataset.tenant_id,
        dataset_id,
        list(declared.sums),
        declared.session_gap_s,
        declared.max_buckets,
    )
    connection.execute(DECLARE, values)
    _, sums, most, _, _, dropped_to, _ = row or (None,) * 7
    if row is None or tuple(sums) != declared.sums:
        connection.execute(RENUMBER, [dataset_id])
        window_buckets.restart(connection, dataset_id)
    elif declared.max_buckets > most and dropped_to is not None:
        window_buckets.restart(connection, dataset_id)
    (total,) = connection.execute(TOTAL).fetchone() or (0,)
    if total > TENANT_BUCKETS:
        raise QuotaExceeded(
            f"the tenant's windows may have {TENANT_BUCKETS:,} buckets together, and would have {total:,}",
            fix="Declare them with fewer (max_buckets), or drop others",
            **where,
        )


def find(connection: postgres.Connection, dataset_id: UUID) -> DeclaredWindows | None:
    """The windows of a dataset's state, if it has any."""
    row = connection.execute(FIND, [dataset_id]).fetchone()
    if row is None:
        return None
    sums, gap, most, buckets, newest, dropped_to, built = row
    after = retained_after(newest, dropped_to)
    full = after is not None and after == dropped_to
    since = None if after is None else _at(after + 1)
    return DeclaredWindows(tuple(sums), gap, most, buckets, since, full, built)


def of_key(
    connection: postgres.Connection, dataset_id: UUID, sums: Sequence[str], key: str, as_of: datetime
) -> KeyWindows | None:
    """The windows of a key; None: there are none by now.

    Args:
        sums: columns that are summed.
        as_of: the windows end with its minute.
    """
    last, lengths = minute(as_of), tuple(LENGTHS.values())
    parts = [COUNTED.format(length=length) for length in lengths]
    parts += [
        SUMMED.format(length=length, number=number + 1) for length in lengths for number in range(len(sums))
    ]
    values = {"dataset": dataset_id, "key": key, "last": last, "kept": RETENTION_MINUTES}
    row = connection.execute(OF_KEY.format(windows=", ".join(parts)), values).fetchone()
    if row is None or tuple(row[0]) != tuple(sums):
        return None
    _, gap, newest, dropped_to, built, first_at, last_at, events, *counts_and_totals = row
    after = retained_after(newest, dropped_to)
    counts, totals = counts_and_totals[: len(lengths)], counts_and_totals[len(lengths) :]
    windows: dict[str, Window | None] = {}
    for number, (name, length) in enumerate(LENGTHS.items()):
        start = last + 1 - length
        of_window = totals[number * len(sums) : (number + 1) * len(sums)]
        exact = {name: Decimal(plain(total)) for name, total in zip(sums, of_window, strict=True)}
        whole = Window(_at(start), counts[number], exact)
        windows[name] = whole if after is None or start > after else None
    session = None
    if gap is not None and after is not None and events is not None:
        # An earlier event of this minute could belong to it.
        reach = (first_at - gap * 1_000_000) // MINUTE_US
        still = (as_of - EPOCH) // timedelta(microseconds=1) - last_at <= gap * 1_000_000
        session = Session(_moment(first_at), _moment(last_at), events, still, built and reach > after)
    return KeyWindows(_at(last + 1), built, windows, session)


def check(
    connection: postgres.Connection, tenant: Tenant, dataset: Dataset, columns: Sequence[Column]
) -> None:
    """Check that the windows of a dataset's state can be kept with other columns. Raises Conflict."""
    row = connection.execute(FIND, [dataset.dataset_id]).fetchone()
    types = {column.name: column.type for column in dataset.columns}
    unchanged = {column.name for column in columns if column.type == types.get(column.name)}
    for name in () if row is None else row[0]:
        if name not in unchanged:
            raise Conflict(
                f"the newer schema gives another type to {name}, of which the dataset's windows have sums",
                fix="Declare the state without this sum first: pulse state declare, or PUT .../state",
                tenant=tenant.slug,
                dataset=dataset.slug,
            )


def _at(minute: int) -> str:
    return _moment(minute * MINUTE_US)


def _moment(at: int) -> str:
    return utc_text(EPOCH + timedelta(microseconds=at))
