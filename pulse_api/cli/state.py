"""`pulse state`: the newest event of each key of a dataset of events."""

from typing import Annotated

import typer

from pulse_api.cli.arguments import DatasetSlug, TenantSlug
from pulse_api.cli.output import AsJson, emit, remark, say, show_table
from pulse_pipelines import registry
from pulse_pipelines.domain.quota import STATE_KEYS

app = typer.Typer(no_args_is_help=True, help="States: the newest event of each key of a dataset of events.")


@app.command("declare")
def declare_state(
    tenant: TenantSlug,
    slug: DatasetSlug,
    latest_by: Annotated[str, typer.Argument(help="The key: a property that is a text or an integer.")],
    max_keys: Annotated[int, typer.Option(help="Keys that it has, at most.")] = STATE_KEYS,
    as_json: AsJson = False,
) -> None:
    """Declare a dataset's state and build it from the table; one that is there is built on, if need be.

    Example: pulse state declare acme flights tail_number
    """
    owner = registry.find_tenant(tenant)
    registry.event_states.declare(owner, slug, latest_by, max_keys)
    registry.event_state_build.build(
        owner, slug, lambda done, of: remark(f"{done:,} of {of:,} files are read")
    )
    found = registry.event_states.find(owner, slug)
    if as_json:
        emit(found)
    else:
        say(f"the state by {found.latest_by} has {found.keys:,} keys")


@app.command("show")
def show_state(
    tenant: TenantSlug,
    slug: DatasetSlug,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Keys that are shown.")] = 20,
    after: Annotated[str | None, typer.Option(help="Show the keys after this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a dataset's state: the newest event of each key, by key.

    Example: pulse state show acme flights --limit 5
    """
    found, newest = registry.event_states.page(registry.find_tenant(tenant), slug, after, limit)
    if as_json:
        emit({"about": found, "state": newest})
        return
    rows = ((each.key, each.timestamp, each.event_id, each.data or "(too large)") for each in newest)
    show_table((found.latest_by, "timestamp", "event", "data"), rows, empty="No key yet", spare=("event",))
    remark(f"{found.keys:,} of at most {found.max_keys:,} keys; left out {found.left_out:,} times")
    if not found.complete:
        remark("It lacks events of the table: pulse state declare builds it")


@app.command("drop")
def drop_state(tenant: TenantSlug, slug: DatasetSlug, as_json: AsJson = False) -> None:
    """Drop a dataset's state. The events stay in the table.

    Example: pulse state drop acme flights
    """
    column = registry.event_states.drop(registry.find_tenant(tenant), slug)
    if as_json:
        emit({"dropped": column})
    else:
        say(f"the state by {column} is dropped")
