"""Where a request's events are read and judged: in the event loop while that is short, else in a thread.

The one thread has one request at a time, of each tenant in turn: a body of many megabytes, or a tenant whose
requests were dear of late, holds up itself.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from uuid import UUID

from pulse_api.http.collect.rounds import Rounds
from pulse_api.http.turns import turns

Result = TypeVar("Result")
SHORT_BYTES = 256 * 1024
"""A body up to this is judged in the event loop, unless another of the tenant was dear."""


class Running:
    """Use from the event loop."""

    def __init__(self) -> None:
        self._rounds = Rounds()
        self._turns = turns("large requests", running=1, running_of_one=1)
        self._thread = ThreadPoolExecutor(1, "large-requests")

    async def run(self, tenant_id: UUID, size: int, work: Callable[[], Result]) -> Result:
        """Do what a body of so many bytes asks for.

        Raises:
            ProblemError: 429 or 503, too much of the tenant waits; and what `work` raises.
        """
        if size <= SHORT_BYTES and not self._rounds.dear(tenant_id):
            return await self._rounds.run(tenant_id, work)
        async with self._turns.take(tenant_id):
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def stop(self) -> None:
        """End the thread, once it has done what it does."""
        self._thread.shutdown()
