"""Draining: read exact offset ranges from Kafka, conform events, write candidate and raw files, digest ids.

Runs inside Spark tasks. A task works through its topics one after the other, so that its memory is
bounded by one buffer (`ingest.buffer_bytes`) and one chunk, for any backlog.
"""

import gc
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from uuid import UUID

from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.batch import ORDINARY_BYTES, OffsetRange, spread
from pulse_pipelines.domain.event_limits import EventLimits
from pulse_pipelines.entities import heads
from pulse_pipelines.ingest import costs, isolate, priority
from pulse_pipelines.ingest.batch_files import BatchFiles
from pulse_pipelines.ingest.conform import DeadLetter, TopicConformer
from pulse_pipelines.ingest.messages import (
    LARGE_FETCH_BYTES,
    MIDDLE_FETCH_BYTES,
    SMALL_FETCH_BYTES,
    read,
    stand_in,
)
from pulse_pipelines.ingest.origins import Origins, chosen
from pulse_pipelines.ingest.probe import Conforms, Probe, probe_task
from pulse_pipelines.ingest.stages import NEXT_STEP, Drained, Failure, PartitionCount, Plan, TopicDrained
from pulse_pipelines.ingest.staging import StagingWriter
from pulse_pipelines.tables import raw_zone
from pulse_pipelines.tables.digests import ArrivedIds, Digests
from pulse_pipelines.tables.iceberg_schema import HASH
from pulse_pipelines.tables.parquet_files import positions, token
from pulse_pipelines.validation.limits import event_limits
from pulse_resources import kafka, outages
from pulse_resources.errors import Terminal
from pulse_resources.process.faults import fail_point
from pulse_resources.settings import load_settings
from pulse_resources.spark import noted, run_tasks

_log = logging.getLogger("pulse.drain")

STEP = "drain_and_conform"


@dataclass(frozen=True)
class DrainTask:
    """A share of a batch, with the event limits of the run: an executor may have other settings."""

    plan: Plan
    limits: EventLimits
    isolated: str | None = None
    """Why all its events become dead letters unconformed (see `isolate`); None: they are conformed."""
    unread: bool = False
    """Whether not even their bytes are read."""
    most_cost: int | None = None
    """Most bytes of a tenant's files (`costs.file_bytes`), while other tenants wait for them; None: any."""


def drain(spark: SparkSession, plan: Plan, parallelism: int) -> Drained:
    """Drain and conform all ranges of a plan, spread over `parallelism` Spark tasks.

    A topic that cannot be drained is a failure of its tenant alone. Events that kill the executor fail the
    whole job: from the third attempt on every tenant has a job of its own, so that only the one at fault
    stays behind; then the events at fault are isolated.
    """
    limits = event_limits()
    shared = plan.attempt == 1 and len(plan.scopes) > 1
    most_cost = costs.MOST_FILE_BYTES if shared else None
    outcomes: list[TopicDrained | Failure] = []

    def run(
        ranges: Sequence[OffsetRange], isolated: str | None = None, unread: bool = False
    ) -> list[TopicDrained | Failure]:
        parts = spread(ranges, parallelism)
        tasks = [DrainTask(_share(plan, part), limits, isolated, unread, most_cost) for part in parts]
        with noted(NEXT_STEP, **plan.about):
            return run_tasks(spark, tasks, drain_task, [TopicDrained, Failure])

    def run_tenant(
        ranges: Sequence[OffsetRange], isolated: str | None, unread: bool
    ) -> list[TopicDrained | Failure]:
        try:
            return run(ranges, isolated, unread)
        except PySparkException as error:
            outages.check(spark)
            _log.warning("the job of tenant %s died: %s", ranges[0].tenant_id, error)
            return [Failure(ranges[0].tenant_id, STEP, isolate.DIED, by_event=True)]

    def drain_tenant(
        ranges: Sequence[OffsetRange], isolated: str | None = None
    ) -> list[TopicDrained | Failure]:
        drained = run_tenant(ranges, isolated, unread=False)
        if isolated is not None and isolate.needed(drained):
            drained = run_tenant(ranges, isolate.UNREADABLE, unread=True)
        return drained

    def sound() -> bool:
        try:
            return bool(run_tasks(spark, [Probe(limits)], probe_task, [Conforms]))
        except PySparkException:
            return False

    if plan.together:
        outcomes = run(plan.ranges)
    else:
        tenants = _by_tenant(plan.ranges)
        for ranges in tenants:
            drained = drain_tenant(ranges)
            if plan.isolates and isolate.needed(drained):
                drained = isolate.isolate(ranges, drain_tenant, sound, isolate.patience() / len(tenants))
            outcomes.extend(drained)
    topics = tuple(outcome for outcome in outcomes if isinstance(outcome, TopicDrained))
    return Drained(
        replace(plan, origins=chosen(topics)),
        topics,
        tuple(outcome for outcome in outcomes if isinstance(outcome, Failure)),
    )


def _by_tenant(ranges: Sequence[OffsetRange]) -> list[tuple[OffsetRange, ...]]:
    return [tuple(tenant_ranges) for _, tenant_ranges in groupby(sorted(ranges), key=lambda r: r.tenant_id)]


def _share(plan: Plan, ranges: Sequence[OffsetRange]) -> Plan:
    """The part of a plan that one task drains."""
    scopes = {r.tenant_id: plan.scopes[r.tenant_id] for r in ranges}
    return replace(plan, ranges=tuple(ranges), scopes=scopes)


def drain_task(task: DrainTask) -> Iterator[TopicDrained | Failure]:
    """Run one Spark task; yields the result or the failure of each topic."""
    plan = task.plan
    collecting = gc.isenabled()
    gc.disable()  # the loop makes no reference cycles, and the collector would visit every event
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
    except Exception as error:  # of any kind: it must not fail the other tenants
        by_event = not isinstance(error, isolate.OUTAGES)
        why = isolate.DIED if isinstance(error, MemoryError) else f"{type(error).__name__}: {error}"
        return Failure(tenant_id, STEP, why, by_event)


def _drain_topic(
    task: DrainTask, scope: Scope, ranges: Sequence[OffsetRange], pause: Callable[[], None]
) -> TopicDrained:
    settings, plan = load_settings(), task.plan
    part = random.SystemRandom().getrandbits(62)
    counts = {r.partition: PartitionCount() for r in ranges}
    ids: dict[UUID, list[bytes]] = defaultdict(list)
    states: dict[UUID, list[bytes]] = defaultdict(list)
    datasets = {dataset.slug: dataset for dataset in scope.datasets}
    if task.isolated is None:
        conform = TopicConformer(scope, plan.batch_id, task.limits).chunk
    else:
        conform = partial(isolate.dead_letters, task.isolated)
    origins = None if plan.traceparent is None else Origins(scope.tenant.tenant_id)
    stem = f"{plan.batch_id}-{plan.attempt}-{token()}"
    with (
        StagingWriter(plan, scope.tenant, part) as staging,
        BatchFiles(
            scope.tenant,
            settings.object_store.bucket,
            stem,
            drop_copies=True,
            pause=pause,
            most_cost=task.most_cost,
        ) as lake,
    ):
        fail_point("drain.before_fetch")
        if task.unread:
            chunks = stand_in(ranges, counts)
        else:
            of = (scope, ranges, counts, settings.ingest.chunk_rows, origins, plan.patience)
            chunks = read(*of, fetch_bytes=_fetch_bytes(plan, scope))
        for messages in chunks:
            fail_point("drain.before_conform")
            pause()
            conformed = conform(messages)
            fail_point("drain.after_conform")
            for slug, table in conformed.tables.items():
                dataset = datasets[slug]
                digests = Digests.of(table.column("id"), dataset.claim_seed)
                ids[dataset.dataset_id].append(ArrivedIds(digests, positions(table).to_numpy()).packed())
                if dataset.of_entities:
                    later = dataset.later_columns
                    rows = table.select([HASH, "context", *later])
                    states[dataset.dataset_id].append(heads.states(rows, later).packed())
                lake.add(dataset, table)
                _count_accepted(counts, dataset.dataset_id, table)
            for letter in conformed.dead_letters:
                counts[letter.message.partition].dead_letters += 1
            _add_raw(lake, conformed.dead_letters, datasets.keys())
            staging.add_dead_letters(conformed.dead_letters)
            if lake.buffered_bytes >= settings.ingest.buffer_bytes:
                lake.flush()
    if scope.topic_id and kafka.topic_ids([scope.tenant.topic]).get(scope.tenant.topic) != scope.topic_id:
        raise Terminal(  # checked after reading: the messages may be another topic's
            "the topic was recreated: its offsets are not those that were planned",
            fix=f"To continue with what it holds now: pulse tenant accept-loss {scope.tenant.slug}",
            tenant=scope.tenant.slug,
        )
    return TopicDrained(
        tenant_id=scope.tenant.tenant_id,
        part=part,
        partitions=counts,
        candidates=tuple(lake.candidates),
        raw=tuple(lake.raw),
        ids={dataset_id: ArrivedIds.unpacked(parts).packed() for dataset_id, parts in ids.items()},
        copies=lake.copies,
        origins=() if origins is None else origins.collected(),
        states={
            dataset_id: Digests.joined(map(Digests.unpacked, parts)).packed()
            for dataset_id, parts in states.items()
        },
    )


def _fetch_bytes(plan: Plan, scope: Scope) -> int:
    """Fetch little at once if the events are large, or if an attempt may have died of them."""
    if scope.event_bytes > ORDINARY_BYTES:
        return SMALL_FETCH_BYTES
    return {1: LARGE_FETCH_BYTES, 2: MIDDLE_FETCH_BYTES}.get(plan.attempt, SMALL_FETCH_BYTES)


def _count_accepted(counts: dict[int, PartitionCount], dataset_id: UUID, table: object) -> None:
    tally = table.column("_kafka_partition").value_counts().to_pylist()  # type: ignore[attr-defined]
    for entry in tally:
        accepted = counts[entry["values"]].accepted
        accepted[dataset_id] = accepted.get(dataset_id, 0) + entry["counts"]


def _add_raw(lake: BatchFiles, letters: Sequence[DeadLetter], slugs: Collection[str]) -> None:
    """Add dead letters to the raw zone: as events, or as bytes where they are not JSON."""
    decoded = [letter for letter in letters if letter.rejected.reason.is_decoded]
    lines = raw_zone.lines([letter.message for letter in decoded]).to_pylist()
    bare = [letter for letter in letters if not letter.rejected.reason.is_decoded]
    lines += [raw_zone.line_of_bytes(letter.message) for letter in bare]
    for letter, line in zip([*decoded, *bare], lines, strict=True):
        slug = letter.dataset if letter.dataset in slugs else None
        lake.add_raw(slug or raw_zone.UNRESOLVED, letter.message.received_ms, line)
