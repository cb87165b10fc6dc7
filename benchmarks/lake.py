"""loadTable of the REST catalog over keep-alive connections."""

import asyncio
import time
from collections.abc import Iterator
from statistics import median, quantiles
from urllib.parse import urlsplit

from benchmarks import preview as previews
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import keys
from pulse_resources.settings import load_settings

SECONDS = 10.0
"""Seconds per measurement."""
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
