"""`pulse mcp`: the MCP server over standard input and output, for a tenant of this installation."""

import asyncio

import typer

from pulse_api.cli.arguments import TenantSlug
from pulse_pipelines import registry
from pulse_pipelines.ask import local

app = typer.Typer()


@app.command("mcp")
def serve(tenant: TenantSlug) -> None:
    """Serve a tenant's lake to an MCP client, over standard input and output.

    Over HTTP, the API serves the same at /mcp to anyone with a key.

    Example: pulse mcp acme
    """
    from pulse_api.mcp import stdio

    owner = registry.find_tenant(tenant)
    with local.queries(owner) as query:
        asyncio.run(stdio.serve(owner, query, asyncio.to_thread))
