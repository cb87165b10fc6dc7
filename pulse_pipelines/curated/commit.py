"""Commit of rollups: the curated tables of a dataset and the served summaries, in one transaction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any
from uuid import UUID

import psycopg

from pulse_pipelines.curated import table
from pulse_pipelines.curated.compute import Result
from pulse_pipelines.curated.due import JOB
from pulse_pipelines.curated.table import Following
from pulse_pipelines.domain import json_values
from pulse_pipelines.registry import failed_work
from pulse_pipelines.tables import commit as tables
from pulse_pipelines.tables.commit import SwapLost, Work
from pulse_resources import postgres
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock

# Days computed from later input already, or with events erased since they were read: not to be served.
OUTDATED = """
SELECT w.rollup, w.day
FROM unnest(%(rollups)s::text[], %(days)s::date[], %(landed)s::timestamptz[]) AS w (rollup, day, landed_at)
WHERE EXISTS (
    SELECT FROM summaries s
    WHERE (s.dataset_id, s.rollup, s.day) = (%(dataset)s, w.rollup, w.day) AND s.landed_at > w.landed_at)
OR EXISTS (
    SELECT FROM landings l
    WHERE (l.tenant_id, l.dataset_id, l.day) = (%(tenant)s, %(dataset)s, w.day)
        AND l.landed_at > w.landed_at AND l.rows < 0)
"""
SERVE = """
INSERT INTO summaries (tenant_id, dataset_id, rollup, day, definition, landed_at, grain, rows, snapshot_id,
    computed_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, now())
ON CONFLICT (dataset_id, rollup, day) DO UPDATE SET (definition, landed_at, grain, rows, snapshot_id,
    computed_at, error) = (EXCLUDED.definition, EXCLUDED.landed_at, EXCLUDED.grain, EXCLUDED.rows,
    EXCLUDED.snapshot_id, EXCLUDED.computed_at, NULL)
"""
# The summary served before stays, with the error that explains why it is not newer.
FAIL = """
INSERT INTO summaries (tenant_id, dataset_id, rollup, day, definition, landed_at, grain, rows, error)
VALUES (%s, %s, %s, %s, %s, %s, %s, '[]', %s)
ON CONFLICT (dataset_id, rollup, day) DO UPDATE SET (definition, landed_at, error)
    = (EXCLUDED.definition, EXCLUDED.landed_at, EXCLUDED.error)
"""
FORGET = "DELETE FROM summaries WHERE dataset_id = %s AND day = ANY(%s)"


@dataclass(frozen=True)
class Curated:
    """A committed day of a rollup."""

    tenant: str
    slug: str
    rollup: str
    day: date
    rows: int
    snapshot_id: int | None
    """The snapshot of the dataset's table that it was computed from."""
    metadata_location: str | None
    """Location of the curated table's metadata; None: the table did not change."""
    error: str | None = None


@dataclass(frozen=True)
class _Staged(Work):
    results: Sequence[Result]
    following: Sequence[Following]
    """One for each of the results, in their order."""


def commit(results: Sequence[Result]) -> list[Curated]:
    """Commit the results of one dataset, without those that are outdated.

    If it is killed at any point, every day is either as before or fully committed.

    Raises:
        Terminal: another table has the name of a curated one.
        Transient: other writers kept committing first; nothing was changed.
        OSError: the object store failed; nothing was changed.
    """
    if not results:
        return []
    try:
        work = tables.commit(_Rollups(results[0].pinned.tenant, results))
    except psycopg.errors.ForeignKeyViolation:  # the dataset was deleted
        return []
    return list(_committed(work)) if work else []


@dataclass
class _Rollups(tables.Change[_Staged]):
    """Commits computed days of a dataset's rollups."""

    results: Sequence[Result]
    """Those that are not outdated."""
    following: list[Following] = field(default_factory=list)
    point = "curate"

    def stage(self, lost: SwapLost | None) -> _Staged | None:
        if isinstance(lost, _OutdatedDays):
            for following in self.following:  # the files may hold data of erased rows
                following.discard()
            self.results = [current for result in self.results if (current := _without(result, lost.days))]
        if not self.results:
            return None
        pinned = self.results[0].pinned
        self.following = [
            table.stage(pinned.tenant, pinned.dataset, result.rollup, result.rows) for result in self.results
        ]
        new = [following.next for following in self.following if following.next]
        return _Staged(new, self.results, self.following)

    def lock(self, connection: postgres.Connection, work: _Staged) -> None:
        _compare(connection, work.results)

    def write(self, connection: postgres.Connection, work: _Staged) -> None:
        _serve(connection, work.results)

    def was_committed(self, work: _Staged) -> bool:
        return False  # the days stay due, and are computed again


class _OutdatedDays(SwapLost):
    def __init__(self, days: set[tuple[str, date]]) -> None:
        super().__init__()
        self.days = days


def _compare(connection: postgres.Connection, results: Sequence[Result]) -> None:
    pinned = results[0].pinned
    dataset = pinned.dataset
    locks.wait(connection, Lock.SUMMARIES, dataset.dataset_id)
    days = _days(results)
    values = {"tenant": dataset.tenant_id, "dataset": dataset.dataset_id}
    landed = [pinned.landed[day] for _, day in days]
    named = {"rollups": [name for name, _ in days], "days": [day for _, day in days], "landed": landed}
    if outdated := set(connection.execute(OUTDATED, values | named).fetchall()):
        raise _OutdatedDays(outdated)


def _days(results: Sequence[Result]) -> list[tuple[str, date]]:
    return [(result.rollup.name, day) for result in results for day in (*result.rows, *result.errors)]


def _serve(connection: postgres.Connection, results: Sequence[Result]) -> None:
    pinned = results[0].pinned
    dataset = pinned.dataset
    with connection.cursor() as cursor:
        for result in results:
            about = (result.rollup.definition(dataset),)
            common = (dataset.tenant_id, dataset.dataset_id, result.rollup.name)
            grain = list(result.rollup.grain)
            cursor.executemany(
                SERVE,
                [
                    (*common, day, *about, pinned.landed[day], grain, _json(rows), pinned.snapshot_id)
                    for day, rows in result.rows.items()
                ],
            )
            cursor.executemany(
                FAIL,
                [
                    (*common, day, *about, pinned.landed[day], grain, error)
                    for day, error in result.errors.items()
                ],
            )
    failed_work.forget_days(connection, JOB, dataset.dataset_id, {day for _, day in _days(results)})


def _json(rows: Any) -> str:
    return json_values.encoded(rows.to_pylist()).decode()


def _without(result: Result, outdated: set[tuple[str, date]]) -> Result | None:
    def up_to_date(days: Any) -> Any:
        return {day: value for day, value in days.items() if (result.rollup.name, day) not in outdated}

    current = replace(result, rows=up_to_date(result.rows), errors=up_to_date(result.errors))
    return current if current.rows or current.errors else None


def _committed(done: _Staged) -> Iterable[Curated]:
    for result, following in zip(done.results, done.following, strict=True):
        pinned = result.pinned
        common = (pinned.tenant.slug, pinned.dataset.slug, result.rollup.name)
        location = following.next.new if following.next else None
        for day, rows in result.rows.items():
            yield Curated(*common, day, len(rows), pinned.snapshot_id, location)
        for day, error in result.errors.items():
            yield Curated(*common, day, 0, None, None, error)


def forget(connection: postgres.Connection, dataset_id: UUID, days: Sequence[date]) -> int:
    """Delete the summaries of days of a dataset, in the caller's transaction in the tenant's session.

    For erasure: the transaction must also enter its changes of the table in `landings`, which makes the days
    due again. A concurrent computation from rows read before is refused at its commit.

    Returns:
        The number of deleted summaries.
    """
    locks.wait(connection, Lock.SUMMARIES, dataset_id)
    return connection.execute(FORGET, [dataset_id, list(days)]).rowcount
