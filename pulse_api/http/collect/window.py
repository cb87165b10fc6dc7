"""The window: how many events of one tenant are on their way to the broker; those beyond it wait for it.

All tenants share one way there and back, and what is on it already comes first: the shorter it is, the
sooner everybody's next event is acknowledged. Enough for the broker to be busy is enough.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

EVENTS = 1_000


class Window:
    """Use from the event loop. A request with more events than a window has one for itself."""

    def __init__(self, events: int = EVENTS) -> None:
        self._most = events
        self._events: Counter[str] = Counter()
        """By topic: events on their way."""
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    @asynccontextmanager
    async def take(self, topic: str, count: int) -> AsyncIterator[None]:
        """So many events are on their way while the block runs."""
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
        except asyncio.CancelledError:  # who waited is gone
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
