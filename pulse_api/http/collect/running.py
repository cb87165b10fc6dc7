"""Placement of validation: short requests run in the event loop, the others in a worker process.

Each tenant has one large request at a time in a process, and the tenants take turns: a body of many
megabytes, or a tenant whose recent requests were expensive, delays only its own tenant.
"""

from collections.abc import Callable
from uuid import UUID

from pulse_api.http.admission.turns import turns
from pulse_api.http.collect.large import warm
from pulse_api.http.collect.rounds import Rounds
from pulse_api.http.workers import Result, Workers

SHORT_BYTES = 40 * 1024
"""Largest body, about 100 usual events, that runs in the event loop, unless one before was expensive."""
PROCESSES = 2
NICENESS = 2
"""Lower priority than small requests and previews, higher than background computation."""


class Running:
    """Runs validation in the event loop or in worker processes. Use from the event loop."""

    def __init__(self) -> None:
        self._rounds = Rounds()
        self._turns = turns("large requests", running=PROCESSES, running_of_one=1)
        self._workers = Workers(PROCESSES, warm, NICENESS)

    def short(self, tenant_id: UUID, size: int) -> bool:
        """Whether a body of `size` bytes is processed in the event loop."""
        return size <= SHORT_BYTES and not self._rounds.dear(tenant_id)

    async def in_loop(self, tenant_id: UUID, work: Callable[[], Result]) -> Result:
        """Run a short function in the event loop, in the tenant's round.

        Raises:
            ProblemError: 429, too many requests of the tenant wait; and what `work` raises.
        """
        return await self._rounds.run(tenant_id, work)

    async def in_worker(self, tenant_id: UUID, work: Callable[..., Result], *args: object) -> Result:
        """Run work in a worker process, in the tenant's turn; it, its arguments and its result are pickled.

        Raises:
            ProblemError: 429 or 503, too much of the tenant waits; and what `work` raises.
        """
        async with self._turns.take(tenant_id):
            return await self._workers.run(work, *args)

    def start(self) -> None:
        """Start the processes. Call from any thread."""
        self._workers.start()

    def stop(self) -> None:
        """End the processes, after their current work."""
        self._workers.stop()
