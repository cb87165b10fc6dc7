"""Replay: publish dead letters that could land now to the tenant's topic again, for the same gate.

A letter is marked only after the broker acknowledged it. A crash in between leads to a second publish
when the replay is repeated; the gate drops the second, whether the first has landed or comes with it.
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
from pulse_resources.faults import fail_point

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
    """Replay the tenant's open dead letters that `chosen` names or fits.

    Each is checked by the datasets as they are now. What could land is published and marked as replayed;
    what another event with the same id stands for is marked only; what still cannot land stays open, and so
    does what was over the quota and finds no room. A
    page of letters is a transaction: when one fails, those before it are done.

    Args:
        schema_version: a version that the events' datasets follow or followed; named in what is published,
            which is otherwise the same event.
        dry_run: only say what would happen.
        limit: look at so many letters of a filter at most; the result's `next` goes on as `after`.

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
    """Publish what would land, until all of it is acknowledged; the page with what became of it."""
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
        f"Kafka did not acknowledge replayed events: {why}",
        fix="Repeat the replay: what was published already cannot land twice",
        topic=tenant.topic,
    )
