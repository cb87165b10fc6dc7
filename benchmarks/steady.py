"""Freshness under a steady load: from accepted by the broker to queryable."""

import time
from datetime import UTC, datetime

from rich.console import Console

from benchmarks import load
from pulse_api.demo.report import freshness
from pulse_api.demo.run import ledger, wait_until_settled
from pulse_resources import kafka

PERIOD_S = 0.1
WARM_EVENTS = 10_000


def measure(console: Console, *, tenants: int, rate: int, seconds: float) -> tuple[float, float]:
    """p50 and p95 in seconds, over all rows of a load of `rate` events per second over all tenants."""
    owners = load.make_tenants(tenants)
    before = ledger(owners)
    load.send(console, owners, WARM_EVENTS)  # start-up work must not count for a batch
    wait_until_settled(console, owners, before, WARM_EVENTS)
    before, since = ledger(owners), datetime.now(UTC)
    day = since.replace(hour=0, minute=0, second=0, microsecond=0)
    producer, sent = kafka.producer(), 0
    began = time.monotonic()
    with console.status(f"{rate:,} events/s for {seconds:.0f} s"):
        while (passed := time.monotonic() - began) < seconds:
            while sent < passed * rate:
                producer.produce(owners[sent % tenants].topic, load.event(sent, day))
                sent += 1
            producer.poll(0)
            time.sleep(PERIOD_S)
        assert producer.flush(60) == 0, "the broker did not acknowledge everything"
    wait_until_settled(console, owners, before, sent)
    return freshness(owners, since)
