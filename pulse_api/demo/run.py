"""Demo run: register, send, wait until the sensor's runs have settled all events, and report."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Event as Signal
from uuid import UUID

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pulse_api.demo.source import SCHEMAS, Event
from pulse_api.sending import batches, open_client, send_batch
from pulse_pipelines import registry
from pulse_pipelines.domain.dataset import OnInvalid
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest import attempts
from pulse_pipelines.registry import keys
from pulse_resources import postgres
from pulse_resources.errors import AlreadyExists, NotFound, PulseError, Terminal

REDELIVER_EVERY = 20
"""Every twentieth valid event is sent twice."""
SENDERS = 4
"""Tenants that send concurrently, each over its own connection."""
PATIENCE_S = 300.0
"""Seconds without progress after which the demo gives up and reports what blocks it."""

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
            registry.create_dataset(tenant, dataset, uri, on_invalid=OnInvalid.DEAD_LETTER)
        tenants[slug] = tenant
    return tenants


def send(console: Console, url: str, tenants: dict[str, Tenant], events: Sequence[Event]) -> dict[str, int]:
    """Send every event through the HTTP API, and some of them twice; returns the number sent by tenant.

    Raises:
        PulseError: the API did not accept all of them.
    """
    outgoing = {slug: [event for event in events if event.tenant == slug] for slug in tenants}
    for events_of_tenant in outgoing.values():
        events_of_tenant += [event for event in events_of_tenant if event.valid][::REDELIVER_EVERY]
    stop = Signal()
    with progress(console) as bar, ThreadPoolExecutor(SENDERS) as senders:
        task = bar.add_task("sending", total=sum(map(len, outgoing.values())))

        def deliver(slug: str) -> None:
            _deliver(url, tenants[slug], outgoing[slug], stop, lambda count: bar.advance(task, count))

        try:
            # The largest first, so that no large tenant is left to send alone at the end.
            list(senders.map(deliver, sorted(outgoing, key=lambda slug: -len(outgoing[slug]))))
        finally:
            stop.set()
    return {slug: len(events_of_tenant) for slug, events_of_tenant in outgoing.items()}


def _deliver(
    url: str, tenant: Tenant, events: Sequence[Event], stop: Signal, advance: Callable[[int], None]
) -> None:
    key = keys.issue_key(tenant, "demo", [KeyScope.COLLECT], datetime.now(UTC) + timedelta(days=1))
    try:
        with open_client(url, key.text) as client:
            for batch in batches(event.payload() for event in events):
                if stop.is_set():
                    return
                answer = send_batch(client, batch)
                if answer.refused:
                    raise Terminal(
                        f"the API refused {answer.refused} events: {answer.verdicts[0]}",
                        fix="Are these the demo's own datasets? Start again with: make clean",
                        tenant=tenant.slug,
                    )
                advance(len(batch.events))
    finally:
        keys.revoke_key(tenant, key.stored.key_id)


def ledger(tenants: Sequence[Tenant]) -> dict[UUID, Counts]:
    """Settled counts of each tenant in the ledger."""
    counts = {tenant.tenant_id: Counts() for tenant in tenants}
    with postgres.transaction("pulse_pipeline") as connection:
        for tenant_id, *numbers in connection.execute(LEDGER, [list(counts)]):
            counts[tenant_id] = Counts(*numbers)
    return counts


def wait_until_settled(
    console: Console, tenants: Sequence[Tenant], before: dict[UUID, Counts], sent: int
) -> None:
    """Poll the ledger until every event sent is settled.

    Raises:
        PulseError: a batch is stuck, or there was no progress for too long.
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
