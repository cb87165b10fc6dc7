"""The MCP server over standard input and output, for one tenant, to the user who starts it."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server.stdio import stdio_server

from pulse_api.mcp.server import Context, server
from pulse_api.mcp.session import Session
from pulse_pipelines.ask.local import Query
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources.errors import PulseError

_log = logging.getLogger("pulse.mcp")


async def serve(
    tenant: Tenant, query: Query, run_blocking: Callable[[Callable[[], Any]], Awaitable[Any]]
) -> None:
    """Serve until the client closes its end."""
    session = Session(tenant, query, run_blocking)
    serving = server(lambda _: session, _explained)
    async with stdio_server() as (read, write):
        await serving.run(read, write, serving.create_initialization_options())


def _explained(_: Context, error: Exception) -> PulseError:
    _log.error("a tool failed", exc_info=error)
    return PulseError(f"internal error of Pulse: {type(error).__name__}", fix="pulse doctor says more")
