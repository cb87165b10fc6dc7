"""`pulse console`: the address of a tenant's console, with a key in its fragment."""

import webbrowser
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from pulse_api.cli.arguments import TenantSlug, duration
from pulse_api.cli.output import AsJson, emit, remark
from pulse_api.console import HOME
from pulse_pipelines import registry
from pulse_pipelines.domain.key import KeyScope
from pulse_resources import settings

app = typer.Typer()
READERS = (KeyScope.READ, KeyScope.LAKE_READ)
MANAGERS = (KeyScope.READ, KeyScope.LAKE_READ, KeyScope.MANAGE)


@app.command("console")
def open_console(
    tenant: TenantSlug,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Let the key read only: no replays, no keys.")
    ] = False,
    expires_in: Annotated[
        timedelta,
        typer.Option(parser=duration, metavar="DURATION", help="Let the key expire after this time."),
    ] = "1h",  # type: ignore[assignment] # typer parses the default, too
    browser: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Open it in a browser. Other users of this machine can see the browser's arguments.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the address of a tenant's console, with a key of one hour.

    The key is in the fragment of the address, which a browser sends to no server; the console removes it from
    the address bar at once.

    Example: pulse console acme
    """
    scopes = READERS if read_only else MANAGERS
    owner = registry.find_tenant(tenant)
    issued = registry.keys.issue_key(owner, "console", scopes, datetime.now(UTC) + expires_in)
    address = f"{settings.load_settings().api.linked_url}{HOME}#key={issued.text}"
    if as_json:
        emit({"address": address, "key_id": issued.stored.key_id, "expires_at": issued.stored.expires_at})
    else:
        typer.echo(address)
    if browser:
        webbrowser.open(address)
    remark(f"With a new key: pulse key revoke {tenant} {issued.stored.key_id}")
