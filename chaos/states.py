"""Oracle of states: what is kept beside a table for each key, against the rows of the table."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

import pyarrow as pa

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.domain.windows import AHEAD_S, LENGTHS, RETENTION_MINUTES, Windows, minute
from pulse_pipelines.states import declared_states, state_build
from pulse_pipelines.states.declared_windows import KeyWindows

GAP_S = 600
PAGE = 1_000
COMPARED_KEYS = 25
"""Keys of a state whose windows are compared."""


@dataclass(frozen=True)
class Declared:
    """A state that is declared."""

    latest_by: str
    windows: Windows


STATES: Mapping[str, Declared] = {
    "orders": Declared("country", Windows(("amount", "count"), GAP_S)),
    "clicks": Declared("page", Windows(("ms",), GAP_S)),
}
Row = dict[str, Any]


def declare(tenant: Tenant) -> None:
    """Declare a state with windows and sessions of each dataset of the load."""
    for slug, state in STATES.items():
        declared_states.declare(tenant, slug, state.latest_by, windows=state.windows)
        state_build.build(tenant, slug)


def compare(tenant: Tenant, slug: str, rows: pa.Table) -> Iterator[tuple[str, list[Any]]]:
    """Compare the state of a dataset with its rows.

    What a backfill or a move has left to be built is built first, as its sensor would.
    """
    state = declared_states.find(tenant, slug)
    if not (state.complete and state.windows is not None and state.windows.complete):
        state_build.build(tenant, slug)
    table, by_key = rows.to_pylist(), defaultdict[str, list[Row]](list)
    for row in table:
        by_key[row[STATES[slug].latest_by]].append(row)
    newest = {key: max(key_rows, key=_place)["id"] for key, key_rows in by_key.items()}
    recorded = _newest(tenant, slug)
    yield (
        f"{slug}: the state's newest events differ",
        [key for key in newest.keys() | recorded.keys() if newest.get(key) != recorded.get(key)],
    )
    busiest = sorted(by_key.keys() & recorded.keys(), key=lambda key: (-len(by_key[key]), key))
    yield f"{slug}: the state's windows differ", list(_windows(tenant, slug, table, busiest[:COMPARED_KEYS]))


def _place(row: Row) -> tuple[Any, ...]:
    return row["timestamp"], row["_kafka_partition"], row["_offset"]


def _newest(tenant: Tenant, slug: str) -> dict[str, str]:
    """Event ids by key, as the state has them."""
    newest, after = dict[str, str](), None
    while page := declared_states.page(tenant, slug, after, PAGE)[1]:
        newest |= {event.key: event.event_id for event in page}
        after = page[-1].key
    return newest


def _windows(tenant: Tenant, slug: str, rows: Sequence[Row], keys: Iterable[str]) -> Iterator[str]:
    """Keys whose windows and session as of the newest event are not what the rows give."""
    moments = [row["timestamp"] for row in rows if _counts(row)]
    if not moments:
        return
    as_of = max(moments)
    for key in keys:
        windows = declared_states.newest(tenant, slug, key, as_of).windows
        actual, expected = windows and shown(windows), model(rows, STATES[slug], key, as_of)
        if actual != expected:
            yield f"{key} has {actual}, the rows give {expected}"


def model(table: Sequence[Row], declared: Declared, key: str, as_of: datetime) -> Row:
    """Windows and session of a key by the rows of the table, in plain Python.

    Each window as the number of events and the sums, None if it begins before what is kept; the session as
    its first and last moment, and the number of events.
    """
    rows, last = list(filter(_counts, table)), minute(as_of)
    horizon = max(minute(row["timestamp"]) for row in rows) - RETENTION_MINUTES
    of_key = [r for r in rows if r[declared.latest_by] == key and horizon < minute(r["timestamp"]) <= last]
    of_key.sort(key=lambda row: row["timestamp"])
    windows: Row = {}
    for name, length in LENGTHS.items():
        inside = [row for row in of_key if minute(row["timestamp"]) > last - length]
        totals = [_sum(inside, column) for column in declared.windows.sums]
        windows[name] = (len(inside), totals) if last - length >= horizon else None
    session, gap = list[datetime](), timedelta(seconds=declared.windows.session_gap_s or 0)
    for row in of_key:
        if session and row["timestamp"] - session[-1] > gap:
            session = []
        session.append(row["timestamp"])
    windows["session"] = (session[0], session[-1], len(session)) if session else None
    return windows


def shown(key_windows: KeyWindows) -> Row:
    """The windows and session of a key, as `model` has them."""
    windows: Row = {
        name: window and (window.events, [Fraction(total) for total in window.sums.values()])
        for name, window in key_windows.windows.items()
    }
    session = key_windows.session
    moments = map(datetime.fromisoformat, (session.first, session.last)) if session else ()
    return windows | {"session": (*moments, session.events) if session else None}


def _counts(row: Row) -> bool:
    return bool(row["timestamp"] <= row["ingested_at"] + timedelta(seconds=AHEAD_S))


def _sum(rows: Sequence[Row], column: str) -> Fraction:
    return sum((Fraction(repr(row[column])) for row in rows if row[column] is not None), Fraction(0))
