"""Turns: limited concurrency for expensive work, with round robin over the tenants.

A tenant with many requests delays only its own, and is refused at once when too many of them wait already.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from pulse_api.http.problems import RETRY_S, ProblemError
from pulse_resources.settings import load_settings

Whom = UUID | str | None
"""A tenant; None: the operators; a key or an address where no tenant is known yet."""


class Turns:
    """Fair limiter of concurrent work. Use from the event loop.

    Args:
        what: name of the work in the plural, for messages: "previews".
        running: maximum at a time.
        running_of_one: maximum at a time of one tenant.
        waiting_of_one: waiting requests of one tenant; a further one is refused at once.
        seconds: maximum wait for a turn.
    """

    def __init__(
        self, name: str, *, running: int, running_of_one: int, waiting_of_one: int, seconds: float
    ) -> None:
        self._name = name
        self._free = running
        self._running_of_one = running_of_one
        self._waiting_of_one = waiting_of_one
        self._seconds = seconds
        self._running: Counter[Whom] = Counter()
        self._waiting: dict[Whom, deque[asyncio.Future[None]]] = {}
        """Waiting requests by tenant, in the order of their turns."""

    @asynccontextmanager
    async def take(self, whom: Whom) -> AsyncIterator[None]:
        """Wait for the caller's turn, which lasts while the block runs.

        Raises:
            ProblemError: 429, too many of the caller's requests wait; 503, its turn did not come in time.
        """
        await self._begin(whom)
        try:
            yield
        finally:
            self._end(whom)

    async def _begin(self, whom: Whom) -> None:
        line = self._waiting.setdefault(whom, deque())
        if len(line) >= self._waiting_of_one:
            raise busy(429, f"{len(line)} {self._name} of yours wait for their turn already")
        turn = asyncio.get_running_loop().create_future()
        line.append(turn)
        self._next()
        if turn.done():
            return
        try:
            async with asyncio.timeout(self._seconds):
                await turn
        except TimeoutError:
            self._leave(whom, turn)
            detail = f"of the {self._name}, this one's turn did not come in {self._seconds:g} s"
            raise busy(503, detail) from None
        except BaseException:  # the waiting caller was cancelled
            self._leave(whom, turn)
            raise

    def _leave(self, whom: Whom, turn: "asyncio.Future[None]") -> None:
        if not turn.cancelled():  # its turn came at the same moment
            self._end(whom)
            return
        line = self._waiting.get(whom, deque())
        if turn in line:
            line.remove(turn)
        if not line:
            self._waiting.pop(whom, None)

    def _end(self, whom: Whom) -> None:
        self._free += 1
        self._running[whom] -= 1
        if not self._running[whom]:
            del self._running[whom]
        if (line := self._waiting.pop(whom, None)) is not None:
            self._waiting[whom] = line  # to the end, behind tenants that came meanwhile, too
        self._next()

    def _next(self) -> None:
        """Start waiting work: one request of each tenant before the second of any."""
        while self._free:
            able = [whom for whom in self._waiting if self._running[whom] < self._running_of_one]
            if not able:
                return
            whom, line = able[0], self._waiting.pop(able[0])
            turn = line.popleft()
            if line:
                self._waiting[whom] = line
            if not turn.cancelled():
                turn.set_result(None)
                self._free -= 1
                self._running[whom] += 1


def turns(name: str, *, running: int, running_of_one: int) -> Turns:
    """Turns whose queue length and timeout come from the settings."""
    api = load_settings().api
    return Turns(
        name,
        running=running,
        running_of_one=running_of_one,
        waiting_of_one=api.max_waiting,
        seconds=api.wait_seconds,
    )


def busy(status: int, detail: str) -> ProblemError:
    """The problem of a limit on concurrent work."""
    return ProblemError(
        status,
        "busy",
        detail,
        fix="Send fewer requests at a time, and repeat this one after Retry-After",
        headers={"Retry-After": str(RETRY_S)},
    )
