"""Load that goes on while things break, and the time until all of it is settled again."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

from chaos.batches import make_tenant
from chaos.load import BAD, Load
from chaos.sent import Sent
from chaos.waiting import wait
from pulse_pipelines.stages import attempts
from pulse_resources import kafka, postgres

SETTLED = "SELECT tenant_id, partition, settled_offset FROM ingest_positions"
PERIOD_S = 0.5
PATIENCE_S = 600.0


class Traffic:
    """A thread that sends to each tenant, twice a second.

    Args:
        seed: of the events.
        tenants: how many, made anew.
        rate: events per second, of each of them.
        bad: the share of events that cannot land.
    """

    def __init__(self, seed: int, tenants: int = 4, rate: int = 40, bad: float = BAD) -> None:
        self.sent = [Sent(make_tenant()) for _ in range(tenants)]
        self._loads = [Load(seed + number, bad=bad) for number in range(tenants)]
        self._rate = rate
        self._stop = threading.Event()
        self._failed: BaseException | None = None

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """It flows while the block runs."""
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
                for load, sent in zip(self._loads, self.sent, strict=True):
                    sent.send(load.events(round(self._rate * PERIOD_S)), producer)
        except BaseException as error:
            self._failed = error


def settled_until(sent: Sequence[Sent]) -> float:
    """Wait until all that was acknowledged so far is settled; returns the seconds that it took.

    Raises:
        AssertionError: it does not settle; says what is in the way.
    """
    ends = {
        (each.tenant.tenant_id, partition): 1 + max(o for p, o in list(each.events) if p == partition)
        for each in sent
        for partition in {p for p, _ in list(each.events)}
    }
    began = time.monotonic()

    def reached() -> bool:
        try:
            with postgres.transaction("pulse_pipeline") as connection:
                found = {(t, p): at for t, p, at in connection.execute(SETTLED)}
        except psycopg.OperationalError:  # it is what is being harmed
            return False
        return all(found.get(where, 0) >= end for where, end in ends.items())

    try:
        wait(reached, "not everything is settled", PATIENCE_S)
    except AssertionError as error:
        stuck = [f"{batch.batch_id}: {batch.state}, {batch.last_error}" for batch in attempts.open_batches()]
        raise AssertionError(f"{error}; open batches: {stuck}") from error
    return time.monotonic() - began
