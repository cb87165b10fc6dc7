"""Continuous load during a fault, and the time until all of it is settled."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import psycopg
from confluent_kafka import KafkaException

from chaos.batches import make_tenant
from chaos.load import BAD, Load
from chaos.sent import Collected, Sent
from chaos.waiting import wait
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.ingest import attempts
from pulse_pipelines.registry import keys
from pulse_resources import kafka, postgres
from pulse_resources.local import front_ends
from pulse_resources.settings import load_settings

SETTLED = "SELECT tenant_id, partition, settled_offset FROM ingest_positions"
PERIOD_S = 0.5
RATE = 40
PATIENCE_S = 600.0


class Traffic:
    """Thread that sends to each tenant twice a second.

    Args:
        owners: senders with their loads.
        rate: events per second of each.
    """

    def __init__(self, owners: Sequence[tuple[Sent, Load]], rate: int = RATE) -> None:
        self.sent = [sender for sender, _ in owners]
        self._owners, self._rate = owners, rate
        self._stop = threading.Event()
        self._failed: BaseException | None = None

    @classmethod
    def of_new_tenants(
        cls, seed: int, tenants: int = 4, rate: int = RATE, bad: float = BAD, *, api: bool = False
    ) -> Self:
        """Traffic of tenants that it makes.

        Args:
            seed: seed of the events.
            tenants: number of new tenants.
            rate: events per second of each.
            bad: share of events that cannot land.
            api: whether another tenant sends valid events through POST /v1/collect.
        """
        owners = [(Sent(make_tenant()), Load(seed + number, bad=bad)) for number in range(tenants)]
        if api:
            tenant = make_tenant()
            key = keys.issue_key(tenant, "chaos", [KeyScope.COLLECT])
            sender = Collected(tenant, url=front_ends.api_url(load_settings()), key=key.text)
            owners.append((sender, Load(seed + tenants, bad=0)))
        return cls(owners, rate)

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Send while the block runs."""
        thread = threading.Thread(target=self._flow, name="traffic", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
        if self._failed:
            raise self._failed

    def _flow(self) -> None:
        producer = kafka.producer()
        try:
            while not self._stop.wait(PERIOD_S):
                for sender, load in self._owners:
                    sender.send(load.events(round(self._rate * PERIOD_S)), producer)
        except BaseException as error:
            self._failed = error


def settled_until(sent: Sequence[Sent]) -> float:
    """Wait until everything acknowledged so far is settled; returns the seconds.

    Raises:
        AssertionError: it does not settle; says what prevents it.
    """

    def located() -> bool:
        try:
            for owner in sent:
                owner.locate()
        except (KafkaException, TimeoutError):  # the broker is under the fault
            return False
        return True

    without_broker = wait(located, "the broker does not say what it holds", PATIENCE_S)
    ends = {
        (owner.tenant.tenant_id, partition): 1 + max(o for p, o in list(owner.events) if p == partition)
        for owner in sent
        for partition in {p for p, _ in list(owner.events)}
    }

    def reached() -> bool:
        try:
            with postgres.transaction("pulse_pipeline") as connection:
                offsets = {(t, p): at for t, p, at in connection.execute(SETTLED)}
        except psycopg.OperationalError:  # Postgres is under the fault
            return False
        return all(offsets.get(where, 0) >= end for where, end in ends.items())

    try:
        return without_broker + wait(reached, "not everything is settled", PATIENCE_S)
    except AssertionError as error:
        stuck = [f"{batch.batch_id}: {batch.state}, {batch.last_error}" for batch in attempts.open_batches()]
        raise AssertionError(f"{error}; open batches: {stuck}") from error
