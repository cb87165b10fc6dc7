"""`pulse sync`: a dataset's syncs and their outcomes, and the decision on a held sync."""

from typing import Annotated

import typer

from pulse_api.cli.arguments import DatasetSlug, TenantSlug
from pulse_api.cli.output import AsJson, emit, emit_or_say, show_table
from pulse_pipelines import registry
from pulse_pipelines.entities import syncs

app = typer.Typer(
    no_args_is_help=True, help="Syncs: parts that were sent to a dataset of entities as one unit."
)

OUTCOME = ("kind", "state", "new", "changed", "unchanged", "deleted", "refused", "reason")
"""Columns of a sync's outcome in tables."""

Number = Annotated[int, typer.Argument(help="The sync, by its number in `pulse sync list`.")]


def outcome(sync: "syncs.Sync") -> tuple[object, ...]:
    """The cells of `OUTCOME`."""
    kind = "full" if sync.is_full else "partial"
    counts = (sync.created, sync.changed, sync.unchanged, sync.deleted, sync.refused)
    return (kind, sync.state, *counts, sync.reason)


@app.command("list")
def list_syncs(tenant: TenantSlug, slug: DatasetSlug, as_json: AsJson = False) -> None:
    """List a dataset's syncs, the latest first.

    Example: pulse sync list acme countries
    """
    recent = syncs.list_syncs(registry.find_tenant(tenant), slug)
    if as_json:
        emit(recent)
        return
    rows = ((sync.begun_at, sync.sync_id, *outcome(sync)) for sync in recent)
    columns = ("begun", "sync", *OUTCOME)
    show_table(columns, rows, empty="No sync of this dataset yet", spare=("begun", "refused", "unchanged"))


@app.command("commit")
def commit_sync(tenant: TenantSlug, slug: DatasetSlug, sync: Number, as_json: AsJson = False) -> None:
    """Let a held sync delete entities that it did not contain and that were not sent since it began.

    Example: pulse sync commit acme countries 7
    """
    decided = syncs.decide(registry.find_tenant(tenant), slug, sync, commit=True)
    line = f"sync {sync} deletes the entities missing from it. See: pulse sync list {tenant} {slug}"
    emit_or_say(decided, line, as_json)


@app.command("rollback")
def roll_back_sync(tenant: TenantSlug, slug: DatasetSlug, sync: Number, as_json: AsJson = False) -> None:
    """Let a held sync delete nothing; the entities that it contained stay.

    Example: pulse sync rollback acme countries 7
    """
    decided = syncs.decide(registry.find_tenant(tenant), slug, sync, commit=False)
    emit_or_say(decided, f"sync {sync} deletes nothing", as_json)


@app.command("limit")
def limit_syncs(
    tenant: TenantSlug,
    slug: DatasetSlug,
    share: Annotated[float, typer.Argument(help="A number between 0 and 1; 0.2 by default.")],
    as_json: AsJson = False,
) -> None:
    """Set the share of entities that a full sync may delete without confirmation.

    Example: pulse sync limit acme countries 0.5
    """
    syncs.allow(registry.find_tenant(tenant), slug, share)
    emit_or_say(
        {"deletes_most": share},
        f"a full sync of {slug} that would delete more than {share:.0%} is held",
        as_json,
    )
