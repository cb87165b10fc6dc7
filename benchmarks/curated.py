"""Curated zone: a history of days that all changed, computed and committed at once."""

import time
from datetime import UTC, datetime, timedelta

from rich.console import Console

from benchmarks import load
from benchmarks.steps import run_batch
from pulse_pipelines.curated import rollups
from pulse_pipelines.curated.due import due_days
from pulse_pipelines.curated.run import curate
from pulse_resources import kafka, spark

EVENTS_OF_DAY = 20


def measure(console: Console, tenants: int, days: int) -> tuple[int, float, float]:
    """Number of computed cells (tenant, day, rollup), and seconds of the first and of the second time.

    Raises:
        AssertionError: a day could not be computed.
    """
    owners = load.make_tenants(tenants)
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    spent = []
    for _ in range(2):
        with console.status(f"{tenants} tenants × {days} days"):
            producer = kafka.producer()
            for owner in owners:
                for back in range(days):
                    for number in range(EVENTS_OF_DAY):
                        producer.produce(owner.topic, load.event(number, today - timedelta(back)))
                    producer.poll(0)
            assert producer.flush(120) == 0, "the broker did not acknowledge everything"
            run_batch(owners)
        due = due_days(rollups.team_rollups(), datetime.min.replace(tzinfo=UTC)).days
        with spark.session() as session, console.status(f"{len(due):,} days of a dataset"):
            began = time.monotonic()
            done = curate(session, due)
            spent.append(time.monotonic() - began)
        assert not done.failures, done.failures[0]
    return len(done.days), spent[0], spent[1]
