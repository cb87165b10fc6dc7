"""Rebuild: Spark tasks read the raw objects of a day and write its rows as new data files.

One more task reads the dead letters of the dataset: those that an earlier backfill landed in this day land
again, and open ones that are valid now land for the first time. Nothing becomes visible here.
"""

import gc
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date

import pyarrow as pa
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.backfill import letters
from pulse_pipelines.backfill.letters import Landing
from pulse_pipelines.backfill.plan import DayPlan, Source
from pulse_pipelines.backfill.rows import DayRows
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.event_limits import EventLimits
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest.batch_files import BatchFiles
from pulse_pipelines.ingest.conform import DeadLetter
from pulse_pipelines.ingest.messages import CHUNK_BYTES
from pulse_pipelines.ingest.priority import GiveWay
from pulse_pipelines.tables import raw_zone
from pulse_pipelines.tables.parquet_files import position, token
from pulse_pipelines.tables.raw_zone import Message
from pulse_pipelines.tables.written_files import CandidateFile
from pulse_pipelines.validation.limits import event_limits
from pulse_resources.settings import load_settings
from pulse_resources.spark import noted, run_tasks

AHEAD = 4
"""Raw objects that a task prefetches."""
SHOWN = 5


@dataclass(frozen=True)
class RebuildTask:
    """A share of a day's raw objects; None: the dead letters of the dataset."""

    backfill_id: str
    tenant: Tenant
    dataset: Dataset
    day: date
    version: int
    limits: EventLimits
    """Limits for dead letters that would land for the first time."""
    sources: tuple[Source, ...] | None
    unlanded: dict[str, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Rebuilt:
    """The result of one task, or of all: new files of the day, and counts."""

    files: tuple[CandidateFile, ...] = ()
    rows: int = 0
    """Rows of events that had landed before."""
    other_versions: int = 0
    """Rows among them that are invalid by the version asked for, and follow another one."""
    refused: tuple[str, ...] = ()
    """Events that had landed but are invalid by all versions now, the first few."""
    landing: tuple[Landing, ...] = ()
    """Dead letters that land for the first time."""


def rebuild(spark: SparkSession, plan: DayPlan, backfill_id: str, version: int, parallelism: int) -> Rebuilt:
    """Write the rows of a day to new files, spread over `parallelism` Spark tasks.

    Raises:
        PySparkException: a task failed: the object store, Postgres or Spark.
    """
    common = (backfill_id, plan.tenant, plan.dataset, plan.day, version, event_limits())
    tasks = [RebuildTask(*common, sources=None)] if plan.letters else []
    for share in _shares(plan.sources, parallelism):
        batches = {source.batch_id for source in share} & plan.unlanded.keys()
        unlanded = {batch: plan.unlanded[batch] for batch in batches}
        tasks.append(RebuildTask(*common, tuple(share), unlanded))
    context = {"tenant": plan.tenant.slug, "dataset": plan.dataset.slug, "day": plan.day}
    with noted("Nothing was changed: launch it again once the cause is removed", **context):
        parts = run_tasks(spark, tasks, rebuild_task, [Rebuilt])
    return Rebuilt(
        tuple(file for part in parts for file in part.files),
        sum(part.rows for part in parts),
        sum(part.other_versions for part in parts),
        tuple(reason for part in parts for reason in part.refused),
        tuple(landing for part in parts for landing in part.landing),
    )


def _shares(sources: Iterable[Source], count: int) -> list[list[Source]]:
    """Split sources into groups of about equal size, assigning the largest objects first."""
    shares: list[list[Source]] = [[] for _ in range(count)]
    for source in sorted(sources, key=lambda source: source.bytes, reverse=True):
        min(shares, key=lambda share: sum(other.bytes for other in share)).append(source)
    return [share for share in shares if share]


def rebuild_task(task: RebuildTask) -> Iterator[Rebuilt]:
    """Rebuild a share of the day in a Spark task; yields one result."""
    collecting = gc.isenabled()
    gc.disable()  # as in the drain: the loop makes no reference cycles
    try:
        yield _rebuild(task)
    finally:
        if collecting:
            gc.enable()


def _rebuild(task: RebuildTask) -> Rebuilt:
    settings = load_settings()
    conformer = DayRows(task.tenant, task.dataset, task.day, task.version, task.limits)
    stem = f"{task.backfill_id}-{token()}"
    lake = BatchFiles(task.tenant, settings.object_store.bucket, stem, drop_copies=False, pause=GiveWay())
    rows = rows_of_other_versions = 0
    refused: list[DeadLetter] = []
    landing: list[Landing] = []

    def add(table: pa.Table) -> None:
        if table.num_rows:
            lake.add(task.dataset, table)
        if lake.buffered_bytes >= settings.ingest.buffer_bytes:
            lake.flush()

    with lake:
        for batch_id, messages in _landed(task, settings.ingest.chunk_rows):
            table, of_other_versions, invalid = conformer.landed(batch_id, messages)
            rows, rows_of_other_versions = rows + table.num_rows, rows_of_other_versions + of_other_versions
            refused.extend(invalid[: SHOWN - len(refused)])
            add(table)
        if task.sources is None:
            for table, positions in letters.passing(conformer, task.dataset, task.backfill_id, task.limits):
                landing.extend(positions)
                add(table)
    why = tuple(
        f"partition {m.partition}, offset {m.offset}: {r.reason}" + (f" at {r.pointer}" if r.pointer else "")
        for m, _, _, r in refused
    )
    return Rebuilt(tuple(lake.candidates), rows, rows_of_other_versions, why, tuple(landing))


def _landed(task: RebuildTask, chunk_rows: int) -> Iterator[tuple[str, list[Message]]]:
    """Events that landed before, in chunks, each with the batch (or the backfill) that landed it."""
    if task.sources is None:
        yield from letters.landed(task.dataset, task.day)
        return
    for source, packed in _fetched(task.sources):
        unlanded = task.unlanded.get(source.batch_id, frozenset())
        messages = raw_zone.messages(packed)
        if unlanded:
            messages = (m for m in messages if position(m.partition, m.offset) not in unlanded)
        for chunk in _chunks(messages, chunk_rows):
            yield source.batch_id, chunk


def _fetched(sources: Sequence[Source]) -> Iterator[tuple[Source, bytes]]:
    """The sources with their contents, prefetching the next few."""
    with ThreadPoolExecutor(AHEAD, thread_name_prefix="fetch") as pool:
        fetching: deque[tuple[Source, Future[bytes]]] = deque()
        for source in sources:
            fetching.append((source, pool.submit(raw_zone.part, source.path, source.start, source.bytes)))
            if len(fetching) > AHEAD:
                first, content = fetching.popleft()
                yield first, content.result()
        for first, content in fetching:
            yield first, content.result()


def _chunks(messages: Iterable[Message], rows: int) -> Iterator[list[Message]]:
    chunk: list[Message] = []
    size = 0
    for message in messages:
        chunk.append(message)
        size += len(message.payload)
        if len(chunk) >= rows or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
