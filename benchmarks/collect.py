"""Collect over HTTP: requests of one event and of a hundred, over keep-alive connections.

The sender is as small as possible and a process of its own: it shares the two cores with the measured API.
"""

import asyncio
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from benchmarks import load
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.registry import keys


@dataclass(frozen=True)
class CollectMeasurements:
    requests_per_second: float
    events_per_second: float
    p50_ms: float
    p99_ms: float


def measure(port: int, *, events: int, connections: int, seconds: float) -> CollectMeasurements:
    """Send requests of `events` events over `connections` connections, each one after the other."""
    (tenant,) = load.make_tenants(1)
    key = keys.issue_key(tenant, "benchmark", [KeyScope.COLLECT]).text
    bodies = [_request(port, key, events) for _ in range(50)]
    arguments = [sys.executable, "-m", "benchmarks.collect", str(port), str(connections), str(seconds)]
    sender = subprocess.run(arguments, input=b"\0".join(bodies), stdout=subprocess.PIPE, check=True)
    millis = sorted(float(line) for line in sender.stdout.split())
    rate = len(millis) / seconds
    return CollectMeasurements(
        rate, rate * events, millis[len(millis) // 2], millis[min(len(millis) - 1, len(millis) * 99 // 100)]
    )


def _request(port: int, key: str, events: int) -> bytes:
    day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    lines = [load.event(number, day) for number in range(events)]
    body = lines[0] if events == 1 else b"[" + b",".join(lines) + b"]"
    head = (
        f"POST /v1/collect HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Connection(asyncio.Protocol):
    def __init__(self, bodies: list[bytes], first: int, until: float, took: list[float]) -> None:
        self._bodies, self._next, self._until, self._took = bodies, first, until, took
        self._answer = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._next += 1
        self._began = time.perf_counter()
        self._transport.write(self._bodies[self._next % len(self._bodies)])  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, separator, body = self._answer.partition(b"\r\n\r\n")
        if not separator or len(body) < int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            return
        if not self._answer.startswith(b"HTTP/1.1 202"):
            self.done.set_exception(RuntimeError(self._answer[:500].decode(errors="replace")))
            return
        self._answer = b""
        now = time.perf_counter()
        self._took.append((now - self._began) * 1000)
        if now < self._until:
            self._send()
        else:
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server closed the connection"))


async def _main(port: int, connections: int, seconds: float, bodies: list[bytes]) -> list[float]:
    loop = asyncio.get_running_loop()
    warm: list[float] = []
    took: list[float] = []
    for sink, duration in ((warm, 1.0), (took, seconds)):
        until = time.perf_counter() + duration
        pairs = [
            await loop.create_connection(
                partial(_Connection, bodies, number * 7, until, sink), "127.0.0.1", port
            )
            for number in range(connections)
        ]
        for transport, connection in pairs:
            await connection.done
            transport.close()
    return took


if __name__ == "__main__":
    address, count, duration = sys.argv[1:]
    requests_ = sys.stdin.buffer.read().split(b"\0")
    for took_ms in asyncio.run(_main(int(address), int(count), float(duration), requests_)):
        print(f"{took_ms:.2f}")
