"""Services that are gone, slow, hanging, cut or killed under load: Pulse must recover by itself."""

import random
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial

from chaos import oracle, refusing
from chaos.load import SCHEMAS
from chaos.oracle import Finding
from chaos.scenario import Outcome, ReportProgress
from chaos.sent import Sent
from chaos.stack import Stack
from chaos.surroundings import with_settings
from chaos.traffic import Traffic, settled_until
from pulse_pipelines import registry
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.maintenance.policy import Need
from pulse_pipelines.maintenance.run import run as upkeep
from pulse_resources import spark

BEFORE_S, AFTER_S = 8.0, 5.0
"""Seconds of traffic before and after a fault."""
UPKEEP_S = 300.0

Fault = Callable[[Stack, random.Random], None]
"""Harms the stack and restores it; returns when the harm is over."""


def run(fault: Fault, stack: Stack, seed: int, amount: float, report_progress: ReportProgress) -> Outcome:
    """Apply the fault under load, and wait for recovery.

    Raises:
        AssertionError: it does not recover.
    """
    traffic = Traffic.of_new_tenants(seed, api=True)
    with traffic.flowing():
        time.sleep(BEFORE_S)
        began = time.monotonic()
        fault(stack, random.Random(seed))
        lasted = time.monotonic() - began
        recovered = settled_until(traffic.sent)
        time.sleep(AFTER_S)
    settled_until(traffic.sent)
    return Outcome(traffic.sent, f"{lasted:.0f} s", _orphans(traffic.sent), recovered)


def _orphans(sent: Sequence[Sent]) -> list[Finding]:
    """Check that upkeep removes the orphans left in the object store (the oracle then reads the rest)."""
    with with_settings(UPKEEP__ORPHAN_HOURS=0), spark.session() as session:
        for owner in sent:
            tenant = owner.tenant
            needs = [
                Need(tenant, registry.find_dataset(tenant, slug).dataset_id, slug, Task.ORPHANS, "chaos", 1)
                for slug in SCHEMAS
            ]
            deadline = time.monotonic() + UPKEEP_S
            while needs:
                done = list(upkeep(lambda: session, needs, run_id=None, seconds=UPKEEP_S))
                # Dagster's own upkeep may hold a table: then this one is skipped.
                skipped = {task.dataset for task in done if task.outcome == "skipped"}
                passed = {task.dataset for task in done if task.outcome == "done"}
                problem = f"the removal of orphans of {tenant.slug} did not succeed: {done}"
                assert passed | skipped == {need.slug for need in needs}, problem
                assert time.monotonic() < deadline, problem
                needs = [need for need in needs if need.slug in skipped]
    return oracle.orphans(sent)


def _store_cut_off(stack: Stack, draw: random.Random) -> None:
    with stack.minio.cut_off():
        time.sleep(120)


def _store_slow(stack: Stack, draw: random.Random) -> None:
    with stack.minio.toxic("latency", latency=300, jitter=300), stack.minio.toxic("bandwidth", rate=200):
        time.sleep(60)


def _store_hangs(stack: Stack, draw: random.Random) -> None:
    with stack.minio.toxic("timeout", timeout=0):
        time.sleep(60)


def _store_cut(stack: Stack, draw: random.Random) -> None:
    """Cut off the responses of executed requests."""
    with stack.minio.toxic("limit_data", toxicity=0.3, bytes=1):
        time.sleep(60)


def _store_refuses(stack: Stack, draw: random.Random) -> None:
    with refusing.server() as port:
        for _ in range(30):
            with stack.minio.elsewhere(port):
                time.sleep(draw.uniform(0.2, 1.5))
            time.sleep(draw.uniform(0.2, 1.5))


def _postgres_cut_off(stack: Stack, draw: random.Random) -> None:
    with stack.postgres.cut_off():
        time.sleep(120)


def _postgres_restarts(stack: Stack, draw: random.Random) -> None:
    for _ in range(3):
        stack.end("postgres", signal.SIGINT)
        time.sleep(draw.uniform(5, 10))


def _postgres_crashes(stack: Stack, draw: random.Random) -> None:
    for _ in range(3):
        stack.end("postgres", signal.SIGKILL)
        time.sleep(draw.uniform(5, 10))


def _kafka_restarts(stack: Stack, draw: random.Random) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        stack.end("kafka", number)
        time.sleep(draw.uniform(10, 15))


def _kafka_down(stack: Stack, draw: random.Random) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        stack.end("kafka", signal.SIGKILL)
        time.sleep(1)


def _services_killed(stack: Stack, draw: random.Random) -> None:
    for _ in range(2):
        for name in draw.sample(["spark", "dagster-code", "dagster-daemon", "api"], 4):
            stack.end(name, signal.SIGKILL)
            time.sleep(draw.uniform(1, 8))


def _everything_killed(stack: Stack, draw: random.Random) -> None:
    """Kill all processes at once, like a power failure."""
    stack.power_cut()


def _clock(part: str, stack: Stack, draw: random.Random) -> None:
    for hours in draw.sample((-1, 1), 2):
        with stack.clocks[part].wrong_by(hours):
            time.sleep(40)
        time.sleep(5)


def _disk_full(disk: str, stack: Stack, draw: random.Random) -> None:
    with stack.full(disk):
        time.sleep(60)


FAULTS: dict[str, Fault] = {
    "object store gone for 2 minutes": _store_cut_off,
    "object store slow for a minute": _store_slow,
    "object store hangs for a minute": _store_hangs,
    "object store cuts 3 of 10 connections at their first answer, for a minute": _store_cut,
    "object store answers 503 every other second, for a minute": _store_refuses,
    "Postgres gone for 2 minutes": _postgres_cut_off,
    "Postgres restarted three times": _postgres_restarts,
    "Postgres killed three times": _postgres_crashes,
    "Postgres' disk full for a minute": partial(_disk_full, "postgres"),
    "Kafka restarted, then killed": _kafka_restarts,
    "Kafka gone for 2 minutes": _kafka_down,
    "Spark, code server, daemon and API killed, twice": _services_killed,
    "power cut: every process killed at once": _everything_killed,
    "Spark's scratch disk full for a minute": partial(_disk_full, "scratch"),
    "disk of Kafka, Spark, Dagster and all logs full for a minute": partial(_disk_full, "main"),
}
CLOCKS: dict[str, Fault] = {
    "clock of Postgres an hour wrong, both ways": partial(_clock, "storage"),
    "clock of Dagster, its runs and the API an hour wrong, both ways": partial(_clock, "main"),
}
