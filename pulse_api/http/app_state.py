"""What the app keeps between requests: caches, limits, the way to the broker, measures."""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from enum import Enum
from uuid import UUID

import psycopg
from starlette.requests import Request

from pulse_api.http import telemetry
from pulse_api.http.collect.held import Held
from pulse_api.http.collect.publisher import Publisher
from pulse_api.http.collect.reservations import Reservations
from pulse_api.http.collect.running import Running
from pulse_api.http.rate_shares import RateShares
from pulse_api.http.rates import Rates
from pulse_api.http.readiness import Readiness, look
from pulse_api.http.turns import Whom, turns
from pulse_api.http.views import Views
from pulse_api.http.workers import CHANGES, Result, Workers
from pulse_pipelines.query import preview
from pulse_pipelines.registry import keys
from pulse_resources.settings import load_settings

TOUCH_EVERY_S = 5.0
MAX_KEYS = 20_000


class Kind(Enum):
    """What takes turns: work in threads that holds a connection to Postgres, or an instance of DuckDB."""

    PREVIEW = "previews"
    OTHER = "requests"


_log = logging.getLogger("pulse.api")


class AppState:
    """One per process."""

    def __init__(self) -> None:
        self.views = Views()
        self.rates = Rates()
        self._rate_shares = RateShares(self.rates)
        self.reservations = Reservations()
        self.publisher = Publisher()
        self.readiness = Readiness(look)
        self.traced = telemetry.on()
        api = load_settings().api
        self.held = Held(api.max_held_bytes, api.max_held_bytes_per_tenant)
        self.running = Running()
        self.lookups = turns("requests with a key that is not known", running=4, running_of_one=2)
        """By key or, where that is new, by address: whoever tries keys waits for himself."""
        self.turns = {
            kind: turns(kind.value, running=running, running_of_one=max(1, running // 2))
            for kind, running in ((Kind.PREVIEW, api.preview_parallelism), (Kind.OTHER, api.parallelism))
        }
        self.per_second = {
            Kind.PREVIEW: api.previews_per_second,
            Kind.OTHER: api.other_requests_per_second,
        }
        self.changes_per_second = api.changes_per_second
        """Of one tenant; and the seconds whose worth it may ask for at once."""
        self.burst_seconds = api.burst_seconds
        self.previews = Workers(api.preview_parallelism, preview.warm)
        many = api.change_parallelism
        self._changes = Workers(many, _nothing, CHANGES)
        self._changing = turns("changes", running=many, running_of_one=max(1, many // 2))
        self._opened: dict[str, None] = {}
        """Keys that were in force, in the order of their first use."""
        self._used: dict[UUID | None, dict[str, datetime]] = defaultdict(dict)

    async def change(self, whom: Whom, work: Callable[..., Result], *args: object) -> Result:
        """Have a process do what changes something and computes much, in the tenant's turn.

        Raises:
            ProblemError: 429 or 503, too much of the tenant waits; and what `work` raises.
        """
        async with self._changing.take(whom):
            return await self._changes.run(work, *args)

    def used(self, tenant_id: UUID | None, key_id: str) -> None:
        """Note that a key was used; written down every few seconds."""
        self._used[tenant_id][key_id] = datetime.now(UTC)
        self._opened[key_id] = None
        if len(self._opened) > MAX_KEYS:
            self._opened.pop(next(iter(self._opened)))

    def asking(self, request: Request, key_id: str) -> str:
        """In whose line a look-up waits: of a key that was in force before, else of an address."""
        if key_id in self._opened or request.client is None:
            return key_id
        return request.client.host

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Everything runs while the block does; what was accepted is flushed at its end."""
        self.views.start()
        self.publisher.start()
        await asyncio.to_thread(self.previews.start)
        await asyncio.to_thread(self.running.start)
        repeated = [asyncio.create_task(work()) for work in (self._touch_keys, self._rate_shares.keep)]
        try:
            yield
        finally:
            for task in repeated:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            await asyncio.to_thread(self._rate_shares.leave)
            await self._write_used()
            await asyncio.to_thread(self.publisher.stop)
            await asyncio.to_thread(self.views.stop)
            await asyncio.to_thread(self.readiness.stop)
            await asyncio.to_thread(self.running.stop)
            await asyncio.to_thread(self.previews.stop)
            await asyncio.to_thread(self._changes.stop)

    async def _touch_keys(self) -> None:
        while True:
            await asyncio.sleep(TOUCH_EVERY_S)
            await self._write_used()

    async def _write_used(self) -> None:
        used, self._used = self._used, defaultdict(dict)
        try:
            await asyncio.to_thread(keys.touch_keys, used)
        except psycopg.Error as error:
            _log.warning("the last use of keys is noted later: %s", error)
            for tenant_id, times in used.items():
                self._used[tenant_id] = times | self._used[tenant_id]


def _nothing() -> None:
    pass


def app_state(request: Request) -> AppState:
    """The state of this request's app."""
    found: AppState = request.app.state.pulse
    return found
