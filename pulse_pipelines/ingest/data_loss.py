"""Data loss: a topic no longer holds events that were never ingested, and an operator accepts their loss.

Until then nothing of the topic is ingested. Events that follow get positions that no event had before.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from confluent_kafka import KafkaException

from pulse_pipelines.domain.batch import OffsetRange
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import sync_progress
from pulse_pipelines.ingest.plan import missing_partition
from pulse_pipelines.registry import intake
from pulse_pipelines.tables import ledger
from pulse_pipelines.tables.ledger import Position
from pulse_resources import kafka, postgres
from pulse_resources.errors import Conflict, Transient
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock

POSITIONS = """
SELECT partition, settled_offset, base_offset, topic_id FROM ingest_positions
WHERE tenant_id = %s ORDER BY partition
"""
OPEN_BATCHES = """
SELECT DISTINCT batch_id FROM ingest_ranges WHERE tenant_id = %s AND settled_at IS NULL ORDER BY batch_id
"""
CLOSE = """
UPDATE ingest_batches b SET state = 'settled', settled_at = now()
WHERE batch_id = ANY(%s) AND state <> 'settled' AND NOT EXISTS (
    SELECT FROM ingest_ranges r WHERE r.batch_id = b.batch_id AND r.settled_at IS NULL)
"""
LOG = (
    "INSERT INTO accepted_losses (tenant_id, partition, position, lost, problem) VALUES (%s, %s, %s, %s, %s)"
)
SKIPPED_BATCH = "INSERT INTO ingest_batches (batch_id, state, settled_at) VALUES (%s, 'settled', now())"


@dataclass(frozen=True)
class Loss:
    """The events that a partition no longer holds, and the position to continue from."""

    partition: int
    position: int
    """The first offset that was never ingested."""
    lost: int | None
    """Number of offsets from there on that are gone; None: unknown."""
    problem: str
    base: int
    """What is added to the broker's offsets from now on."""
    topic_id: str | None
    """None: the topic has to be created again."""
    known_base: int
    """The base at the time of the check, like `known_topic_id`: `accept` refuses if either has changed."""
    known_topic_id: str | None


def find_losses(tenant: Tenant) -> list[Loss]:
    """Find the losses in the tenant's topic, by partition; none when all unsettled events can be ingested.

    Raises:
        Transient: the broker does not answer.
    """
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        positions = connection.execute(POSITIONS, [tenant.tenant_id]).fetchall()
    try:
        count = kafka.partition_counts().get(tenant.topic)
    except KafkaException as error:
        raise Transient(
            f"the broker does not answer: {kafka.error_text(error)}", tenant=tenant.slug
        ) from error
    current = kafka.topic_ids([tenant.topic]).get(tenant.topic)
    existing = [(tenant.topic, partition) for partition, *_ in positions if partition < (count or 0)]
    starts, ends = kafka.offsets(existing, "earliest"), kafka.offsets(existing, "latest")
    losses = []
    for partition, settled, base, topic_id in positions:
        loss = Loss(partition, settled, None, "", settled, current, base, topic_id)
        if count is None:
            losses.append(replace(loss, problem="the topic is gone"))
            continue
        if partition >= count:
            losses.append(replace(loss, problem=missing_partition(count)))
            continue
        start, end = starts[tenant.topic, partition], ends[tenant.topic, partition]
        if not isinstance(start, int) or not isinstance(end, int):
            raise Transient(
                f"the broker does not answer: {kafka.error_text(start if isinstance(end, int) else end)}",
                tenant=tenant.slug,
                partition=partition,
            )
        if topic_id and topic_id != current:
            problem = f"the topic was recreated: it holds {end - start} messages that were not ingested"
            losses.append(replace(loss, problem=problem, base=settled - start))
        elif base + end < settled:
            problem = f"the topic was cut: it ends at {base + end}, before the position {settled}"
            losses.append(replace(loss, problem=problem, base=settled - end))
        elif base + start > settled:
            problem = f"retention removed the offsets {settled} to {base + start} before they were ingested"
            losses.append(replace(loss, problem=problem, base=base, lost=base + start - settled))
    return losses


def accept(tenant: Tenant, losses: Sequence[Loss]) -> list[Loss]:
    """Accept losses: move the positions behind them, so that what the topic holds is ingested.

    Args:
        losses: as `find_losses` found them. They are accepted as they are, or not at all.

    Returns:
        The losses as recorded.

    Raises:
        Conflict: there is no loss; or the positions have moved since `find_losses`.
        Transient: a run works on a batch of the tenant, or the broker does not answer.
    """
    if not losses:
        raise Conflict("nothing is lost: all that waits can be ingested", tenant=tenant.slug)
    if any(loss.topic_id is None for loss in losses):
        kafka.create_topics([tenant.topic])
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        partitions = len(connection.execute(POSITIONS, [tenant.tenant_id]).fetchall())
    kafka.ensure_partitions(tenant.topic, partitions)
    topic_id = kafka.topic_ids([tenant.topic])[tenant.topic]
    losses = [replace(loss, topic_id=loss.topic_id or topic_id) for loss in losses]
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        _unplan(connection, tenant)
        _record(connection, tenant, losses)
        sync_progress.fail(
            connection, tenant.tenant_id, "some of its messages were lost with the tenant's topic"
        )
    return losses


def _unplan(connection: postgres.Connection, tenant: Tenant) -> None:
    """Take the tenant's unsettled ranges out of the open batches, to be planned again."""
    batches = [batch for (batch,) in connection.execute(OPEN_BATCHES, [tenant.tenant_id])]
    for batch in batches:
        if not locks.take(connection, Lock.BATCH, batch):
            fix = "Wait until it has failed, and say it again"
            raise Transient("a run works on a batch of this tenant", tenant=tenant.slug, batch=batch, fix=fix)
    ledger.unplan(connection, tenant.tenant_id)
    intake.unhold(connection, tenant.tenant_id)
    connection.execute(CLOSE, [batches])


def _record(connection: postgres.Connection, tenant: Tenant, losses: Sequence[Loss]) -> None:
    batch = f"loss-{uuid.uuid4().hex[:15]}"
    if any(loss.lost for loss in losses):
        connection.execute(SKIPPED_BATCH, [batch])
    for loss in losses:
        where = tenant.tenant_id, loss.partition
        connection.execute(LOG, [*where, loss.position, loss.lost, loss.problem])
        end = loss.position + (loss.lost or 0)
        if loss.lost:
            ledger.skip(connection, batch, OffsetRange(*where, loss.position, end))
        position = Position(loss.position, loss.known_base, loss.known_topic_id)
        if not ledger.reposition(connection, *where, position, Position(end, loss.base, loss.topic_id)):
            raise Conflict(
                f"the position moved meanwhile: it was {loss.position} when it was checked",
                fix="Nothing was changed: check again",
                tenant=tenant.slug,
                partition=loss.partition,
            )
