"""SQL over a table of many rows, by one caller sequentially and by many of many tenants concurrently."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import numpy as np

from benchmarks import load
from chaos import api
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import keys

QUERIES = {
    "count": f"SELECT count(*) AS n FROM {load.DATASET}",
    "group by a text": f"SELECT country, sum(amount) AS s, max(seats) AS m FROM {load.DATASET} GROUP BY ALL",
    "group by a day, two columns": (
        "SELECT timestamp::DATE AS day, plan, count(*) AS n, avg(amount) AS a "
        f"FROM {load.DATASET} GROUP BY ALL ORDER BY ALL"
    ),
    "one day, newest 100 rows": (
        f"SELECT id, timestamp, country, amount FROM {load.DATASET} "
        "WHERE timestamp >= '2026-11-20' AND timestamp < '2026-11-21' ORDER BY timestamp DESC LIMIT 100"
    ),
    "1,000 distinct ids": f"SELECT DISTINCT id FROM {load.DATASET} LIMIT 1000",
}
PER_TENANT = 5
COLD = f"SELECT country, sum(amount) AS s FROM {load.DATASET} GROUP BY ALL"


@contextmanager
def server() -> Iterator[str]:
    """Run the API in a process of its own without rate limits; yields its address."""
    os.environ["PULSE_SQL__PER_SECOND"] = "-1"
    with api.served() as port:
        yield f"http://127.0.0.1:{port}"


def client(url: str, tenant: Tenant) -> httpx.Client:
    """Client with a read key of the tenant."""
    key = keys.issue_key(tenant, "benchmark", [KeyScope.READ]).text
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60)


def measure(tenant: Tenant, times: int) -> Iterator[tuple[str, float, float, float]]:
    """Query, and milliseconds: the first one of a new server, then p50 and p95."""
    for label, sql in QUERIES.items():
        with server() as url, client(url, tenant) as asking:
            spent = [_time_query(asking, sql) for _ in range(times + 1)]
        p50, p95 = np.percentile(spent[1:], [50, 95])
        yield label, spent[0], float(p50), float(p95)


def _time_query(asking: httpx.Client, sql: str) -> float:
    began = time.perf_counter()
    asking.post("/v1/sql", json={"sql": sql}).raise_for_status()
    return (time.perf_counter() - began) * 1_000


@dataclass(frozen=True)
class Together:
    """Measurements of concurrent queries."""

    statuses: Counter[int]
    seconds: float
    slowest_first: float
    """Latest first answer of a tenant, in seconds; and the range of their last ones:"""
    earliest_last: float
    latest_last: float


def together(tenants: Sequence[Tenant]) -> Together:
    """Send each tenant's queries at the same moment."""
    statuses, ends = Counter[int](), {tenant.slug: list[float]() for tenant in tenants}
    begin = threading.Barrier(len(tenants) * PER_TENANT + 1)
    with server() as url:

        def ask(tenant: Tenant, key: str) -> None:
            headers = {"Authorization": f"Bearer {key}"}
            with httpx.Client(base_url=url, headers=headers, timeout=60) as asking:
                begin.wait()
                since = time.perf_counter()
                statuses[asking.post("/v1/sql", json={"sql": COLD}).status_code] += 1
                ends[tenant.slug].append(time.perf_counter() - since)

        issued = {tenant: keys.issue_key(tenant, "benchmark", [KeyScope.READ]).text for tenant in tenants}
        threads = [
            threading.Thread(target=ask, args=tenant_and_key)
            for tenant_and_key in issued.items()
            for _ in range(PER_TENANT)
        ]
        for thread in threads:
            thread.start()
        begin.wait()
        for thread in threads:
            thread.join()
    last = [max(times) for times in ends.values()]
    return Together(statuses, max(last), max(map(min, ends.values())), min(last), max(last))
