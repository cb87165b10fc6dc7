"""Oracle of states: what is kept beside a table for each key, against the rows of the table."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pyarrow as pa

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.domain.windows import AHEAD_S, KEPT, LENGTHS, Windows, minute
from pulse_pipelines.registry import event_state_build, event_states
from pulse_pipelines.registry.event_states import DeclaredState

GAP_S = 600
PAGE = 1_000
KEYS_LOOKED_AT = 25
"""Keys of a state whose windows are compared."""


@dataclass(frozen=True)
class Declared:
    """The state of one dataset of the load."""

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
        event_states.declare(tenant, slug, state.latest_by, windows=state.windows)
        event_state_build.build(tenant, slug)


def judge(tenant: Tenant, slug: str, rows: pa.Table) -> Iterator[tuple[str, list[Any]]]:
    """Compare the state of a dataset with its rows.

    What a backfill or a move has left to be built is built first, as its sensor would.
    """
    state, by_key = STATES[slug], defaultdict[str, list[Row]](list)
    if not _complete(event_states.find(tenant, slug)):
        event_state_build.build(tenant, slug)
    for row in rows.to_pylist():
        by_key[row[state.latest_by]].append(row)
    newest = {key: max(own, key=_place)["id"] for key, own in by_key.items()}
    kept = _newest(tenant, slug)
    yield (
        f"{slug}: the state's newest events differ",
        [key for key in newest.keys() | kept.keys() if newest.get(key) != kept.get(key)],
    )
    yield (
        f"{slug}: the state's windows differ",
        list(_windows(tenant, slug, {key: own for key, own in by_key.items() if key in kept})),
    )


def _complete(state: DeclaredState) -> bool:
    return state.complete and state.windows is not None and state.windows.complete


def _place(row: Row) -> tuple[Any, ...]:
    return row["timestamp"], row["_kafka_partition"], row["_offset"]


def _newest(tenant: Tenant, slug: str) -> dict[str, str]:
    """Event ids by key, as the state has them."""
    found, after = dict[str, str](), None
    while page := event_states.page(tenant, slug, after, PAGE)[1]:
        found |= {each.key: each.event_id for each in page}
        after = page[-1].key
    return found


def _windows(tenant: Tenant, slug: str, by_key: Mapping[str, list[Row]]) -> Iterator[str]:
    """Keys whose windows and session as of the newest event are not what the rows give."""
    counted = {key: list(filter(_counts, own)) for key, own in by_key.items()}
    moments = [row["timestamp"] for own in counted.values() for row in own]
    if not moments:
        return
    as_of = max(moments)
    busiest = sorted(counted, key=lambda key: (-len(counted[key]), key))
    for key in busiest[:KEYS_LOOKED_AT]:
        kept = event_states.newest(tenant, slug, key, as_of).windows
        session = kept and kept.session
        found = kept and (
            {
                name: window and (window.events, [Fraction(total) for total in window.sums.values()])
                for name, window in kept.windows.items()
            },
            session and session.events,
        )
        if found != (wanted := _wanted(counted[key], STATES[slug].windows, minute(as_of))):
            yield f"{key} has {found}, the rows give {wanted}"


def _counts(row: Row) -> bool:
    return bool(row["timestamp"] <= row["ingested_at"] + timedelta(seconds=AHEAD_S))


def _wanted(rows: list[Row], declared: Windows, last: int) -> tuple[dict[str, Any], int | None]:
    """Counts and sums by window, and the events of the latest session."""
    own = [row for row in rows if last - KEPT < minute(row["timestamp"]) <= last]
    windows = {}
    for name, length in LENGTHS.items():
        inside = [row for row in own if minute(row["timestamp"]) > last - length]
        windows[name] = (len(inside), [_sum(inside, column) for column in declared.sums])
    own.sort(key=lambda row: row["timestamp"])
    session = 0
    for before, row in zip([None, *own], own, strict=False):
        follows = before is not None and row["timestamp"] - before["timestamp"] <= timedelta(seconds=GAP_S)
        session = session + 1 if follows else 1
    return windows, session or None


def _sum(rows: list[Row], column: str) -> Fraction:
    return sum((Fraction(repr(row[column])) for row in rows if row[column] is not None), Fraction(0))
