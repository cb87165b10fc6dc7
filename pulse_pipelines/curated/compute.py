"""Computation of rollups: pin each table to a snapshot, and run Spark for many tenants and days at once."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.curated import day_tasks, statements
from pulse_pipelines.curated.due import JOB, Due
from pulse_pipelines.curated.pinned import Pinned, is_outdated, pin
from pulse_pipelines.curated.query_check import check_reads
from pulse_pipelines.curated.rollup import Part, Rollup
from pulse_pipelines.ingest.priority import GiveWay
from pulse_pipelines.registry.failed_work import Failed, Work
from pulse_resources import outages
from pulse_resources.errors import Terminal, Transient, UserError
from pulse_resources.spark import leave_at_once, plan

LOOKS = 5
"""How often a table is pinned again if its snapshot is removed while it is read."""

TASK = "rollups"
"""Task name under which failures of all rollups of a day are recorded as one."""


@dataclass(frozen=True)
class Result:
    """The rows of a rollup for days of a dataset, and errors."""

    pinned: Pinned
    rollup: Rollup
    rows: Mapping[date, pa.Table] = field(default_factory=dict)
    """By day, without the column `day`; a day without rows has an empty table."""
    errors: Mapping[date, str] = field(default_factory=dict)
    """Permanent errors, by day: computing it again would fail again."""


@dataclass(frozen=True)
class _OutdatedDay:
    """A day that failed because its pinned snapshot was removed from the table meanwhile."""

    dataset_id: UUID
    day: date
    failure: Failed


_Outcome = Result | Failed | _OutdatedDay
_Input = tuple[Pinned, tuple[date, ...], int]
"""Days of a dataset, and the number of their consecutive failures."""


def compute(spark: SparkSession, due: Sequence[Due]) -> tuple[list[list[Result]], list[Failed]]:
    """Compute the due rollups; returns the results, grouped by dataset, and failures that may be transient.

    A failure of one dataset or day does not affect others. If Spark itself dies, the days of its current
    statement are failures, since they may be the cause, and days that it did not get to are in neither.

    Raises:
        Transient: the object store does not answer.
    """
    results: list[list[Result]] = []
    failures: list[Failed] = []
    for attempt in range(1, LOOKS + 1):
        computed, failed, outdated = _compute_pass(spark, due)
        results.extend(computed)
        failures.extend(failed if attempt < LOOKS else (*failed, *(day.failure for day in outdated)))
        again = {(day.dataset_id, day.day) for day in outdated}
        due = [d for d in due if (d.dataset.dataset_id, d.day) in again]
        if not due:
            break
    return results, failures


def _compute_pass(
    spark: SparkSession, due: Sequence[Due]
) -> tuple[list[list[Result]], list[Failed], list[_OutdatedDay]]:
    """One pass of `compute`; also returns the days to pin again."""
    failures: list[Failed] = []
    outdated: list[_OutdatedDay] = []
    inputs_by_rollup: dict[Rollup, list[_Input]] = defaultdict(list)
    for dataset_days in _by_dataset(due):
        tenant, dataset = dataset_days[0].tenant, dataset_days[0].dataset
        try:
            pinned = pin(tenant, dataset.dataset_id, [d.day for d in dataset_days])
        except Exception as error:  # of any kind: it must not fail the other datasets
            outages.check()
            failures.append(Failed.by(Work(JOB, tenant, TASK, dataset.dataset_id, dataset.slug), error))
            continue
        if pinned is not None:
            for rollup in {rollup: None for d in dataset_days for rollup in d.rollups}:
                inputs_by_rollup[rollup].extend(
                    _inputs(pinned, [d for d in dataset_days if rollup in d.rollups])
                )
    leave_at_once(spark)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    results: dict[UUID, dict[Rollup, Result]] = defaultdict(dict)
    try:
        for outcome in _outcomes(spark, inputs_by_rollup):
            if isinstance(outcome, Failed):
                failures.append(outcome)
                continue
            if isinstance(outcome, _OutdatedDay):
                outdated.append(outcome)
                continue
            mine_so_far = results[outcome.pinned.dataset.dataset_id]
            before = mine_so_far.get(outcome.rollup, Result(outcome.pinned, outcome.rollup))
            rows, errors = {**before.rows, **outcome.rows}, {**before.errors, **outcome.errors}
            mine_so_far[outcome.rollup] = replace(before, rows=rows, errors=errors)
    except _SparkEndedError as ended:
        failures.extend(ended.suspects)
    return [list(result.values()) for result in results.values()], failures, outdated


class _SparkEndedError(Exception):
    def __init__(self, suspects: Sequence[Failed]) -> None:
        self.suspects = suspects


def _inputs(pinned: Pinned, due: Sequence[Due]) -> Iterator[_Input]:
    """The days without failures together; each day that has failed before is an input of its own."""
    fresh = tuple(sorted(d.day for d in due if not d.failures))
    if fresh:
        yield pinned, fresh, 0
    yield from ((pinned, (d.day,), d.failures) for d in due if d.failures)


def _outcomes(spark: SparkSession, inputs_by_rollup: Mapping[Rollup, Sequence[_Input]]) -> Iterator[_Outcome]:
    """Outcomes of all rollups; inputs that have failed before come last and alone: they may kill Spark."""
    pause = GiveWay()
    for rollup, inputs in inputs_by_rollup.items():
        yield from _of_rollup(spark, rollup, [input_ for input_ in inputs if not input_[2]], pause)
    again = [
        (rollup, input_) for rollup, inputs in inputs_by_rollup.items() for input_ in inputs if input_[2]
    ]
    for rollup, input_ in sorted(again, key=lambda item: item[1][2]):
        yield from _of_rollup(spark, rollup, [input_], pause)


def _by_dataset(due: Sequence[Due]) -> Iterable[list[Due]]:
    by_dataset: dict[UUID, list[Due]] = defaultdict(list)
    for d in due:
        by_dataset[d.dataset.dataset_id].append(d)
    return by_dataset.values()


def _of_rollup(
    spark: SparkSession, rollup: Rollup, inputs: Sequence[_Input], pause: GiveWay
) -> Iterator[_Outcome]:
    if rollup.problem:
        for pinned, days, _ in inputs:
            problem = UserError(f"{rollup.source}: {rollup.problem}")
            yield Result(pinned, rollup, errors=dict.fromkeys(days, str(problem)))
        return
    together: dict[object, list[statements.OwnedDays[Pinned]]] = defaultdict(list)
    most = statements.DAYS_OF_TEAM if rollup.source else statements.DAYS
    for pinned, days, _ in inputs:
        if pinned.snapshot_id is None:
            yield Result(pinned, rollup, rows=dict.fromkeys(days, pa.table({})))
            continue
        # Without a fixed schema, only datasets with the same columns share a statement: types must agree.
        alike = None if rollup.schema else tuple(sorted(pinned.columns.items()))
        together[alike].extend((pinned, piece) for piece in statements.pieces(days, most))
    for group in together.values():
        for chunk in statements.chunks(group, most):
            pause()
            yield from _of_chunk(spark, rollup, chunk)


def _of_chunk(
    spark: SparkSession, rollup: Rollup, chunk: Sequence[statements.OwnedDays[Pinned]]
) -> Iterator[_Outcome]:
    parts = [_part(number, pinned, days) for number, (pinned, days) in enumerate(chunk)]
    try:
        rows = _ask(spark, rollup, parts)
    except Exception as error:
        single = [(pinned, day) for pinned, days in chunk for day in days]
        try:
            outages.check(spark)
        except Transient:
            raise _SparkEndedError([_failed(rollup, *pinned_day, error) for pinned_day in single]) from error
        # One of the days is at fault: halve the statement to find it.
        if len(single) > 1:
            for half in statements.halves(chunk):
                yield from _of_chunk(spark, rollup, half)
        elif is_outdated(pinned := single[0][0]):
            day = single[0][1]
            yield _OutdatedDay(pinned.dataset.dataset_id, day, _failed(rollup, pinned, day, error))
        else:
            yield _at_fault(rollup, *single[0], error)
        return
    for part, (pinned, days) in zip(parts, chunk, strict=True):
        part_rows = rows.filter(pc.equal(rows.column("part"), part.number))
        for day in days:
            day_rows = part_rows.filter(pc.equal(part_rows.column("day"), pa.scalar(day))).drop_columns(
                ["part", "day"]
            )
            try:
                yield Result(pinned, rollup, rows={day: rollup.checked(day_rows, pinned.dataset)})
            except UserError as error:
                yield Result(pinned, rollup, errors={day: _sentence(rollup, pinned, day, error)})
            except Exception as error:
                yield _failed(rollup, pinned, day, error)


def _at_fault(rollup: Rollup, pinned: Pinned, day: date, error: Exception) -> Result | Failed:
    """An error of Spark about a team's query is permanent (a result); any other may be transient."""
    by_spark = isinstance(error, PySparkException | Terminal)
    condition = error.getCondition() if isinstance(error, PySparkException) else str(error)
    if rollup.source and by_spark and condition:
        return Result(pinned, rollup, errors={day: _sentence(rollup, pinned, day, error)})
    return _failed(rollup, pinned, day, error)


def _failed(rollup: Rollup, pinned: Pinned, day: date, error: Exception) -> Failed:
    dataset = pinned.dataset
    work = Work(JOB, pinned.tenant, TASK, dataset.dataset_id, dataset.slug, day)
    return Failed(work, f"{rollup.source or rollup.name}: {type(error).__name__}: {_message(error)}")


def _part(number: int, pinned: Pinned, days: tuple[date, ...]) -> Part:
    assert pinned.snapshot_id is not None  # noqa: S101 - without one there is nothing to ask
    common = pinned.tenant, pinned.dataset, pinned.location, pinned.snapshot_id, pinned.columns
    return Part(number, *common, days)


def _ask(spark: SparkSession, rollup: Rollup, parts: Sequence[Part]) -> pa.Table:
    """Run a rollup for parts; the result has the columns `part` and `day`, and those of the rollup."""
    if rollup.query is not None:
        return day_tasks.answers(spark, rollup.query, parts)
    frame: Any = spark.sql(rollup.statement(parts))
    check_reads(plan(frame), [part.pinned for part in parts])
    return frame.toArrow()


def _sentence(rollup: Rollup, pinned: Pinned, day: date, error: Exception) -> str:
    return str(
        UserError(
            f"{rollup.source or rollup.name}: {_message(error)}",
            tenant=pinned.tenant.slug,
            dataset=pinned.dataset.slug,
            day=day,
        )
    )


def _message(error: Exception) -> str:
    return str(error).partition("\n\nJVM")[0][:1000]
