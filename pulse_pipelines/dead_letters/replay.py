"""Replay: publish dead letters that could land now to the tenant's topic again.

A letter is marked only after the broker acknowledged it. After a crash in between, a repeated replay
publishes it a second time; the dedup gate drops the copy, even if both are in one batch.
"""

from collections.abc import Sequence
from dataclasses import replace

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from pulse_pipelines.dead_letters.letters import Filter
from pulse_pipelines.dead_letters.places import Places
from pulse_pipelines.dead_letters.revalidation import Revalidated, Revalidation
from pulse_pipelines.dead_letters.selection import resolve, select
from pulse_pipelines.dead_letters.verdicts import DeadLetterOutcome, Progress, Result, Tally, Verdict
from pulse_pipelines.domain.quota import COUNTED
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import kafka, postgres
from pulse_resources.errors import Transient
from pulse_resources.process.faults import fail_point

FLUSH_S = 30.0
ORIGIN_HEADER = "pulse.replay-of"
"""Its value is `<partition>/<offset>` of the dead letter."""


def replay(
    tenant: Tenant,
    chosen: Filter | Sequence[str],
    *,
    schema_version: int | None = None,
    dry_run: bool = False,
    limit: int | None = None,
    after: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Replay the tenant's open dead letters with the ids, or that match the filter, of `chosen`.

    Each letter is validated against the datasets as they are now. An event that could land is published and
    its letter marked as replayed; a duplicate of another event is only marked; an event that still cannot
    land, or for which the quota has no room, stays open. A page of letters is a transaction: when one fails,
    those before it are done.

    Args:
        schema_version: a version that the events' datasets follow or followed; written to the published
            events, which are otherwise unchanged.
        dry_run: only report what would happen.
        limit: maximum number of letters of a filter; pass the result's `next` as `after` to continue.

    Raises:
        NotFound: no such cursor.
        Transient: the broker did not acknowledge, or the object store does not answer; repeat it.
    """
    selection = select(chosen, limit, after)
    revalidation = Revalidation(tenant, schema_version)
    places, tally = Places(tenant, dry_run=dry_run), Tally(progress)
    producer = None if dry_run else kafka.producer()
    while True:
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
            page = selection.page(connection, revalidation.max_bytes, lock=not dry_run)
            if page is None:
                return tally.result(selection.next, dry_run=dry_run)
            verdicts = places.admit(connection, revalidation.validate(connection, page.letters))
            if producer is not None:
                verdicts = _publish(producer, tenant, verdicts)
                fail_point("replay.before_mark")
                done = (DeadLetterOutcome.PUBLISHED, DeadLetterOutcome.DUPLICATE)
                letters = [checked.letter for checked in verdicts if checked.verdict.outcome in done]
                resolve(connection, "replayed", letters)
                places.take(connection, verdicts)
        tally.add([*page.verdicts, *(checked.verdict for checked in verdicts)])


def _publish(producer: Producer, tenant: Tenant, page: Sequence[Revalidated]) -> list[Revalidated]:
    """Publish the letters that would land, and wait for acknowledgement; returns the page as it is then."""
    refused: list[KafkaError] = []

    def acknowledged(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)

    def publish(checked: Revalidated) -> Revalidated:
        verdict: Verdict = checked.verdict
        if verdict.outcome is not DeadLetterOutcome.WOULD_LAND:
            return checked
        producer.produce(
            tenant.topic,
            value=checked.payload,
            key=verdict.event_id,
            headers={ORIGIN_HEADER: f"{checked.letter.partition}/{checked.letter.offset}", COUNTED: b""},
            on_delivery=acknowledged,
        )
        return replace(checked, verdict=replace(verdict, outcome=DeadLetterOutcome.PUBLISHED))

    try:
        published = [publish(checked) for checked in page]
        waiting = kafka.flush(producer, FLUSH_S)
    except (BufferError, KafkaException) as error:
        raise _unacknowledged(tenant, error) from error
    if waiting or refused:
        raise _unacknowledged(tenant, refused[0] if refused else "time-out")
    return published


def _unacknowledged(tenant: Tenant, why: object) -> Transient:
    return Transient(
        f"Kafka did not acknowledge replayed events: {kafka.error_text(why)}",
        fix="Repeat the replay: what was published already cannot land twice",
        topic=tenant.topic,
    )
