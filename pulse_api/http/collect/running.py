"""Where a request's events are read and judged: in the event loop while that is short, else in a process.

Each tenant has one large request at a time in a process, and the tenants take turns: a body of many
megabytes, or a tenant whose requests were dear of late, holds up itself.
"""

from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

from pulse_api.http.collect.large import warm
from pulse_api.http.collect.rounds import Rounds
from pulse_api.http.turns import turns
from pulse_api.http.workers import Workers

Result = TypeVar("Result")
SHORT_BYTES = 40 * 1024
"""A body up to this, a hundred usual events, is judged in the event loop, unless one before it was dear."""
PROCESSES = 2
NICENESS = 2
"""Behind small requests and previews, before what computes in the background."""


class Running:
    """Use from the event loop."""

    def __init__(self) -> None:
        self._rounds = Rounds()
        self._turns = turns("large requests", running=PROCESSES, running_of_one=1)
        self._workers = Workers(PROCESSES, warm, NICENESS)

    def short(self, tenant_id: UUID, size: int) -> bool:
        """Whether what a body of so many bytes asks for is done in the event loop."""
        return size <= SHORT_BYTES and not self._rounds.dear(tenant_id)

    async def here(self, tenant_id: UUID, work: Callable[[], Result]) -> Result:
        """Do what is short in the event loop, in the tenant's round.

        Raises:
            ProblemError: 429, too many requests of the tenant wait; and what `work` raises.
        """
        return await self._rounds.run(tenant_id, work)

    async def aside(self, tenant_id: UUID, work: Callable[..., Result], *args: object) -> Result:
        """Have a process do it, in the tenant's turn; function, arguments and result can be pickled.

        Raises:
            ProblemError: 429 or 503, too much of the tenant waits; and what `work` raises.
        """
        async with self._turns.take(tenant_id):
            return await self._workers.run(work, *args)

    def start(self) -> None:
        """Have the processes begin: from any thread."""
        self._workers.start()

    def stop(self) -> None:
        """End the processes, once they have done what they do."""
        self._workers.stop()
