"""loadTable and commits of the REST catalog over keep-alive connections."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlsplit

import httpx

from benchmarks import preview as previews
from benchmarks.peers import reference_catalog
from pulse_pipelines import registry
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import keys
from pulse_resources.settings import load_settings

SECONDS = 10.0
"""Seconds per measurement."""
WARM_UP = 5.0
"""Seconds before it: a JVM compiles meanwhile."""
COMMITS = 120
"""To each table, one after the other."""
COMMITTED = (1, 8)
"""Tables at a time."""
AT_ONCE = (1, 16)
"""Concurrent connections."""


@dataclass(frozen=True)
class Catalog:
    """A REST catalog, and how to ask it."""

    url: str
    headers: Mapping[str, str]

    def client(self, path: str = "") -> httpx.Client:
        """A client of paths below one."""
        return httpx.Client(base_url=f"{self.url}/v1{path}", headers=dict(self.headers), timeout=60)


def build() -> Tenant:
    """Make a tenant whose table has 120 snapshots."""
    return previews.build(12_000)


def ours(tenant: Tenant) -> Catalog:
    """Pulse's catalog, with a key of the tenant."""
    key = keys.issue_key(tenant, "benchmark", [KeyScope.LAKE_READ, KeyScope.LAKE_WRITE]).text
    return Catalog(load_settings().lake.linked_url, {"Authorization": f"Bearer {key}"})


@contextmanager
def reference(tenant: Tenant, table: str, log: Path) -> Iterator[Catalog]:
    """Apache's reference server, in which the tenant's table is registered under the same names."""
    location = registry.current_table(tenant, table).metadata_location
    with reference_catalog.serving(log) as url:
        catalog = Catalog(url, {})
        with catalog.client() as client:
            client.post("/namespaces", json={"namespace": ["events"]}).raise_for_status()
            entered = {"name": table, "metadata-location": location}
            client.post("/namespaces/events/register", json=entered).raise_for_status()
        yield catalog


def measure(catalog: Catalog, table: str) -> Iterator[tuple[int, float, float, float, int]]:
    """Connections, requests per second, p50 and p99 in milliseconds, bytes of an answer."""
    for connections in AT_ONCE:
        asyncio.run(_ask_concurrently(catalog, connections, WARM_UP, table))
        spent, size = asyncio.run(_ask_concurrently(catalog, connections, SECONDS, table))
        hundredths = quantiles(spent, n=100)
        yield connections, len(spent) / SECONDS, median(spent) * 1000, hundredths[98] * 1000, size


def commits(catalog: Catalog) -> Iterator[tuple[int, int, float, float, float]]:
    """Tables committed to at a time, commits to each, commits per second, p50 and p99 in milliseconds.

    A commit adds a snapshot, as an engine's append does after it has written its files.
    """
    with catalog.client() as client:
        client.post("/namespaces", json={"namespace": ["own"]}).raise_for_status()
    for tables in COMMITTED:
        with ThreadPoolExecutor(tables) as pool:
            began = time.monotonic()
            names = [f"t{tables}_{number}" for number in range(tables)]
            times = pool.map(lambda name: _commit(catalog, name), names)
            spent = [seconds for of_table in times for seconds in of_table]
            rate = len(spent) / (time.monotonic() - began)
        hundredths = quantiles(spent, n=100)
        yield tables, COMMITS, rate, median(spent) * 1000, hundredths[98] * 1000


def _commit(catalog: Catalog, name: str) -> list[float]:
    spent: list[float] = []
    schema = {"type": "struct", "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
    with catalog.client("/namespaces/own") as client:
        table = client.post("/tables", json={"name": name, "schema": schema}).raise_for_status().json()
        location = table["metadata"]["location"]
        for number in range(1, COMMITS + 1):
            snapshot = {
                "snapshot-id": number,
                "sequence-number": number,
                "timestamp-ms": int(time.time() * 1000),
                "manifest-list": f"{location}/metadata/snap-{number}.avro",
                "summary": {"operation": "append"},
                "schema-id": 0,
            }
            ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number}
            updates = [{"action": "add-snapshot", "snapshot": snapshot}, ref]
            began = time.monotonic()
            client.post(f"/tables/{name}", json={"requirements": [], "updates": updates}).raise_for_status()
            spent.append(time.monotonic() - began)
    return spent


async def _ask_concurrently(
    catalog: Catalog, connections: int, seconds: float, table: str
) -> tuple[list[float], int]:
    answers = await asyncio.gather(*(_ask(catalog, seconds, table) for _ in range(connections)))
    return [duration for spent, _ in answers for duration in spent], answers[0][1]


async def _ask(catalog: Catalog, seconds: float, table: str) -> tuple[list[float], int]:
    at = urlsplit(catalog.url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    lines = [f"GET /v1/namespaces/events/tables/{table} HTTP/1.1", f"Host: {at.netloc}"]
    lines += [f"{name}: {value}" for name, value in catalog.headers.items()]
    request = "\r\n".join([*lines, "", ""]).encode()
    spent: list[float] = []
    size, until = 0, time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200"), head
        size = await _read(reader, head)
        spent.append(time.monotonic() - began)
    writer.close()
    await writer.wait_closed()
    return spent, size


async def _read(reader: asyncio.StreamReader, head: bytes) -> int:
    """Read an answer's body; its bytes."""
    if b"transfer-encoding: chunked" not in head:
        size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(size)
        return size
    total = 0
    while chunk := int(await reader.readline(), 16):
        await reader.readexactly(chunk + 2)
        total += chunk
    await reader.readexactly(2)
    return total
