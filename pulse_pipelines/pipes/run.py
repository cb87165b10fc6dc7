"""A run of a pipe: sends the rows of a table, as of one snapshot, to the tenant's topic as one sync.

The rows are entities like pushed ones: the following batches compare, reject, count and settle them. The
position in the source is stored in the sync, and becomes the pipe's position in the transaction that settles
the last of these rows.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
from confluent_kafka import KafkaError, Message, Producer
from psycopg import sql
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.domain.syncs import Part
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest import spans
from pulse_pipelines.pipes import reading, sources
from pulse_pipelines.pipes.reading import Wanted
from pulse_pipelines.pipes.registry import ABANDON, Pipe, find, unsettled
from pulse_pipelines.registry import syncs as taken
from pulse_pipelines.tables import syncs
from pulse_resources import kafka, locks, postgres
from pulse_resources.errors import Conflict, Transient
from pulse_resources.faults import fail_point
from pulse_resources.locks import Lock
from pulse_resources.spark import run_tasks

FLUSH_S = 120.0

BEGIN = "UPDATE pipes SET begun_at = now(), asked_at = NULL, error = NULL WHERE pipe = %s"
OF_PIPE = "UPDATE entity_syncs SET pipe = %s, position = %s, as_of = %s WHERE sync_id = %s"
SENT = """
UPDATE entity_syncs SET state = 'sent', ends = %s, parts = 1 WHERE sync_id = %s AND state = 'open'
"""
FAILED = "UPDATE entity_syncs SET state = 'failed', ended_at = now(), reason = %s WHERE sync_id = %s"
ERROR = "UPDATE pipes SET error = %s WHERE pipe = %s"


@dataclass(frozen=True)
class LoadTask:
    """Part of a table, for one Spark task."""

    address: str = field(repr=False)
    topic: str
    dataset_id: UUID
    snapshot: str
    """Exported snapshot that all tasks share."""
    queries: tuple[str, ...]
    """Queries for keys and events."""


@dataclass(frozen=True)
class Loaded:
    rows: int
    bytes: int


@dataclass(frozen=True)
class Sent:
    """Result of a run."""

    sync_id: int
    is_full: bool
    rows: int
    bytes: int
    position: str | None


def run(spark: SparkSession, tenant: Tenant, name: str, parallelism: int, *, full: bool = False) -> Sent:
    """Run a pipe once.

    Args:
        full: read all rows, in any mode.

    Raises:
        Conflict: another run is active, or the events of the one before have not settled yet.
        NotFound, UserError: the table, or the source, no longer exists, or cannot be replicated.
        Transient: the source or the broker does not answer; nothing is deleted.
    """
    pipe = find(tenant, name)
    with locks.session(Lock.PIPE, pipe.dataset_id) as alone:
        if alone is None:
            raise Conflict("another run of the pipe is under way", tenant=tenant.slug, pipe=name)
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
            if unsettled(connection, pipe):
                raise Conflict(
                    "what its last run sent has not settled yet",
                    fix="See `pulse status`: it settles with the next batch",
                    tenant=tenant.slug,
                    pipe=name,
                )
            connection.execute(ABANDON, [name])
            connection.execute(BEGIN, [name])
        try:
            with spans.work("run pipe", tenant=tenant.slug, pipe=name) as tell:
                sent = _run(spark, find(tenant, name), parallelism, full)
                tell(sync=sent.sync_id, rows=sent.rows, bytes=sent.bytes)
                return sent
        except Exception as error:
            with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
                connection.execute(ERROR, [f"{type(error).__name__}: {error}"[:2000], name])
            raise


def _run(spark: SparkSession, pipe: Pipe, parallelism: int, full: bool) -> Sent:
    address = sources.url(pipe.tenant, pipe.definition.source)
    with sources.connect(address) as source:
        sources.begin_alone(source, pipe.dataset_id)
        moment = datetime.now(UTC)
        change = reading.changes_of(address, pipe)
        fail_point("pipe.looked")
        sources.freeze(source)
        ((exported,),) = source.execute("SELECT pg_export_snapshot()").fetchall()
        wanted = reading.wanted(source, pipe, change, moment, full=full)
        sync_id = _begin(pipe, wanted)
        fail_point("pipe.begun")
        try:
            shares = [tuple(wanted.queries[index::parallelism]) for index in range(parallelism)]
            task = LoadTask(address, pipe.tenant.topic, pipe.dataset_id, exported, ())
            tasks = [replace(task, queries=share) for share in shares if share]
            loaded = run_tasks(spark, tasks, load_task, [Loaded])
            fail_point("pipe.loaded")
            _sent(pipe.tenant, sync_id)
        except Exception as error:
            with postgres.tenant_transaction("pulse_pipeline", pipe.tenant.tenant_id) as connection:
                connection.execute(FAILED, [f"its run failed: {type(error).__name__}", sync_id])
            raise
    fail_point("pipe.sent")
    rows, size = sum(each.rows for each in loaded), sum(each.bytes for each in loaded)
    return Sent(sync_id, wanted.is_full, rows, size, wanted.position)


def _begin(pipe: Pipe, wanted: Wanted) -> int:
    token = uuid.uuid4().hex
    part = Part(f"{pipe.name}/{token[:12]}", token, None, wanted.is_full, is_first=True, is_last=True)
    with postgres.tenant_transaction("pulse_pipeline", pipe.tenant.tenant_id) as connection:
        sync_id = taken.open_sync(connection, pipe.tenant, pipe.dataset_id, part)
        connection.execute(OF_PIPE, [pipe.name, wanted.position, wanted.as_of, sync_id])
    return sync_id


def _sent(tenant: Tenant, sync_id: int) -> None:
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        ends = syncs.as_json(syncs.ends_of(tenant, connection))
        if connection.execute(SENT, [ends, sync_id]).rowcount != 1:
            raise Conflict("another full sync of the dataset began meanwhile", sync=sync_id)
        syncs.reached(connection, tenant.tenant_id)  # without rows no batch follows


def load_task(task: LoadTask) -> Iterator[Loaded]:
    """Spark task: copies rows from the source, and publishes each as an event.

    It holds the pipe in the source until the broker has answered for all of them.

    Raises:
        Transient: the source or the broker does not answer.
    """
    refused: list[KafkaError] = []

    def acknowledged(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)

    producer = kafka.producer(delivery_timeout_s=FLUSH_S)
    rows = size = 0
    try:
        with sources.connect(task.address) as source:
            sources.join_run(source, task.dataset_id, task.snapshot)
            for query in task.queries:
                for key, payload in _copied(source, query):
                    _produce(producer, task.topic, key, payload, acknowledged)
                    rows, size = rows + 1, size + len(payload)
                    if refused:
                        raise _not_acknowledged(task.topic, refused)
            if kafka.flush(producer, FLUSH_S) or refused:
                raise _not_acknowledged(task.topic, refused)
    except BaseException:
        producer.purge()  # nothing of this run may reach the topic after the next one has begun
        raise
    yield Loaded(rows, size)


def _not_acknowledged(topic: str, refused: Sequence[KafkaError]) -> Transient:
    why = refused[0] if refused else "time-out"
    return Transient(f"Kafka did not acknowledge rows of a pipe: {why}", topic=topic)


def _copied(source: "psycopg.Connection[Any]", query: str) -> Iterator[Sequence[bytes]]:
    statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(sql.SQL(query))
    with source.cursor().copy(statement) as copy:
        copy.set_types(["bytea", "bytea"])  # raw bytes: the text need not be decoded
        yield from copy.rows()


def _produce(
    producer: Producer, topic: str, key: bytes, payload: bytes, acknowledged: Callable[..., None]
) -> None:
    while True:
        try:
            producer.produce(topic, payload, key, on_delivery=acknowledged)
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return
