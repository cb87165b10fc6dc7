"""Day tasks: Spark tasks that compute many days of Pulse's own rollups in DuckDB.

A task reads each data file once, by the rules of Iceberg, and holds a bounded part of it in memory. Spark's
own plan for the same query read each file three times, at tens of milliseconds per file.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.curated.rollup import DAY, DayQuery, Part
from pulse_pipelines.curated.statements import spans
from pulse_pipelines.domain.moments import EPOCH
from pulse_pipelines.query import duckdb_pool, partial_table
from pulse_pipelines.query.file_pruning import ALWAYS, DAY_US, Span, newest_files
from pulse_pipelines.query.snapshots import manifests, metadata_at, store_errors_explained
from pulse_resources.errors import PulseError, Terminal
from pulse_resources.settings import load_settings
from pulse_resources.spark import run_tasks

LIMITS = duckdb_pool.Limits(
    "rollups",
    memory="1GB",
    threads=2,
    spill=True,
    trust_cache=True,  # data files have unique names and are immutable
)
DAYS_AT_ONCE = 32
"""Maximum days of one dataset in one task."""
ROWS_AT_ONCE = 1_000_000
"""Days up to this many rows in total share a query, which materializes the selected columns in memory or
spills them. A larger day is not materialized: its files are read several times, with little memory."""
QUERY = """
WITH events AS {materialized} (SELECT {day} AS day, {events} FROM {scan} WHERE {within})
SELECT * FROM ({answer})
"""


@dataclass(frozen=True)
class Days:
    """Days of one part, computed by one task."""

    part: int
    table: tuple[str, str]
    location: str
    """Location of the table's metadata, whose current snapshot is read."""
    days: tuple[date, ...]
    query: DayQuery


@dataclass(frozen=True)
class Several:
    """Input of one Spark task: days of several parts."""

    days: tuple[Days, ...]


@dataclass(frozen=True)
class Answer:
    """Rows of days of a part."""

    part: int
    rows: bytes
    """An Arrow stream with the columns `day` and the measures."""


@dataclass(frozen=True)
class NotAnswered:
    """The error of a task that could not compute its days."""

    error: str


def answers(spark: SparkSession, query: Callable[[Part], DayQuery], parts: Sequence[Part]) -> pa.Table:
    """Compute the rows of a rollup for all parts, with the columns `part`, `day` and the measures.

    Raises:
        Terminal: a task could not compute its days, with its error; one of the parts may be at fault.
        PySparkException: a task's process died.
    """
    tasks = _spread([days for part in parts for days in _pieces(part, query(part))])
    tables = []
    for answer in run_tasks(spark, tasks, answer_task, [Answer, NotAnswered]):
        if isinstance(answer, NotAnswered):
            raise Terminal(answer.error)
        rows = pa.ipc.open_stream(answer.rows).read_all()
        tables.append(rows.add_column(0, "part", pa.repeat(pa.scalar(answer.part), len(rows))))
    return pa.concat_tables(tables)


def _pieces(part: Part, query: DayQuery) -> Iterator[Days]:
    table = (part.tenant.namespace, part.dataset.slug)
    for begin in range(0, len(part.days), DAYS_AT_ONCE):
        days = part.days[begin : begin + DAYS_AT_ONCE]
        yield Days(part.number, table, part.location, days, query)


def _spread(pieces: Sequence[Days]) -> list[Several]:
    """Distribute pieces over two tasks per slot of Spark, with about as many days in each."""
    tasks: list[list[Days]] = [[] for _ in range(min(len(pieces), 2 * load_settings().spark.parallelism))]
    for piece in sorted(pieces, key=lambda piece: len(piece.days), reverse=True):
        min(tasks, key=lambda task: sum(len(assigned.days) for assigned in task)).append(piece)
    return [Several(tuple(task)) for task in tasks]


def answer_task(several: Several) -> Iterator[Answer | NotAnswered]:
    """Compute days in a Spark task; yields answers up to the first error."""
    try:
        for days in several.days:
            for rows in _of_table(days):
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, rows.schema) as stream:
                    stream.write_table(rows)
                yield Answer(days.part, sink.getvalue().to_pybytes())
    except PulseError as error:
        yield NotAnswered(str(error))


def _of_table(request: Days) -> Iterator[pa.Table]:
    with store_errors_explained():
        metadata = metadata_at(request.table, request.location)
        snapshot = metadata.current_snapshot()
        assert snapshot is not None  # noqa: S101 - without one there is nothing to ask
        files_of_days = _files(metadata, snapshot, request.days)
    schema = metadata.current_schema_id if snapshot.schema_id is None else snapshot.schema_id
    for days, files in (
        [(request.days, None)] if files_of_days is None else _groups(files_of_days, request.days)
    ):
        small = files is not None and sum(file.record_count for file in files) <= ROWS_AT_ONCE
        query = QUERY.format(
            materialized="MATERIALIZED" if small else "NOT MATERIALIZED",
            day=DAY,
            events=request.query.events,
            scan=duckdb_pool.SCAN,
            within=_within(days),
            answer=request.query.answer,
        )
        with (
            duckdb_pool.connect(LIMITS) as connection,
            partial_table.of_files(metadata, snapshot, schema, files) as view,
        ):
            yield connection.execute(query, [view]).to_arrow_table()


def _files(
    metadata: TableMetadata, snapshot: Snapshot, days: Sequence[date]
) -> Mapping[date, Sequence[DataFile]] | None:
    """The files that may have rows of each day; None if file bounds do not tell (see `newest_files`)."""
    span = Span(_begin(days[0]), _begin(days[-1]) + DAY_US)
    day_files = newest_files(metadata, manifests(snapshot.manifest_list), span, ALWAYS, float("inf"))
    if day_files is None:
        return None
    files: dict[date, list[DataFile]] = defaultdict(list)
    for bounded in day_files:
        for day in days:
            if bounded.high >= _begin(day) > bounded.low - DAY_US:
                files[day].append(bounded.file)
    return files


def _groups(
    files: Mapping[date, Sequence[DataFile]], days: Sequence[date]
) -> Iterator[tuple[Sequence[date], Sequence[DataFile]]]:
    """Group days up to `ROWS_AT_ONCE` rows (or one larger day), with their files, each once."""
    group: dict[date, int] = {}
    for day in days:
        rows = sum(file.record_count for file in files.get(day, ()))
        if group and sum(group.values()) + rows > ROWS_AT_ONCE:
            yield tuple(group), _files_once(files, group)
            group = {}
        group[day] = rows
    yield tuple(group), _files_once(files, group)


def _files_once(files: Mapping[date, Sequence[DataFile]], days: Mapping[date, int]) -> Sequence[DataFile]:
    return list({file.file_path: file for day in days for file in files.get(day, ())}.values())


def _within(days: Sequence[date]) -> str:
    """The filter of days, to their last microsecond: the last day that a table can hold has no next day."""
    return " OR ".join(
        f"(\"timestamp\" BETWEEN TIMESTAMPTZ '{first} 00:00:00+00'"
        f" AND TIMESTAMPTZ '{last} 23:59:59.999999+00')"
        for first, last in spans(days)
    )


def _begin(day: date) -> int:
    """The day's first microsecond, since the epoch."""
    return (day.toordinal() - EPOCH.toordinal()) * DAY_US
