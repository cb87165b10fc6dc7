"""State of the HTTP app between requests: caches, limits, the Kafka publisher, metrics."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from enum import Enum

from starlette.requests import Request

from pulse_api.http import telemetry
from pulse_api.http.admission.rate_shares import RateShares
from pulse_api.http.admission.turns import Whom, turns
from pulse_api.http.background import run_forever
from pulse_api.http.collect.body_memory import BodyMemory
from pulse_api.http.collect.publisher import Publisher
from pulse_api.http.collect.reservations import Reservations
from pulse_api.http.collect.running import Running
from pulse_api.http.keyring import Keyring
from pulse_api.http.queries import Queries
from pulse_api.http.readiness import Readiness, check_services
from pulse_api.http.tenant_accounts import keep_accounts
from pulse_api.http.workers import CHANGES, CHANGES_BYTES, Result, Workers
from pulse_pipelines.query import preview
from pulse_resources.settings import load_settings

PARTS = 2
"""Transactions of parts of syncs at a time."""


class Kind(Enum):
    """Kinds of work that take turns: threads that hold a Postgres connection, or a DuckDB instance."""

    PREVIEW = "previews"
    SQL = "queries"
    ASK = "questions"
    OTHER = "requests"


class AppState(Keyring):
    """State of the HTTP app; one instance per process."""

    def __init__(self) -> None:
        super().__init__()
        self._rate_shares = RateShares(self.rates)
        self.reservations = Reservations()
        self.publisher = Publisher()
        self.readiness = Readiness(check_services)
        self.traced = telemetry.on()
        settings = load_settings()
        api, sql, ask = settings.api, settings.sql, settings.ask
        self.body_memory = BodyMemory(api.max_held_bytes, api.max_held_bytes_per_tenant)
        self.queries = Queries(self.views)
        self.results = BodyMemory(sql.held_bytes, sql.held_bytes // 4)
        """Bytes of query results, until they are sent."""
        self.running = Running()
        self.turns = {
            kind: turns(kind.value, running=running, running_of_one=max(1, running // 2))
            for kind, running in (
                (Kind.PREVIEW, api.preview_parallelism),
                (Kind.SQL, sql.parallelism),
                (Kind.ASK, ask.parallelism),
                (Kind.OTHER, api.parallelism),
            )
        }
        self.per_second = {
            Kind.PREVIEW: api.previews_per_second,
            Kind.SQL: sql.per_second,
            Kind.ASK: ask.per_second,
            Kind.OTHER: api.other_requests_per_second,
        }
        self.changes_per_second = api.changes_per_second
        """Changes per second of one tenant, and the seconds' worth that it may request at once."""
        self.burst_seconds = api.burst_seconds
        self.previews = Workers(api.preview_parallelism, preview.warm)
        many = api.change_parallelism
        self._changes = Workers(many, _do_nothing, CHANGES, memory_bytes=CHANGES_BYTES)
        self._changing = turns("changes", running=many, running_of_one=max(1, many // 2))
        long = api.long_change_parallelism
        self._long_changes = Workers(long, _do_nothing, CHANGES, api.long_change_seconds, CHANGES_BYTES)
        self._changing_long = turns("long changes", running=long, running_of_one=1)

        # A part may wait for locks of a batch of its tenant that settles: in threads of no one else.
        self._part_threads = ThreadPoolExecutor(PARTS, "part")
        self._part_turns = turns("parts of syncs", running=PARTS, running_of_one=1)

    async def sync_part(self, whom: Whom, work: Callable[..., Result], *args: object) -> Result:
        """Run a transaction of a part of a sync in a thread, in the tenant's turn, which ends after it.

        Raises:
            ProblemError: as `change`.
        """
        async with self._part_turns.take(whom):
            running = asyncio.wrap_future(self._part_threads.submit(copy_context().run, work, *args))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                await asyncio.wait([running])
                raise

    async def change(self, whom: Whom, work: Callable[..., Result], *args: object) -> Result:
        """Run a change that is expensive to compute in a worker process, in the tenant's turn.

        Raises:
            ProblemError: 429 or 503, too much of the tenant's work waits; and whatever `work` raises.
        """
        async with self._changing.take(whom):
            return await self._changes.run(work, *args)

    async def change_long(self, whom: Whom, work: Callable[..., Result], *args: object) -> Result:
        """As `change`, for what waits for services of tenants or reads a table: beside all other changes.

        Raises:
            Transient: it took longer than the settings allow.
            ProblemError: as `change`.
        """
        async with self._changing_long.take(whom):
            return await self._long_changes.run(work, *args)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Run all background services while the block runs; accepted events are flushed at its end."""
        self.publisher.start()
        await asyncio.to_thread(self.previews.start)
        await asyncio.to_thread(self.running.start)
        await asyncio.to_thread(self.queries.start)
        works = (self._rate_shares.keep, self.queries.watch, keep_accounts)
        repeated = [asyncio.create_task(run_forever(work)) for work in works]
        try:
            async with self.keys_open():
                yield
        finally:
            for task in repeated:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            await asyncio.to_thread(self._rate_shares.leave)
            await asyncio.to_thread(self.publisher.stop)
            await asyncio.to_thread(self.readiness.stop)
            await asyncio.to_thread(self.queries.stop)
            await asyncio.to_thread(self.running.stop)
            await asyncio.to_thread(self.previews.stop)
            await asyncio.to_thread(self._part_threads.shutdown)
            await asyncio.to_thread(self._changes.stop)
            await asyncio.to_thread(self._long_changes.stop)


def _do_nothing() -> None:
    pass


def app_state(request: Request) -> AppState:
    """The state of this request's app."""
    pulse: AppState = request.app.state.pulse
    return pulse
