"""SQL queries of this process: each runs in a process of its own, awaited by a thread, and can be cancelled.

A query ends when its caller disconnects, when it is cancelled, here or in another API process, or when the
key that started it is no longer in force.
"""

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

import psycopg

from pulse_api.http.admission.turns import turns
from pulse_api.http.problems import ProblemError
from pulse_api.http.views import Views
from pulse_api.http.workers import CHANGES, CHANGES_BYTES, Workers
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import parsing
from pulse_pipelines.sql import audit, pinned
from pulse_pipelines.sql.limits import Limits
from pulse_pipelines.sql.pinned import PinnedTable
from pulse_pipelines.sql.processes import Cancellable, CancelledError, Processes
from pulse_pipelines.sql.run import QueryRequest, Result, run
from pulse_resources.errors import PulseError, Transient
from pulse_resources.process.faults import fail_point
from pulse_resources.settings import load_settings

_log = logging.getLogger("pulse.api")

LARGE = 2
"""Processes that resolve tables whose metadata is large; each begins with the first of these."""


@dataclass(eq=False)
class _Running(Cancellable):
    """A query under way."""

    request: QueryRequest
    _tables: "Future[Sequence[PinnedTable]] | None" = None

    def wait_for(self, tables: "Future[Sequence[PinnedTable]]") -> Sequence[PinnedTable]:
        """Wait for tables that are resolved elsewhere. Raises CancelledError: the query was cancelled."""
        self._tables = tables
        if self._cancelled:
            tables.cancel()
        try:
            return tables.result()
        except futures.CancelledError:
            raise CancelledError from None

    def cancel(self) -> None:
        super().cancel()
        if self._tables is not None:
            self._tables.cancel()


class Queries:
    """Running queries of this process. Use from the event loop."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._limits = Limits.of_settings()
        self._processes: Processes | None = None
        self._off = PulseError("queries cannot start yet")
        self._turns = turns("queries of tables with large metadata", running=LARGE, running_of_one=1)
        self._large = Workers(LARGE, os.getpid, CHANGES, memory_bytes=CHANGES_BYTES)
        self._threads = ThreadPoolExecutor(load_settings().sql.parallelism, "sql")
        self._running: set[_Running] = set()
        self._reserved: set[tuple[UUID, str]] = set()

    def start(self) -> None:
        """Start processes in advance, if queries can run here. Call from any thread."""
        try:
            self._processes = Processes(self._limits.confinement(), load_settings().sql.ready)
        except PulseError as error:
            self._off = error
            _log.warning("%s", error)
            return
        self._processes.fill()

    def stop(self) -> None:
        """End all running queries. Call from any thread."""
        for query in list(self._running):
            query.cancel()
        self._threads.shutdown(cancel_futures=True)
        self._large.stop()
        if self._processes is not None:
            self._processes.stop()

    @contextmanager
    def reserve(self, request: QueryRequest) -> Iterator[None]:
        """Reserve a query's id while the block runs, so that another one with it need not wait for a turn.

        Raises:
            Conflict: a query of the tenant that waits or runs here has it.
        """
        name = (request.tenant.tenant_id, request.query_id)
        if name in self._reserved:
            raise audit.exists(request.query_id)
        self._reserved.add(name)
        try:
            yield
        finally:
            self._reserved.discard(name)

    async def run(self, request: QueryRequest) -> Result:
        """Run a query and return its result. It is cancelled with the task that calls this.

        Raises:
            ProblemError: 501, queries cannot run here.
            PulseError: as `run.run`.
        """
        if self._processes is None:
            raise ProblemError(501, "switched-off", self._off.message, fix=self._off.fix)
        loop, query = asyncio.get_running_loop(), _Running(request)
        self._running.add(query)
        try:
            return await loop.run_in_executor(
                self._threads,
                run,
                self._processes,
                self._limits,
                request,
                query.begun,
                partial(self._pin, loop, query),
            )
        finally:
            query.cancel()
            self._running.discard(query)

    def _pin(
        self, loop: asyncio.AbstractEventLoop, query: _Running, tenant: Tenant, *names: Any
    ) -> Sequence[PinnedTable]:
        """Resolve tables; those with large metadata in another process: to parse it holds up this one.

        Args:
            loop: waits for the tenant's turn; this is a thread of queries.
            query: while it waits, it can be cancelled.
            names: as the further arguments of `pinned.tables`.
        """
        with suppress(parsing.Large), parsing.only_small():
            return pinned.tables(tenant, *names)
        return query.wait_for(asyncio.run_coroutine_threadsafe(self._pin_large(tenant, *names), loop))

    async def _pin_large(self, tenant: Tenant, *names: Any) -> Sequence[PinnedTable]:
        try:
            async with self._turns.take(tenant.tenant_id):
                return await self._large.run(pinned.tables, tenant, *names)
        except ProblemError as error:  # of the turns: the record of the query has the reason, too
            raise Transient(error.detail, fix=error.fix) from None

    def cancel(self, tenant_id: UUID, query_id: str) -> None:
        """Cancel a query, if it runs here."""
        for query in self._running:
            if query.request.tenant.tenant_id == tenant_id and query.request.query_id == query_id:
                query.cancel()

    async def watch(self) -> None:
        """Periodically end queries that were cancelled in another process, or whose key is out of force."""
        while True:
            await asyncio.sleep(load_settings().sql.look_seconds)
            try:
                await self._end_cancelled()
            except psycopg.Error as error:
                _log.warning("whether queries were cancelled is looked at later: %s", error)

    async def _end_cancelled(self) -> None:
        fail_point("sql.look")
        by_tenant = defaultdict[Tenant, list[_Running]](list)
        for query in self._running:
            by_tenant[query.request.tenant].append(query)
        for tenant, running in by_tenant.items():
            ids = [query.request.query_id for query in running]
            ended = await asyncio.to_thread(audit.cancelled, tenant, ids)
            keys = await self._views.keys(tenant.tenant_id)
            for query in running:
                key = keys.get(query.request.key_id or "")
                if query.request.query_id in ended or key is None or not key.in_force(datetime.now(UTC)):
                    query.cancel()
