"""Neighbour of an attack: collects, previews and checks readiness, in a process of its own.

Requests are due at a steady rate whether or not earlier ones are answered, and a duration counts from the due
time: a request that waits behind a slow one counts as slow, too.
"""

import asyncio
import gc
import itertools
import multiprocessing
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from typing import NamedTuple

from chaos.harm import wire
from chaos.harm.wire import CLOSED, Link
from pulse_resources.process.niceness import begin_session

COLLECT, PREVIEW, READY = "collect", "preview", "readyz"
RATES = {COLLECT: 60, PREVIEW: 8, READY: 20}
"""Requests per second."""
LARGE, EVERY = 100, 25
"""Events of a large request, and every how many requests one is sent; the others have one event."""
DATASET = "orders"
AHEAD = -10
"""Niceness: in reality the neighbour is on another machine and does not compete for these processors."""
ANSWER_S = 30.0
"""Time limit of a request."""


class Record(NamedTuple):
    """A request of the neighbour."""

    kind: str
    due: float
    """Due time by the monotonic clock, which all processes of a machine share."""
    took_s: float
    outcome: str
    """Result, as `Answer.outcome`."""
    ids: tuple[str, ...]
    """Ids of the events that it sent."""

    @property
    def well(self) -> bool:
        return self.outcome.startswith("2")


@dataclass(frozen=True)
class Place:
    """The neighbour's target in Pulse."""

    api: int
    """Port of the HTTP API."""
    key: str


class Neighbour:
    """Handle on the neighbour's process, within the block of `living`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._received: list[Record] = []

    def window(self, seconds: float) -> list[Record]:
        """Measure for some seconds; returns all requests due in that time, once they have ended.

        Raises:
            EOFError: the process died.
        """
        began = time.monotonic()
        time.sleep(seconds)
        ended = time.monotonic()
        while not (records := self._records_until(ended)):
            time.sleep(0.1)
        return [record for record in records if began <= record.due < ended]

    def _records_until(self, until: float) -> list[Record] | None:
        """All requests so far, once those due until then are answered; None: not yet."""
        self._connection.send(until)
        done, records = self._connection.recv()
        self._received += records
        return self._received if done else None

    def stop(self) -> list[Record]:
        """Stop, and return all requests ever sent."""
        self._connection.send(None)
        _, records = self._connection.recv()
        self._received += records
        return self._received


@contextmanager
def living(place: Place) -> Iterator[Neighbour]:
    """Run a neighbour while the block runs."""
    parent_end, child_end = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=live, args=(place, child_end), daemon=True)
    process.start()
    child_end.close()
    try:
        yield Neighbour(parent_end)
    finally:
        parent_end.close()
        process.join(ANSWER_S)
        process.kill()


def live(place: Place, connection: Connection) -> None:
    """Send requests until the parent closes the connection or asks for the final records."""
    gc.disable()  # garbage collection must not count as Pulse's delay
    begin_session(AHEAD)
    asyncio.run(_Life(place).live(connection))


class _Life:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._idle: list[Link] = []
        self._under_way: dict[asyncio.Task[None], float] = {}
        self._records: list[Record] = []
        self._began = time.monotonic()

    async def live(self, connection: Connection) -> None:
        streams = [asyncio.create_task(self._stream(kind, rate)) for kind, rate in RATES.items()]
        try:
            while (until := await asyncio.to_thread(connection.recv)) is not None:
                done = all(due >= until for due in self._under_way.values())
                connection.send((done, self._take_records()))
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*self._under_way)
            connection.send((True, self._take_records()))
        except EOFError:
            return

    def _take_records(self) -> list[Record]:
        records, self._records = self._records, []
        return records

    async def _stream(self, kind: str, rate: float) -> None:
        for number in itertools.count():
            due = self._began + (number + 0.5) / rate
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            task = asyncio.create_task(self._one(kind, number, due))
            self._under_way[task] = due
            task.add_done_callback(self._under_way.pop)

    async def _one(self, kind: str, number: int, due: float) -> None:
        request, ids = self._request(kind, number)
        try:
            async with asyncio.timeout(ANSWER_S):
                outcome = await self._send(request)
        except TimeoutError:
            outcome = f"no answer in {ANSWER_S:.0f} s"
        except (OSError, EOFError):
            outcome = CLOSED
        self._records.append(Record(kind, due, time.monotonic() - due, outcome, ids))

    async def _send(self, request: bytes) -> str:
        """Retry once like a careful client: an idle connection may just have been closed."""
        while self._idle:
            link = self._idle.pop()
            if not link.usable:
                continue
            try:
                return await self._send_over(link, request)
            except (ConnectionError, EOFError):
                break
        return await self._send_over(await Link.to(self._place.api), request)

    async def _send_over(self, link: Link, request: bytes) -> str:
        answer = await link.ask(request)
        link.close() if answer.last else self._idle.append(link)
        return answer.outcome

    def _request(self, kind: str, number: int) -> tuple[bytes, tuple[str, ...]]:
        if kind == PREVIEW:
            return wire.request("GET", f"/v1/datasets/{DATASET}/preview?limit=20", self._place.key), ()
        if kind == READY:
            return wire.request("GET", "/readyz"), ()
        ids = tuple(f"{number}-{n}" for n in range(1 if number % EVERY else LARGE))
        return wire.request("POST", "/v1/collect", self._place.key, [_event(id_) for id_ in ids]), ids


def _event(event_id: str) -> dict[str, object]:
    now = datetime.now(UTC).isoformat()
    return {
        "event_id": event_id,
        "dataset": DATASET,
        "timestamp": now,
        "data": {"country": "DE", "amount": 2},
    }


def p99_ms(records: Iterable[Record], kind: str) -> float:
    """p99 of the requests of a kind, from their due time, in milliseconds."""
    took = sorted(record.took_s for record in records if record.kind == kind)
    return took[min(len(took) - 1, len(took) * 99 // 100)] * 1_000


def failures(records: Sequence[Record]) -> list[str]:
    """Unacceptable responses."""
    return [f"{record.kind}: {record.outcome}" for record in records if not record.well]
