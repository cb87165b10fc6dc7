"""Run the demo: register, send, wait for the sensor's runs to settle it, and report."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from uuid import UUID

import orjson
from confluent_kafka import KafkaError, Message
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pulse_api.demo.source import SCHEMAS, Event
from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.stages import attempts
from pulse_resources import kafka, postgres
from pulse_resources.errors import AlreadyExists, NotFound, PulseError, Transient

REDELIVER_EVERY = 20
"""Of the valid events, every twentieth is sent twice."""
PATIENCE_S = 300.0
"""Without any progress for this long the demo gives up and says what is in the way."""

LEDGER = """
SELECT tenant_id, coalesce(sum(drained), 0)::bigint, coalesce(sum(landed), 0)::bigint,
    coalesce(sum(duplicates), 0)::bigint, coalesce(sum(dead_letters), 0)::bigint
FROM ingest_ranges WHERE tenant_id = ANY(%s) AND settled_at IS NOT NULL GROUP BY tenant_id
"""


@dataclass(frozen=True)
class Counts:
    drained: int = 0
    landed: int = 0
    duplicates: int = 0
    dead_letters: int = 0

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(
            self.drained - other.drained,
            self.landed - other.landed,
            self.duplicates - other.duplicates,
            self.dead_letters - other.dead_letters,
        )


def register(names: dict[str, str], datasets: dict[str, str]) -> dict[str, Tenant]:
    """Create the tenants, schemas and datasets that are missing.

    Args:
        names: tenant slug to full name.
        datasets: tenant slug to the slug of its dataset, which is also the schema's name.
    """
    tenants: dict[str, Tenant] = {}
    for slug, name in names.items():
        try:
            tenant = registry.find_tenant(slug)
        except NotFound:
            tenant = registry.create_tenant(slug, name)
        dataset = datasets[slug]
        uri = registry.publish_schema(tenant, dataset, orjson.dumps(SCHEMAS[dataset]).decode()).schema_uri
        with suppress(AlreadyExists):
            registry.create_dataset(tenant, dataset, uri)
        tenants[slug] = tenant
    return tenants


def send(console: Console, tenants: dict[str, Tenant], events: Sequence[Event]) -> dict[str, int]:
    """Publish every event, and some of them again; returns how many each tenant sent.

    Raises:
        Transient: the broker did not acknowledge all of them.
    """
    valid = [event for event in events if event.valid]
    outgoing = [*events, *valid[::REDELIVER_EVERY]]
    sent = dict.fromkeys(tenants, 0)
    refused: list[KafkaError] = []

    def acknowledged(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)

    producer = kafka.producer()
    with progress(console) as bar:
        task = bar.add_task("sending", total=len(outgoing))
        for index, event in enumerate(outgoing):
            topic = tenants[event.tenant].topic
            while True:
                try:
                    producer.produce(topic, event.payload(), key=event.event_id, on_delivery=acknowledged)
                    break
                except BufferError:
                    producer.poll(0.1)
            sent[event.tenant] += 1
            if index % 1_000 == 999:
                producer.poll(0)
                bar.update(task, completed=index + 1)
        left = producer.flush(60)
        bar.update(task, completed=len(outgoing))
    if left or refused:
        raise Transient(f"the broker did not acknowledge {left + len(refused)} events")
    return sent


def ledger(tenants: Sequence[Tenant]) -> dict[UUID, Counts]:
    """What the ledger says of each tenant so far."""
    found = {tenant.tenant_id: Counts() for tenant in tenants}
    with postgres.transaction("pulse_pipeline") as connection:
        for tenant_id, *numbers in connection.execute(LEDGER, [list(found)]):
            found[tenant_id] = Counts(*numbers)
    return found


def wait_until_settled(
    console: Console, tenants: Sequence[Tenant], before: dict[UUID, Counts], sent: int
) -> None:
    """Watch the ledger until everything sent is settled.

    Raises:
        PulseError: a batch is stuck, or nothing moved for a long time.
    """
    with progress(console) as bar:
        task = bar.add_task("settling", total=sent)
        done, moved = 0, time.monotonic()
        while done < sent:
            time.sleep(0.5)
            now = ledger(tenants)
            drained = sum((now[key] - before[key]).drained for key in now)
            if drained > done:
                done, moved = drained, time.monotonic()
                bar.update(task, completed=done)
            stuck = [batch for batch in attempts.open_batches() if batch.state == "stuck"]
            if stuck:
                raise PulseError(
                    f"a batch is stuck: {stuck[0].last_error}",
                    fix="See the run in the Dagster UI, then: pulse batch retry <batch>",
                    batch=stuck[0].batch_id,
                )
            if time.monotonic() - moved > PATIENCE_S:
                raise PulseError(
                    f"nothing settled for {PATIENCE_S:.0f} s; {done:,} of {sent:,} events are",
                    fix="Look at `pulse status`, `pulse batch list` and the sensor in the Dagster UI",
                )


@contextmanager
def progress(console: Console) -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description:>10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        yield bar
