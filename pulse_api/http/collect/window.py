"""Publish window: limit of a tenant's events in flight to the broker; further events wait.

All tenants share one connection, in order: the fewer events are in flight, the sooner the next event of any
tenant is acknowledged. The window only has to be large enough to keep the broker busy.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

EVENTS = 1_000


class Window:
    """Limits events in flight by topic. Use from the event loop. A larger request has the window alone."""

    def __init__(self, events: int = EVENTS) -> None:
        self._most = events
        self._events: Counter[str] = Counter()
        """Events in flight, by topic."""
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    @asynccontextmanager
    async def take(self, topic: str, count: int) -> AsyncIterator[None]:
        """Hold `count` events of the window while the block runs."""
        if topic in self._waiting or not self._room(topic, count):
            await self._turn(topic, count)
        else:
            self._events[topic] += count
        try:
            yield
        finally:
            self._end(topic, count)

    def _room(self, topic: str, count: int) -> bool:
        return topic not in self._events or self._events[topic] + count <= self._most

    async def _turn(self, topic: str, count: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(topic, deque()).append((count, turn))
        try:
            await turn
        except asyncio.CancelledError:  # the waiting request was cancelled
            if not turn.cancelled():  # its turn came at the same moment
                self._end(topic, count)
            raise

    def _end(self, topic: str, count: int) -> None:
        self._events[topic] -= count
        if not self._events[topic]:
            del self._events[topic]
        line = self._waiting.get(topic, deque())
        while line and (line[0][1].cancelled() or self._room(topic, line[0][0])):
            following, turn = line.popleft()
            if not turn.cancelled():
                turn.set_result(None)
                self._events[topic] += following
        if not line:
            self._waiting.pop(topic, None)
