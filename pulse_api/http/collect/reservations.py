"""Records of the month, reserved before they are published: exact, and one round trip for many requests.

While one reservation of a tenant is under way, the requests that come meanwhile wait and are then
reserved together; each is answered by itself.
"""

import asyncio
from dataclasses import dataclass, field
from uuid import UUID

from pulse_pipelines.domain.quota import limited
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import quotas


@dataclass
class _Line:
    waiting: list[tuple[int, "asyncio.Future[bool]"]] = field(default_factory=list)
    busy: bool = False


class Reservations:
    """Use from the event loop."""

    def __init__(self) -> None:
        self._lines: dict[UUID, _Line] = {}

    async def reserve(self, tenant: Tenant, count: int, maximum: int) -> bool:
        """Whether the tenant's month has room for `count` more records, which are then its own."""
        if not limited(maximum):
            return True
        line = self._lines.setdefault(tenant.tenant_id, _Line())
        verdict: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        line.waiting.append((count, verdict))
        if not line.busy:
            line.busy = True
            asyncio.create_task(self._serve(tenant, line, maximum))  # noqa: RUF006 - it is awaited by verdict
        return await verdict

    async def _serve(self, tenant: Tenant, line: _Line, maximum: int) -> None:
        while line.waiting:
            taken, line.waiting = line.waiting, []
            counts = [count for count, _ in taken]
            try:
                found = await asyncio.to_thread(quotas.admit_records, tenant, counts, maximum)
            except Exception as error:  # every one who waits must hear of it
                for _, verdict in taken:
                    if not verdict.done():
                        verdict.set_exception(error)
                continue
            for (count, verdict), fits in zip(taken, found, strict=True):
                if not verdict.done():
                    verdict.set_result(fits)
                elif fits:  # the client has gone
                    await self.give_back(tenant, count, maximum)
        line.busy = False
        self._lines.pop(tenant.tenant_id, None)

    async def give_back(self, tenant: Tenant, count: int, maximum: int) -> None:
        """Undo a reservation of records that were not published."""
        if limited(maximum):
            await asyncio.to_thread(quotas.give_back, tenant, count)
