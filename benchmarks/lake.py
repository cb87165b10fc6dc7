"""loadTable and commits of the REST catalog over keep-alive connections."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median, quantiles
from urllib.parse import urlsplit

import httpx

from benchmarks import preview as previews
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import keys
from pulse_resources.settings import load_settings

SECONDS = 10.0
"""Seconds per measurement."""
COMMITS = 120
"""To each table, one after the other."""
COMMITTED = (1, 8)
"""Tables at a time."""
AT_ONCE = (1, 16)
"""Concurrent connections."""


def build() -> Tenant:
    """Make a tenant whose table has 120 snapshots."""
    return previews.build(12_000)


def measure(tenant: Tenant, table: str) -> Iterator[tuple[int, float, float, float, int]]:
    """Connections, requests per second, p50 and p99 in milliseconds, bytes of an answer."""
    key = keys.issue_key(tenant, "benchmark", [KeyScope.LAKE_READ]).text
    for connections in AT_ONCE:
        asyncio.run(_asked(connections, 1.0, key, table))
        spent, size = asyncio.run(_asked(connections, SECONDS, key, table))
        each = quantiles(spent, n=100)
        yield connections, len(spent) / SECONDS, median(spent) * 1000, each[98] * 1000, size


def commits(tenant: Tenant) -> Iterator[tuple[int, int, float, float, float]]:
    """Tables committed to at a time, commits to each, commits per second, p50 and p99 in milliseconds.

    A commit adds a snapshot, as an engine's append does after it has written its files.
    """
    key = keys.issue_key(tenant, "benchmark", [KeyScope.LAKE_READ, KeyScope.LAKE_WRITE]).text
    catalog = load_settings().lake.linked_url
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=catalog, headers=headers, timeout=60) as client:
        client.post("/v1/namespaces", json={"namespace": ["own"]}).raise_for_status()
    for tables in COMMITTED:
        with ThreadPoolExecutor(tables) as pool:
            began = time.monotonic()
            spent = [
                each
                for found in pool.map(
                    lambda n: _commit(catalog, headers, n), [f"t{tables}_{n}" for n in range(tables)]
                )
                for each in found
            ]
            rate = len(spent) / (time.monotonic() - began)
        each = quantiles(spent, n=100)
        yield tables, COMMITS, rate, median(spent) * 1000, each[98] * 1000


def _commit(catalog: str, headers: dict[str, str], name: str) -> list[float]:
    spent: list[float] = []
    schema = {"type": "struct", "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
    with httpx.Client(base_url=f"{catalog}/v1/namespaces/own", headers=headers, timeout=60) as client:
        made = client.post("/tables", json={"name": name, "schema": schema}).raise_for_status().json()
        location = made["metadata"]["location"]
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


async def _asked(connections: int, seconds: float, key: str, table: str) -> tuple[list[float], int]:
    found = await asyncio.gather(*(_ask(seconds, key, table) for _ in range(connections)))
    return [each for spent, _ in found for each in spent], found[0][1]


async def _ask(seconds: float, key: str, table: str) -> tuple[list[float], int]:
    at = urlsplit(load_settings().lake.linked_url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    path = f"/v1/namespaces/events/tables/{table}"
    request = f"GET {path} HTTP/1.1\r\nHost: {at.netloc}\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
    spent: list[float] = []
    size, until = 0, time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200"), head
        size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(size)
        spent.append(time.monotonic() - began)
    writer.close()
    await writer.wait_closed()
    return spent, size
