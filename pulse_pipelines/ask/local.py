"""Queries of questions that are asked on this machine, without the API: within the same limits, recorded."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import orjson

from pulse_pipelines.ask.read import Ran, Run
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.sql import run as sql
from pulse_pipelines.sql.limits import Limits
from pulse_pipelines.sql.pinned import Travel
from pulse_pipelines.sql.processes import Processes


@contextmanager
def runner(tenant: Tenant, key_id: str | None = None) -> Iterator[Run]:
    """Runs SQL as a tenant, while the block does.

    Raises:
        Terminal: SQL is off.
    """
    limits = Limits.of_settings()
    processes = Processes(limits.confinement(), ready=0)

    async def run(text: str) -> Ran:
        return await asyncio.to_thread(query, processes, limits, tenant, text, key_id)

    try:
        yield run
    finally:
        processes.stop()


def query(
    processes: Processes,
    limits: Limits,
    tenant: Tenant,
    text: str,
    key_id: str | None = None,
    travel: Travel | None = None,
) -> Ran:
    """What a query gives. Raises PulseError, as `sql.run`."""
    asked = sql.Asked(tenant, text, key_id=key_id, travel=travel or Travel())
    result = sql.run(processes, limits, asked)
    document = orjson.loads(result.content)
    return Ran(asked.query_id, document["columns"], document["rows"], result.snapshots)
