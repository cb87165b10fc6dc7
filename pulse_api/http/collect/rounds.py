"""Rounds of the event loop: in each, a tenant's requests have some milliseconds of it; the rest wait.

Without rounds, a client with two hundred connections would get two hundred times the share of one with one.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from pulse_api.http.admission.turns import busy

RoundResult = TypeVar("RoundResult")
ROUND_S = 0.002
"""Time of one round that a tenant may use before its next request waits for another round."""
DEAR_S = 0.03
"""Duration beyond which a request counts as expensive ..."""
REMEMBERED_S = 10.0
"""... and for how long that is remembered."""
MAX_WAITING = 1_000


@dataclass
class _Part:
    """Event loop time of one tenant."""

    used_s: float = 0.0
    """In the current round."""
    last_s: float = ROUND_S
    """CPU time of the last request, in seconds."""
    waiting: "deque[asyncio.Future[None]]" = field(default_factory=deque)


class Rounds:
    """Shares event loop time between tenants. Use from the event loop."""

    def __init__(self) -> None:
        self._parts: dict[UUID, _Part] = {}
        self._dear_until: dict[UUID, float] = {}
        self._going_on = False
        """Whether the next round is scheduled."""

    async def run(self, tenant_id: UUID, work: Callable[[], RoundResult]) -> RoundResult:
        """Run a function that does not await, once the tenant has time left in a round.

        Raises:
            ProblemError: 429, too many requests of the tenant wait.
        """
        part = self._parts.get(tenant_id)
        if part is not None and (part.used_s >= ROUND_S or part.waiting):
            await self._turn(part)
        part = self._parts.setdefault(tenant_id, _Part())
        self._schedule_round()
        began = time.thread_time()  # CPU time of other threads does not count
        try:
            return work()
        finally:
            part.last_s = max(time.thread_time() - began, 1e-6)
            part.used_s += part.last_s
            if part.last_s > DEAR_S:
                self._dear_until[tenant_id] = time.monotonic() + REMEMBERED_S

    def dear(self, tenant_id: UUID) -> bool:
        """Whether a recent request of the tenant was expensive."""
        until = self._dear_until.get(tenant_id)
        if until is not None and until < time.monotonic():
            del self._dear_until[tenant_id]
        return tenant_id in self._dear_until

    async def _turn(self, part: _Part) -> None:
        if len(part.waiting) >= MAX_WAITING:
            raise busy(429, f"{MAX_WAITING:,} requests of the tenant wait already")
        turn = asyncio.get_running_loop().create_future()
        part.waiting.append(turn)
        await turn

    def _schedule_round(self) -> None:
        if not self._going_on:
            self._going_on = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Begin a round: resume as many requests of each tenant as are expected to fill it."""
        self._going_on = False
        for tenant_id, part in list(self._parts.items()):
            if not part.waiting:
                del self._parts[tenant_id]
                continue
            part.used_s = 0.0
            for _ in range(min(len(part.waiting), max(1, int(ROUND_S / part.last_s)))):
                turn = part.waiting.popleft()
                if not turn.done():  # else the waiting request was cancelled
                    turn.set_result(None)
        if self._parts:
            self._schedule_round()
