"""Running queries on this machine, without the API: with the same limits, and recorded."""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Protocol

from pulse_pipelines.ask.read import QueryResult
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.sql import run as sql
from pulse_pipelines.sql.encoders import of_json
from pulse_pipelines.sql.limits import Limits
from pulse_pipelines.sql.pinned import Travel
from pulse_pipelines.sql.processes import Cancellable, Processes


class Query(Protocol):
    """Runs SQL as a tenant."""

    def __call__(self, text: str, travel: Travel | None = None) -> Awaitable[QueryResult]: ...


@contextmanager
def queries(tenant: Tenant) -> Iterator[Query]:
    """A function that runs SQL as a tenant, valid while the block runs.

    A query is cancelled with the task that waits for it.

    Raises:
        Terminal: SQL is off.
    """
    limits = Limits.of_settings()
    processes = Processes(limits.confinement(), ready=0)

    def run_query(text: str, travel: Travel | None, running: Cancellable) -> QueryResult:
        request = sql.QueryRequest(tenant, text, travel=travel or Travel())
        result = sql.run(processes, limits, request, running.begun)
        document = of_json(result.content)
        return QueryResult(request.query_id, document["columns"], document["rows"], result.snapshots)

    async def query(text: str, travel: Travel | None = None) -> QueryResult:
        running = Cancellable()
        try:
            return await asyncio.to_thread(run_query, text, travel, running)
        finally:
            running.cancel()

    try:
        yield query
    finally:
        processes.stop()
