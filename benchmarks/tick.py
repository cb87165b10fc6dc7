"""Tick of the lag sensor over many tenants: its duration without and with waiting events."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import dagster as dg
import numpy as np

from pulse_pipelines import registry
from pulse_pipelines.defs.ingest.sensor import ingest_lag
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import kafka

_AT_A_TIME = 8
_WARM_UP = 2


def build(count: int) -> list[Tenant]:
    """Register tenants, each with its two topics on the real broker."""
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        return list(pool.map(registry.create_tenant, [f"b{uuid4().hex[:12]}" for _ in range(count)]))


def wait_for_events(tenants: list[Tenant]) -> None:
    """Send one event to each tenant's topic, which is not ingested."""
    producer = kafka.producer()
    for tenant in tenants:
        producer.produce(tenant.topic, b"{}")
        producer.poll(0)
    assert producer.flush(60) == 0, "the broker did not acknowledge everything"


def measure(tenants: list[Tenant], times: int) -> Iterator[tuple[str, float, float, float]]:
    """Case, and seconds of a tick: the first, p50 and p95 of the following ones."""
    for label, waiting in (("nothing waits", 0), ("a tenth waits", len(tenants) // 10), ("all wait", None)):
        wait_for_events(tenants[:waiting])
        spent = []
        cursor = None
        for _ in range(times + _WARM_UP):
            with dg.DagsterInstance.ephemeral() as instance:
                context = dg.build_sensor_context(instance=instance, cursor=cursor)
                began = time.perf_counter()
                result = ingest_lag(context)
                spent.append(time.perf_counter() - began)
            assert isinstance(result, dg.SensorResult)
            assert not result.run_requests, "nothing may be due: this is about looking"
            cursor = result.cursor
        p50, p95 = np.percentile(spent[_WARM_UP:], [50, 95])
        yield label, spent[0], float(p50), float(p95)
