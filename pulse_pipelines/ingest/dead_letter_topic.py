"""Publishing of settled dead letters to the tenant's topic, at least once.

Publishing comes after settle and is repeated until the broker acknowledges: after a crash a dead letter may
appear twice on the topic. Its key is its origin (topic, partition, offset): readers recognise copies by it.
A dead letter that is too large for the topic is published without its payload, which stays in Postgres.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest.stages import Failure, Settled
from pulse_resources import kafka, postgres
from pulse_resources.errors import Transient
from pulse_resources.process.faults import fail_point

PAGE_ROWS, PAGE_BYTES = 1_000, 32 * 1024 * 1024
"""Limits of one transaction; a letter larger than that is a page of its own."""
FLUSH_S = 30.0

UNPUBLISHED = """
WITH first AS (
    SELECT partition, event_offset, octet_length(payload) AS size FROM dead_letters
    WHERE tenant_id = %(tenant)s AND published_at IS NULL ORDER BY partition, event_offset LIMIT %(rows)s),
page AS (
    SELECT *, coalesce(sum(size) OVER (ORDER BY partition, event_offset
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before FROM first)
SELECT d.partition, d.event_offset AS "offset", d.dataset, d.event_id, d.reason, d.pointer, d.detail,
    d.payload, d.received_at, d.batch_id AS batch
FROM dead_letters d JOIN page USING (partition, event_offset)
WHERE d.tenant_id = %(tenant)s AND d.published_at IS NULL AND page.before < %(bytes)s
ORDER BY d.partition, d.event_offset FOR UPDATE OF d
"""
PUBLISHED = """
UPDATE dead_letters SET published_at = now()
WHERE tenant_id = %s AND partition = %s AND event_offset = %s
"""
OWED = "SELECT batch_id FROM dead_letter_outbox WHERE tenant_id = %s"
PAID = """
DELETE FROM dead_letter_outbox WHERE tenant_id = %(tenant)s AND batch_id = ANY(%(owed)s)
  AND NOT EXISTS (
    SELECT 1 FROM dead_letters WHERE tenant_id = %(tenant)s AND published_at IS NULL)
"""
OVERDUE = """
SELECT t.tenant_id, t.slug, array_agg(o.batch_id)
FROM dead_letter_outbox o JOIN pdm_tenants t USING (tenant_id)
WHERE o.settled_at < now() - make_interval(secs => %s) GROUP BY t.tenant_id, t.slug
"""


def publish(settled: Settled) -> tuple[int, tuple[Failure, ...]]:
    """Publish the unpublished dead letters of the batch's tenants; returns their number, and the failures."""
    count = 0
    failures: list[Failure] = []
    tenants = (settled.plan.scopes[tenant.tenant_id].tenant for tenant in settled.tenants)
    for tenant, outcome in publish_by_tenant(tenants):
        if isinstance(outcome, Exception):
            failures.append(Failure(tenant.tenant_id, "route_dead_letters", str(outcome)))
        else:
            count += outcome
    return count, tuple(failures)


def publish_by_tenant(tenants: Iterable[Tenant]) -> Iterator[tuple[Tenant, int | Exception]]:
    """Publish the tenants' unpublished dead letters; yields their number or the error, tenant by tenant."""
    for tenant in tenants:
        outcome: int | Exception
        try:
            outcome = publish_tenant(kafka.shared_producer(), tenant)
        except Exception as error:
            outcome = error
            kafka.shared_producer.cache_clear()  # it still queues messages, and would block the next tenant
        yield tenant, outcome


def publish_tenant(producer: Producer, tenant: Tenant) -> int:
    """Publish the tenant's unpublished dead letters, a page per transaction.

    Raises:
        Transient: the broker did not acknowledge one; it stays unpublished.
    """
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        owed = [row[0] for row in connection.execute(OWED, [tenant.tenant_id])]
    count = 0
    while owed and (page := _publish_page(producer, tenant)):
        count += page
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        connection.execute(PAID, {"tenant": tenant.tenant_id, "owed": owed})
    return count


def overdue(seconds: float) -> dict[Tenant, list[str]]:
    """Tenants with dead letters that settled this long ago and are not all published, with their batches."""
    with postgres.transaction("pulse_pipeline") as connection:
        rows = connection.execute(OVERDUE, [seconds]).fetchall()
    return {Tenant(tenant_id, slug): batches for tenant_id, slug, batches in rows}


def _publish_page(producer: Producer, tenant: Tenant) -> int:
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        page = {"tenant": tenant.tenant_id, "rows": PAGE_ROWS, "bytes": PAGE_BYTES}
        letters = postgres.select(connection, _Letter, UNPUBLISHED, page)
        fail_point("route_dead_letters.before_publish")
        _publish(producer, tenant, letters)
        fail_point("route_dead_letters.before_mark")
        with connection.cursor() as cursor:
            marked = [(tenant.tenant_id, letter.partition, letter.offset) for letter in letters]
            cursor.executemany(PUBLISHED, marked)
    fail_point("route_dead_letters.after_mark")
    return len(letters)


class _Letter(NamedTuple):
    """A row of `UNPUBLISHED`."""

    partition: int
    offset: int
    dataset: str | None
    event_id: str | None
    reason: str
    pointer: str | None
    detail: str
    payload: bytes | None
    received_at: datetime
    batch: str
    withheld: int | None = None
    """Size of the payload in bytes, if it is left out of the message."""

    def without_payload(self) -> "_Letter":
        return self._replace(payload=None, withheld=len(self.payload or b""))

    def headers(self) -> dict[str, str | bytes | None]:
        headers = {
            "pulse.reason": self.reason,
            "pulse.detail": self.detail,
            "pulse.pointer": self.pointer,
            "pulse.dataset": self.dataset,
            "pulse.event-id": self.event_id,
            "pulse.batch-id": self.batch,
            "pulse.received-at": self.received_at.isoformat(),
            "pulse.withheld-bytes": None if self.withheld is None else str(self.withheld),
        }
        return {name: value for name, value in headers.items() if value is not None}


def _publish(producer: Producer, tenant: Tenant, letters: Sequence[_Letter]) -> None:
    """Publish letters; one that is too large for the topic goes without its payload.

    The broker refuses a whole batch of messages: the one that is too large is found by halving.
    """
    too_large = _produce(producer, tenant, letters)
    if len(too_large) == 1:
        if _produce(producer, tenant, [too_large[0].without_payload()]):
            fix = "Raise max.message.bytes of the topic"
            raise Transient("a dead letter's headers are too large", topic=tenant.dead_letter_topic, fix=fix)
    elif too_large:
        middle = len(too_large) // 2
        _publish(producer, tenant, too_large[:middle])
        _publish(producer, tenant, too_large[middle:])


def _produce(producer: Producer, tenant: Tenant, letters: Sequence[_Letter]) -> list[_Letter]:
    """Publish letters and wait for acknowledgement; returns those of batches that are too large.

    Raises:
        Transient: the broker did not acknowledge one.
    """
    refused: list[KafkaError] = []
    too_large: list[_Letter] = []

    def delivered(letter: _Letter, error: KafkaError | None, _: Message | None = None) -> None:
        if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            too_large.append(letter)
        elif error is not None:
            refused.append(error)

    for letter in letters:
        try:
            producer.produce(
                tenant.dead_letter_topic,
                value=letter.payload,
                key=f"{tenant.topic}/{letter.partition}/{letter.offset}",
                headers=letter.headers(),
                on_delivery=partial(delivered, letter),
            )
        except KafkaException as error:  # the client has a size limit of its own
            delivered(letter, error.args[0])
    waiting = kafka.flush(producer, FLUSH_S)
    if waiting or refused:
        why = kafka.error_text(refused[0]) if refused else "time-out"
        raise Transient(
            f"Kafka did not acknowledge dead letters: {why}",
            topic=tenant.dead_letter_topic,
        )
    return too_large
