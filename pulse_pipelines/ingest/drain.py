"""Drain: read exact offset ranges from Kafka, conform, keep the raw zone, write candidates, digest ids.

Runs inside Spark tasks. A task works through its topics one after the other, so that its memory is
bounded by one buffer (`ingest.buffer_bytes`) and one chunk, whatever the backlog.
"""

import gc
import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from uuid import UUID

from confluent_kafka import KafkaError, TopicPartition
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.domain.batch import OffsetRange, spread
from pulse_pipelines.domain.limits import EventLimits
from pulse_pipelines.domain.scope import Scope
from pulse_pipelines.ingest import priority
from pulse_pipelines.ingest.conform import DeadLetter, TopicConformer
from pulse_pipelines.ingest.results import Drained, Failure, PartitionCount, Plan, TopicDrained
from pulse_pipelines.ingest.staging import StagingWriter
from pulse_pipelines.tables import raw_zone
from pulse_pipelines.tables.batch_files import BatchFiles
from pulse_pipelines.tables.digests import ArrivedIds, Digests
from pulse_pipelines.tables.parquet_files import positions, token
from pulse_pipelines.tables.raw_zone import Message
from pulse_pipelines.validation.limits import event_limits
from pulse_resources import kafka
from pulse_resources.errors import Terminal, Transient
from pulse_resources.faults import fail_point
from pulse_resources.settings import load_settings
from pulse_resources.spark import run_tasks

PIECE = 1_000
"""Messages asked for at a time ..."""
CHUNK_BYTES = 32 * 1024 * 1024
"""... until a chunk has this many bytes, or `ingest.chunk_rows`: large events must not fill the memory."""
SILENCE_S = 30.0
"""A broker that sends nothing for this long while messages are due counts as unreachable."""


@dataclass(frozen=True)
class DrainTask:
    """A share of a batch, and the limits of its events: those of the run, whatever an executor's settings."""

    plan: Plan
    limits: EventLimits


def drain(spark: SparkSession, plan: Plan, parallelism: int) -> Drained:
    """Drain and conform all ranges of a plan, spread over `parallelism` Spark tasks.

    A topic that cannot be drained is a failure of its tenant; the others go on. Where a tenant's events
    kill the executor itself, all of its job fails: from the third attempt on every tenant has a job of
    its own, so that only the one at fault stays behind.
    """
    limits = event_limits()
    topics: list[TopicDrained] = []
    failures: list[Failure] = []
    for ranges in [plan.ranges] if plan.together else _by_tenant(plan.ranges):
        tasks = [DrainTask(_share(plan, part), limits) for part in spread(ranges, parallelism)]
        try:
            outcomes = run_tasks(spark, tasks, drain_task, [TopicDrained, Failure])
        except PySparkException as error:
            if plan.together:
                raise
            failures.append(Failure(ranges[0].tenant_id, "drain_and_conform", str(error)[:500]))
            continue
        topics.extend(outcome for outcome in outcomes if isinstance(outcome, TopicDrained))
        failures.extend(outcome for outcome in outcomes if isinstance(outcome, Failure))
    return Drained(plan, tuple(topics), tuple(failures))


def _by_tenant(ranges: Sequence[OffsetRange]) -> list[tuple[OffsetRange, ...]]:
    return [tuple(own) for _, own in groupby(sorted(ranges), key=lambda r: r.tenant_id)]


def _share(plan: Plan, ranges: Sequence[OffsetRange]) -> Plan:
    """The part of a plan that one task drains."""
    scopes = {r.tenant_id: plan.scopes[r.tenant_id] for r in ranges}
    return replace(plan, ranges=tuple(ranges), scopes=scopes)


def drain_task(task: DrainTask) -> Iterator[TopicDrained | Failure]:
    """One Spark task: per topic what was drained, or why it failed."""
    plan = task.plan
    collecting = gc.isenabled()
    gc.disable()  # nothing in the loop makes cycles, and the collector would visit every event
    pause = priority.between_pieces(plan.bulk)
    try:
        for ranges in _by_tenant(plan.ranges):
            yield _drain_safely(task, ranges, pause)
    finally:
        if collecting:
            gc.enable()


def _drain_safely(
    task: DrainTask, ranges: Sequence[OffsetRange], pause: Callable[[], None]
) -> TopicDrained | Failure:
    tenant_id = ranges[0].tenant_id
    try:
        return _drain_topic(task, task.plan.scopes[tenant_id], ranges, pause)
    except Exception as error:  # whatever it is, it must not become the neighbours' failure
        return Failure(tenant_id, "drain_and_conform", f"{type(error).__name__}: {error}")


def _drain_topic(
    task: DrainTask, scope: Scope, ranges: Sequence[OffsetRange], pause: Callable[[], None]
) -> TopicDrained:
    settings, plan = load_settings(), task.plan
    part = random.SystemRandom().getrandbits(62)
    counts = {r.partition: PartitionCount() for r in ranges}
    ids: dict[UUID, list[bytes]] = defaultdict(list)
    datasets = {dataset.slug: dataset for dataset in scope.datasets}
    conformer = TopicConformer(scope, plan.batch_id, task.limits)
    stem = f"{plan.batch_id}-{plan.attempt}-{token()}"
    with (
        StagingWriter(plan, scope.tenant, part) as staging,
        BatchFiles(scope.tenant, settings.object_store.bucket, stem, drop_copies=True, pause=pause) as lake,
    ):
        fail_point("drain.before_fetch")
        for messages in read(scope, ranges, counts, settings.ingest.chunk_rows):
            fail_point("drain.before_conform")
            pause()
            conformed = conformer.chunk(messages)
            fail_point("drain.after_conform")
            for slug, table in conformed.tables.items():
                dataset = datasets[slug]
                digests = Digests.of(table.column("id"), dataset.claim_seed)
                ids[dataset.dataset_id].append(ArrivedIds(digests, positions(table).to_numpy()).packed())
                lake.add(dataset, table)
                _count_accepted(counts, dataset.dataset_id, table)
            for letter in conformed.dead_letters:
                counts[letter.message.partition].dead_letters += 1
            _keep_raw(lake, conformed.dead_letters, datasets.keys())
            staging.add_dead_letters(conformed.dead_letters)
            if lake.buffered_bytes >= settings.ingest.buffer_bytes:
                lake.flush()
    if scope.topic_id and kafka.topic_ids([scope.tenant.topic]).get(scope.tenant.topic) != scope.topic_id:
        raise Terminal(  # asked after reading: what was read may be another topic's
            "the topic was recreated: its offsets are not those that were planned",
            fix=f"To go on with what it holds now: pulse tenant accept-loss {scope.tenant.slug}",
            tenant=scope.tenant.slug,
        )
    return TopicDrained(
        *(scope.tenant.tenant_id, part, counts, tuple(lake.candidates), tuple(lake.raw)),
        ids={dataset_id: ArrivedIds.unpacked(parts).packed() for dataset_id, parts in ids.items()},
        copies=lake.copies,
    )


def _count_accepted(counts: dict[int, PartitionCount], dataset_id: UUID, table: object) -> None:
    tally = table.column("_kafka_partition").value_counts().to_pylist()  # type: ignore[attr-defined]
    for entry in tally:
        accepted = counts[entry["values"]].accepted
        accepted[dataset_id] = accepted.get(dataset_id, 0) + entry["counts"]


def _keep_raw(lake: BatchFiles, letters: Sequence[DeadLetter], slugs: Collection[str]) -> None:
    """Dead letters are part of the raw zone, too: as the event, or as bytes where they are no JSON."""
    decoded = [letter for letter in letters if letter.rejected.reason.is_decoded]
    lines = raw_zone.lines([letter.message for letter in decoded]).to_pylist()
    bare = [letter for letter in letters if not letter.rejected.reason.is_decoded]
    lines += [raw_zone.line_of_bytes(letter.message) for letter in bare]
    for letter, line in zip([*decoded, *bare], lines, strict=True):
        slug = letter.dataset if letter.dataset in slugs else None
        lake.add_raw(slug or raw_zone.UNRESOLVED, letter.message.received_ms, line)


def read(
    scope: Scope,
    ranges: Sequence[OffsetRange],
    counts: dict[int, PartitionCount],
    chunk_rows: int,
) -> Iterator[list[Message]]:
    """The messages of the ranges, in chunks; fills `drained`, `oldest_ms` and `absent` of `counts`.

    Raises:
        Transient: the broker fell silent.
        Terminal: the topic or the offsets are gone.
    """
    topic, bases = scope.tenant.topic, scope.bases
    wanted = {r.partition: [r.start, r.end] for r in ranges}  # [next expected, end)
    consumer = kafka.consumer()
    try:
        heard = time.monotonic()
        messages: list[Message] = []
        size = 0
        consumer.assign(
            [TopicPartition(topic, r.partition, r.start - bases.get(r.partition, 0)) for r in ranges]
        )
        while wanted:
            received = consumer.consume(PIECE, 0)  # it would wait by the wall clock, see `kafka.flush`
            if received:
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENCE_S:
                raise Transient("the broker sent nothing", topic=topic, partitions=sorted(wanted))
            else:
                time.sleep(kafka.NAP_S)
            for message in received:
                partition: int = message.partition()  # type: ignore[assignment]
                if (span := wanted.get(partition)) is None:
                    continue
                error = message.error()
                if error is None:
                    offset: int = message.offset() + bases.get(partition, 0)  # type: ignore[operator]
                    if offset > span[0]:  # what lies between holds no messages: markers, aborted ones
                        counts[partition].absent.append((span[0], min(offset, span[1])))
                    if offset < span[1]:
                        count, appended_ms = counts[partition], message.timestamp()[1]
                        count.drained += 1
                        if appended_ms < count.oldest_ms:
                            count.oldest_ms = appended_ms
                        payload = message.value() or b""
                        messages.append(Message(partition, offset, appended_ms, payload))
                        size += len(payload)
                    span[0] = offset + 1
                    reached = span[0] >= span[1]
                else:
                    reached = _at_end(error, topic, partition, span, counts)
                if reached:
                    del wanted[partition]
                    consumer.incremental_unassign([TopicPartition(topic, partition)])
            if messages and (len(messages) >= chunk_rows or size >= CHUNK_BYTES or not wanted):
                yield messages
                messages, size = [], 0
    finally:
        consumer.close()


def _at_end(
    error: KafkaError,
    topic: str,
    partition: int,
    span: list[int],
    counts: dict[int, PartitionCount],
) -> bool:
    """Whether an error event means that the partition has been read to its end."""
    if error.code() == KafkaError._PARTITION_EOF:
        if span[0] < span[1]:  # what is left holds no messages, such as transaction markers
            counts[partition].absent.append((span[0], span[1]))
        return True
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise Terminal(
            "offsets that were never ingested are gone from the topic",
            topic=topic,
            partition=partition,
            offset=span[0],
        )
    if error.retriable() and not error.fatal():
        return False
    raise Transient(f"Kafka: {error.str()}", topic=topic, partition=partition, offset=span[0])
