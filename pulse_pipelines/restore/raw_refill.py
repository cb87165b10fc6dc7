"""Raw objects that are gone, written again from Kafka, by batch, if the topic still holds its offsets.

Spark tasks read the batches' offset ranges and conform the events, since the raw zone has a gzip member for
each day of its events. Erased events are left out. Data files of the table are not written.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.backfill.rows import as_of_version
from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.batch import OffsetRange
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.event_limits import UNLIMITED
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest.batch_files import BatchFiles
from pulse_pipelines.ingest.conform import TopicConformer
from pulse_pipelines.ingest.messages import MIDDLE_FETCH_BYTES, read
from pulse_pipelines.ingest.priority import GiveWay
from pulse_pipelines.ingest.stages import PartitionCount
from pulse_pipelines.restore import lost_raw
from pulse_pipelines.restore.lost_raw import LostBatch
from pulse_pipelines.tables import dataset_rows, raw_zone
from pulse_pipelines.tables.parquet_files import position, token
from pulse_pipelines.tables.raw_zone import Message
from pulse_pipelines.tables.written_files import RawPart
from pulse_resources import postgres
from pulse_resources.errors import Terminal
from pulse_resources.process.faults import fail_point
from pulse_resources.settings import load_settings
from pulse_resources.spark import noted, run_tasks

LETTERS = """
SELECT partition, event_offset, dataset, reason FROM dead_letters WHERE tenant_id = %s AND batch_id = %s
"""
# The rows of objects that are gone stay, as those of objects that retention removed.
REPLACED = """
UPDATE raw_objects SET removed_at = now(), deleted_at = CASE WHEN path = ANY(%(missing)s) THEN now() END
WHERE tenant_id = %(tenant)s AND batch_id = %(batch)s AND removed_at IS NULL
"""


@dataclass(frozen=True)
class Letter:
    """A dead letter of a batch: it is not conformed, since it may have killed a process."""

    partition: int
    offset: int
    slug: str
    is_decoded: bool


@dataclass(frozen=True)
class RefillTask:
    """A batch whose raw objects one Spark task writes again."""

    batch_id: str
    scope: Scope
    ranges: tuple[OffsetRange, ...]
    excluded: tuple[OffsetRange, ...]
    letters: tuple[Letter, ...]


@dataclass(frozen=True)
class Refilled:
    parts: tuple[RawPart, ...]


def refill(spark: SparkSession, tenant: Tenant, batch: LostBatch) -> int:
    """Write the raw objects of a batch again and register them; returns the number of lines.

    Args:
        batch: whose offsets the topic still holds.

    Raises:
        Terminal: the topic gives another number of events than the batch drained; nothing was changed.
        PySparkException: the task failed: Kafka, the object store or Spark.
    """
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id, one_snapshot=True) as connection:
        datasets = tuple(dataset_rows.read(connection, "d.tenant_id = %s", [tenant.tenant_id]))
        positions = connection.execute(lost_raw.POSITIONS, [tenant.tenant_id]).fetchall()
        letters = _letters(connection, tenant, batch.batch_id, datasets)
    bases = {partition: base for partition, base, _ in positions}
    topic_id = next((topic for *_, topic in positions if topic), None)
    scope = Scope(tenant, datasets, topic_id, bases)
    task = RefillTask(batch.batch_id, scope, batch.ranges, batch.excluded, letters)
    where = {"tenant": tenant.slug, "batch": batch.batch_id}
    with noted("Nothing was changed: repeat it once the cause is removed", **where):
        (refilled,) = run_tasks(spark, [task], refill_task, [Refilled])
    count = sum(part.events for part in refilled.parts)
    if count != batch.lines:
        raise Terminal(
            f"the topic has {count:,} events, and the batch had {batch.lines:,}",
            fix="Put its raw objects back from a backup",
            **where,
        )
    fail_point("restore.before_register")
    _register(tenant.tenant_id, batch, refilled.parts)
    return count


def _letters(
    connection: postgres.Connection, tenant: Tenant, batch: str, datasets: Sequence[Dataset]
) -> tuple[Letter, ...]:
    slugs = {dataset.slug for dataset in datasets}
    rows = connection.execute(LETTERS, [tenant.tenant_id, batch])
    return tuple(
        Letter(
            partition,
            offset,
            slug if slug in slugs else raw_zone.UNRESOLVED,
            Reason(reason).is_decoded,
        )
        for partition, offset, slug, reason in rows
    )


def _register(tenant_id: UUID, batch: LostBatch, parts: Sequence[RawPart]) -> None:
    missing = [part.path for part in batch.parts]
    with postgres.tenant_transaction("pulse_pipeline", tenant_id) as connection:
        connection.execute(REPLACED, {"tenant": tenant_id, "batch": batch.batch_id, "missing": missing})
        raw_zone.register(connection, tenant_id, batch.batch_id, parts)


def refill_task(task: RefillTask) -> Iterator[Refilled]:
    """Write the raw objects of a batch in a Spark task; yields one result."""
    settings = load_settings()
    letters = {position(letter.partition, letter.offset): letter for letter in task.letters}
    excluded = {
        position(span.partition, offset) for span in task.excluded for offset in range(span.start, span.end)
    }
    counts = {r.partition: PartitionCount() for r in task.ranges}
    stem, bucket = f"{task.batch_id}-{token()}", settings.object_store.bucket
    with BatchFiles(
        task.scope.tenant, bucket, stem, drop_copies=False, pause=GiveWay(), only_raw=True
    ) as files:
        of = (task.scope, task.ranges, counts, settings.ingest.chunk_rows)
        for messages in read(*of, fetch_bytes=MIDDLE_FETCH_BYTES):
            accepted = list[Message]()
            for message in messages:
                place = position(message.partition, message.offset)
                if place in excluded:
                    continue
                letter = letters.get(place)
                if letter is None:
                    accepted.append(message)
                else:
                    files.add_raw(letter.slug, message.received_ms, _line(message, letter.is_decoded))
            _add_landed(files, task, accepted)
            if files.buffered_bytes >= settings.ingest.buffer_bytes:
                files.flush()
    yield Refilled(tuple(files.raw))


def _line(message: Message, is_decoded: bool) -> bytes:
    if not is_decoded:
        return raw_zone.line_of_bytes(message)
    line: bytes = raw_zone.lines([message])[0].as_py()
    return line


def _add_landed(files: BatchFiles, task: RefillTask, messages: Sequence[Message]) -> None:
    """Add events that ingestion accepted: each by the newest version of its dataset's schema that accepts it.

    An event that none accepts is of a dataset that was deleted since.
    """
    most = max((len(dataset.documents) for dataset in task.scope.datasets), default=1)
    pending = messages
    for age in range(most):
        datasets = {
            dataset.slug: as_of_version(dataset, sorted(dataset.documents, reverse=True)[age])
            for dataset in task.scope.datasets
            if age < len(dataset.documents)
        }
        scope = replace(task.scope, datasets=tuple(datasets.values()))
        conformed = TopicConformer(scope, task.batch_id, UNLIMITED).chunk(pending)
        if age and conformed.tables:
            files.flush()  # rows of one version have other columns than those of another
        for slug, table in conformed.tables.items():
            files.add(datasets[slug], table)
        if age and conformed.tables:
            files.flush()
        pending = [letter.message for letter in conformed.dead_letters]
        if not pending:
            return
    for message in pending:
        files.add_raw(raw_zone.UNRESOLVED, message.received_ms, _line(message, True))
