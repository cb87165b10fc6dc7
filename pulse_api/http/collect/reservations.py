"""Monthly quota reservations, made before events are published: exact, one round trip for many requests.

Requests that arrive while a reservation of their tenant is under way wait and are then reserved
together; each gets its own answer.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import psycopg

from pulse_api.http.collect.publisher import Outgoing
from pulse_pipelines.domain.quota import limited
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import intake
from pulse_pipelines.registry.intake import Reserved

_log = logging.getLogger("pulse.api")


class _Request(NamedTuple):
    events: list[bytes]
    maximum: int
    verdict: "asyncio.Future[list[Reserved] | None]"


@dataclass
class _Line:
    waiting: list[_Request] = field(default_factory=list)
    busy: bool = False


class Reservations:
    """Batches reservations by tenant. Use from the event loop."""

    def __init__(self) -> None:
        self._lines: dict[UUID, _Line] = {}

    async def reserve(
        self, tenant: Tenant, events: Sequence[Outgoing], maximum: int
    ) -> Sequence[Reserved] | None:
        """Reserved places in the tenant's month, empty where no quota holds; None: the quota has no room."""
        if not limited(maximum):
            return ()
        line = self._lines.setdefault(tenant.tenant_id, _Line())
        verdict: asyncio.Future[list[Reserved] | None] = asyncio.get_running_loop().create_future()
        line.waiting.append(_Request([event.identity for event in events], maximum, verdict))
        if not line.busy:
            line.busy = True
            asyncio.create_task(self._serve(tenant, line))  # noqa: RUF006 - awaited through `verdict`
        return await verdict

    async def _serve(self, tenant: Tenant, line: _Line) -> None:
        while line.waiting:
            requests, line.waiting = line.waiting, []
            counts = [request.events for request in requests]
            maximum = requests[-1].maximum  # the latest request has the latest limit
            try:
                granted = await asyncio.to_thread(intake.reserve, tenant, counts, maximum)
            except Exception as error:  # each waiting request must get the error
                for request in requests:
                    if not request.verdict.done():
                        request.verdict.set_exception(error)
                continue
            for request, reserved in zip(requests, granted, strict=True):
                if not request.verdict.done():
                    request.verdict.set_result(reserved)
                elif reserved:  # the request was cancelled
                    await self.release(tenant, reserved, sent=0)
        line.busy = False
        self._lines.pop(tenant.tenant_id, None)

    async def release(self, tenant: Tenant, reserved: Sequence[Reserved], sent: int) -> None:
        """Return places of events that were not sent, and record those that may have been written."""
        if not reserved:
            return
        try:
            await asyncio.to_thread(intake.release, tenant, reserved, sent)
        except psycopg.Error as error:
            _log.warning("tenant %s: a reservation stays that was not used up: %s", tenant.slug, error)
