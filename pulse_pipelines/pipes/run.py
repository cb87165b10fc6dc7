"""A run of a pipe: sends the rows of its source, as of one moment, to the tenant's topic as one sync.

The rows are entities, or events, like pushed ones: the following batches compare, reject, count and settle
them. A run never deletes events, so it is not a full sync, even if it reads all rows. The position in the
source is stored in the sync, and becomes the pipe's position in the transaction that settles the last of
these rows.
"""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from confluent_kafka import KafkaException
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.pipe_sources import Feed
from pulse_pipelines.domain.pipes import Transform, parted
from pulse_pipelines.domain.syncs import Part
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import sync_progress, syncs as taken
from pulse_pipelines.ingest import spans
from pulse_pipelines.pipes import progress, sources
from pulse_pipelines.pipes.publishing import Loaded
from pulse_pipelines.pipes.read_plan import ReadPlan
from pulse_pipelines.pipes.registry import ABANDON_DEAD, Pipe, find, unsettled
from pulse_pipelines.pipes.turns import OthersWait, Turn, no_one_waits
from pulse_resources import postgres
from pulse_resources.errors import Conflict, PulseError, Transient, UserError, from_notes
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.process.faults import fail_point
from pulse_resources.spark import noted, run_tasks

OF_PIPE = "UPDATE entity_syncs SET pipe = %s, as_of = %s WHERE sync_id = %s"
SENT = """
UPDATE entity_syncs SET state = 'sent', ends = %s, parts = 1, position = %s
WHERE sync_id = %s AND state = 'open'
"""
STAYS_OPEN = "UPDATE entity_syncs SET position = %s WHERE sync_id = %s AND state = 'open'"
# The source has more that is older than the moment of this run.
AS_BEFORE = """
UPDATE entity_syncs s SET as_of = (
    SELECT b.as_of FROM entity_syncs b WHERE b.tenant_id = s.tenant_id AND b.pipe = s.pipe
        AND b.sync_id < s.sync_id AND b.settled_at IS NOT NULL ORDER BY b.sync_id DESC LIMIT 1)
WHERE s.sync_id = %s
"""
FAILED = "UPDATE entity_syncs SET state = 'failed', ended_at = now(), reason = %s WHERE sync_id = %s"
# What was sent up to here still settles, and is counted.
FAILED_AT = "UPDATE entity_syncs SET ends = %s WHERE sync_id = %s AND state = 'failed'"


@dataclass(frozen=True)
class Sent:
    """Result of a run."""

    sync_id: int
    is_full: bool
    """All rows were read."""
    rows: int
    bytes: int
    position: str | None
    more: bool = False
    """Whether the source has more, which the next run reads: it is requested already."""


def run(
    spark: SparkSession,
    tenant: Tenant,
    name: str,
    parallelism: int,
    *,
    full: bool = False,
    others_wait: OthersWait = no_one_waits,
) -> Sent:
    """Run a pipe once.

    Args:
        full: read all rows, in any mode.
        others_wait: whether another tenant's run waits for the place that this one holds.

    Raises:
        Conflict: another run is active, or the events of the one before have not settled yet.
        NotFound, UserError: the table, or the source, no longer exists, or cannot be replicated.
        Transient: the source or the broker does not answer, or it had to give up its place; nothing is
            deleted.
    """
    pipe = find(tenant, name)
    if pipe.definition.delivers:
        raise UserError(
            "the pipe has a sink and no source: deliver it instead", tenant=tenant.slug, pipe=name
        )
    with locks.session(Lock.PIPE, pipe.dataset_id) as alone:
        if alone is None:
            raise Conflict("another run of the pipe is under way", tenant=tenant.slug, pipe=name)
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
            if unsettled(connection, pipe):
                raise Conflict(
                    "the rows of its last run have not settled yet",
                    fix="See `pulse status`: it settles with the next batch",
                    tenant=tenant.slug,
                    pipe=name,
                )
            connection.execute(ABANDON_DEAD, [name])
            progress.begin(connection, name)
        try:
            again = f"Once the cause is removed: pulse pipe run {tenant.slug} {name}"
            labels = {"pipe": name, "tenant": tenant.slug, "dataset": pipe.dataset}
            with noted(again, **labels), spans.work("run pipe", tenant=tenant.slug, pipe=name) as tell:
                sent = _run(spark, find(tenant, name), parallelism, full, others_wait)
                tell(sync=sent.sync_id, rows=sent.rows, bytes=sent.bytes)
        except Exception as error:
            with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
                progress.failed(connection, name, error)
            raise
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
            (progress.request_next if sent.more else progress.ended)(connection, name)
        return sent


def _run(spark: SparkSession, pipe: Pipe, parallelism: int, full: bool, others_wait: OthersWait) -> Sent:
    turn = _turn(pipe, others_wait)
    with ExitStack() as stack:
        if not isinstance(pipe.definition.other_end, Transform):  # which waits for no tenant's server
            stack.enter_context(turn.watched())
        with turn.waiting():
            opened = sources.module_of(pipe.definition).opened(pipe, parallelism, full=full)
            plan = stack.enter_context(opened)
        sync_id = _begin(pipe, plan)
        fail_point("pipe.begun")
        try:
            with _ended_with(spark, f"pipe-{sync_id}"), turn.waiting():
                loaded = _loaded(spark, plan)
            fail_point("pipe.loaded")
            position = next((part.position for part in loaded[::-1] if part.position), plan.position)
            more = any(part.more for part in loaded)
            _sent(pipe, sync_id, position, more=more, is_open=more and plan.is_full)
        except Exception as error:
            if plan.continues and isinstance(error, Transient):
                raise  # the next run continues from the same position
            with postgres.tenant_transaction("pulse_pipeline", pipe.tenant.tenant_id) as connection:
                why = error.message if isinstance(error, PulseError) else type(error).__name__
                connection.execute(FAILED, [f"its run failed: {why}", sync_id])
            _failed_at(pipe.tenant, sync_id)
            raise
    fail_point("pipe.sent")
    rows, size = sum(part.rows for part in loaded), sum(part.bytes for part in loaded)
    shown = parted(position or "")[0] or None
    return Sent(sync_id, plan.is_full, rows, size, shown, more)


def _turn(pipe: Pipe, others_wait: OthersWait) -> Turn:
    def count_rows() -> int:
        with postgres.tenant_transaction("pulse_pipeline", pipe.tenant.tenant_id) as connection:
            return sum(sync_progress.ends_of(pipe.tenant, connection).values())

    def give_way() -> None:
        with postgres.tenant_transaction("pulse_pipeline", pipe.tenant.tenant_id) as connection:
            progress.gives_way(connection, pipe.name)

    return Turn(others_wait, count_rows, give_way if isinstance(pipe.definition.other_end, Feed) else None)


@contextmanager
def _ended_with(spark: SparkSession, tag: str) -> Iterator[None]:
    """End the block's Spark work with the block; all runs share one session there."""
    spark.addTag(tag)
    try:
        yield
    except Transient:
        spark.interruptTag(tag)
        raise
    finally:
        spark.removeTag(tag)


def _loaded(spark: SparkSession, plan: ReadPlan) -> list[Loaded]:
    if plan.drive:
        return plan.drive(spark)
    try:
        return run_tasks(spark, plan.tasks, plan.load, [Loaded]) if plan.load else []
    except PySparkException as error:
        raise from_notes(str(error)) or error from None


def _begin(pipe: Pipe, plan: ReadPlan) -> int:
    token = uuid.uuid4().hex
    is_full = plan.is_full and pipe.definition.kind == DatasetKind.ENTITIES
    part = Part(f"{pipe.name}/{token[:12]}", token, None, is_full, is_first=True, is_last=True)
    with postgres.tenant_transaction("pulse_pipeline", pipe.tenant.tenant_id) as connection:
        sync = progress.open_sync(connection, pipe.name) if plan.continues else None
        sync_id = sync[0] if sync else taken.open_sync(connection, pipe.tenant, pipe.dataset_id, part)
        if is_full and not sync:
            taken.supersede(connection, pipe.dataset_id, sync_id)
        connection.execute(OF_PIPE, [pipe.name, plan.as_of, sync_id])
    return sync_id


def _failed_at(tenant: Tenant, sync_id: int) -> None:
    """Record where in the topic a failed run ended, if the broker answers: rows are counted up to there."""
    with (
        suppress(Transient, KafkaException),
        postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection,
    ):
        connection.execute(
            FAILED_AT, [sync_progress.as_json(sync_progress.ends_of(tenant, connection)), sync_id]
        )


def _sent(pipe: Pipe, sync_id: int, position: str | None, *, more: bool, is_open: bool) -> None:
    """Record that a sync is sent up to a position; with `is_open` the next run continues it."""
    tenant = pipe.tenant
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        if more:
            connection.execute(AS_BEFORE, [sync_id])
        ends = sync_progress.as_json(sync_progress.ends_of(tenant, connection))
        values = [position, sync_id] if is_open else [ends, position, sync_id]
        if connection.execute(STAYS_OPEN if is_open else SENT, values).rowcount != 1:
            raise Conflict("another full sync of the dataset began meanwhile", sync=sync_id)
        sync_progress.reached(connection, tenant.tenant_id)  # without rows no batch follows
