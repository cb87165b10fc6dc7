"""`pulse pipe`: pipes from tables, files, feeds and queries to datasets, and from datasets to sinks."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from pulse_api.cli import interrupted
from pulse_api.cli.arguments import TenantSlug, read
from pulse_api.cli.guard import FAILED, UNDECIDED
from pulse_api.cli.output import AsJson, emit, emit_or_say, remark, say, show_fields, show_table
from pulse_api.cli.sync import OUTCOME, outcome
from pulse_pipelines import pipes, registry
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.syncs import SyncState
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import syncs
from pulse_pipelines.manifest.document import load
from pulse_resources.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    help="Pipes: copy tables, files, feeds and query results into datasets, and datasets to sinks.",
)

Name = Annotated[str, typer.Argument(help="The pipe's name.")]
POLL_S = 0.5
Ended = TypeVar("Ended")


@app.command("create")
def create_pipe(
    tenant: TenantSlug,
    file: Annotated[
        Path,
        typer.Argument(help="YAML definition, see docs/pipes.md; - for standard input.", allow_dash=True),
    ],
    as_json: AsJson = False,
) -> None:
    """Create a pipe. If its dataset does not exist, create it with a schema derived from the source.

    With `timestamp` in the definition, append-only rows become events. With `from` and `to`, the pipe copies
    a dataset of entities to a table of Postgres or to a service.

    Example: pulse pipe create acme planes.yaml
    """
    owner = registry.find_tenant(tenant)
    document = load(read(file, "pipe"), f"the file {file}")
    if not isinstance(document, dict):
        raise UserError("the file does not define a pipe", file=str(file))
    pipe = pipes.create(owner, definition(document))
    if as_json:
        emit(pipe.document)
    elif pipe.definition.delivers:
        say(f"pipe {pipe.name} copies the dataset {pipe.dataset} to {pipe.definition.other_end}")
    else:
        say(f"pipe {pipe.name} copies {pipe.definition.other_end} into the dataset {pipe.dataset}")
        if pipe.computes:
            say(f"a run computes {pipe.computes}")


@app.command("run")
def run_pipe(
    tenant: TenantSlug,
    name: Name,
    full: Annotated[
        bool, typer.Option("--full", help="Read all rows, and delete entities that are missing.")
    ] = False,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until its rows have settled, or have reached the sink."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Request a run of a pipe, paused or not. It starts as soon as a place is free.

    With --wait, exit code 3 means that a person has to confirm deletions: see `pulse sync commit`.

    Example: pulse pipe run acme planes --wait
    """
    owner = registry.find_tenant(tenant)
    pipe = pipes.find(owner, name)
    out = pipe.definition.delivers
    before = pipes.last_delivery(pipe) if out else pipes.last_sync(pipe)
    done, last = None, None
    with interrupted.leaves(interrupted.PIPE_RUN, tenant=owner.slug, pipe=name):
        pipes.ask(owner, name, full=full)
        if wait and out:
            done = _await_outcome(lambda: pipes.delivered(owner, name, after=before))
        elif wait:
            last = _await_outcome(lambda: pipes.ended(owner, name, after=before))
    if done is not None:
        line = f"{done.state}: {done.upserted} written, {done.deleted} deleted, {done.refused} refused"
        emit_or_say(done, line, as_json)
    elif last is not None:
        line = (
            f"{last.state}: {last.created} new, {last.changed} changed, {last.unchanged} unchanged, "
            f"{last.deleted} deleted, {last.refused} refused"
        )
        emit_or_say(last, line, as_json)
        _check_sync(owner, last)
    else:
        line = f"pipe {name} runs as soon as a place is free. See: pulse pipe status {tenant} {name}"
        emit_or_say({"pipe": name, "done": "asked"}, line, as_json)


def _await_outcome(read_outcome: "Callable[[], Ended | None]") -> "Ended":
    """The outcome of a run, once it has ended."""
    while (outcome := read_outcome()) is None:
        time.sleep(POLL_S)
    return outcome


def _check_sync(owner: Tenant, sync: "syncs.Sync") -> None:
    """Raises typer.Exit: a person has to decide about the sync, or some of its rows are lost."""
    if sync.state == SyncState.HELD:
        remark(f"It deletes nothing until a person decides: {sync.reason}")
        sync_named = f"{owner.slug} {sync.dataset} {sync.sync_id}"
        remark(f"Decide with: pulse sync commit {sync_named}, or pulse sync rollback {sync_named}")
        raise typer.Exit(UNDECIDED)
    if sync.state == SyncState.FAILED:
        remark(
            f"The rows that it sent land, nothing is deleted, and the next run reads the rest: {sync.reason}"
        )
        raise typer.Exit(FAILED)


@app.command("list")
def list_pipes(tenant: TenantSlug, as_json: AsJson = False) -> None:
    """List a tenant's pipes.

    Example: pulse pipe list acme
    """
    listed = pipes.list_pipes(registry.find_tenant(tenant))
    if as_json:
        emit([pipe.document for pipe in listed])
        return
    rows = (
        (
            pipe.name,
            str(pipe.document["direction"]),
            str(pipe.definition.other_end),
            pipe.dataset,
            pipe.definition.other_end.mode,
            pipe.state,
            pipe.settled_at,
            pipe.behind,
            pipe.position,
            pipe.error,
        )
        for pipe in listed
    )
    columns = (
        "pipe",
        "direction",
        "other end",
        "dataset",
        "mode",
        "state",
        "settled",
        "behind",
        "position",
        "error",
    )
    spare = ("position", "mode", "behind", "other end", "direction")
    show_table(columns, rows, empty="No pipes yet: pulse pipe create", spare=spare)


@app.command("status")
def show_pipe(tenant: TenantSlug, name: Name, as_json: AsJson = False) -> None:
    """Show a pipe: its progress, how far it is behind its source, and the results of its last runs.

    Example: pulse pipe status acme planes
    """
    owner = registry.find_tenant(tenant)
    pipe = pipes.find(owner, name)
    out = pipe.definition.delivers
    recent = [] if out else syncs.list_syncs(owner, pipe.dataset, 10)
    runs = pipes.list_deliveries(owner, name, 10) if out else []
    counts = pipes.last_day(owner).get((owner.tenant_id, name), pipes.LastDay())._asdict()
    if as_json:
        emit(pipe.document | {"last_day": counts, "syncs": recent, "deliveries": runs})
        return
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())
    fields = pipe.document | {"last_24_hours": outcomes}
    show_fields((key.replace("_", " "), value) for key, value in fields.items() if value not in (None, ""))
    if out:
        show_table(
            ("begun", "kind", "state", "versions", "written", "deleted", "refused", "reason"),
            (
                (
                    run.begun_at,
                    "full" if run.is_full else "partial",
                    run.state,
                    run.versions,
                    run.upserted,
                    run.deleted,
                    run.refused,
                    run.reason,
                )
                for run in runs
            ),
            empty="It has not run yet",
            spare=("begun", "versions"),
        )
        return
    rows = ((sync.begun_at, *outcome(sync)) for sync in recent)
    columns = ("begun", *OUTCOME)
    show_table(columns, rows, empty="It has not run yet", spare=("begun", "unchanged"))


@app.command("pause")
def pause_pipe(tenant: TenantSlug, name: Name, as_json: AsJson = False) -> None:
    """Pause the scheduled runs of a pipe; `pulse pipe run` still works.

    Example: pulse pipe pause acme planes
    """
    pipes.pause(registry.find_tenant(tenant), name, paused=True)
    emit_or_say({"pipe": name, "done": "paused"}, f"pipe {name} is paused", as_json)


@app.command("resume")
def resume_pipe(tenant: TenantSlug, name: Name, as_json: AsJson = False) -> None:
    """Resume the scheduled runs of a paused pipe.

    Example: pulse pipe resume acme planes
    """
    pipes.pause(registry.find_tenant(tenant), name, paused=False)
    emit_or_say({"pipe": name, "done": "resumed"}, f"pipe {name} runs on its schedule again", as_json)


@app.command("reset")
def reset_pipe(tenant: TenantSlug, name: Name, as_json: AsJson = False) -> None:
    """Make the next run of a pipe read everything again, and delete missing entities, but no events.

    Example: pulse pipe reset acme planes
    """
    pipes.reset(registry.find_tenant(tenant), name)
    emit_or_say({"pipe": name, "done": "reset"}, f"the next run of pipe {name} reads all rows", as_json)


@app.command("delete")
def delete_pipe(
    tenant: TenantSlug,
    name: Name,
    leave_slot: Annotated[
        bool,
        typer.Option(
            "--leave-slot", help="Do not contact the source, which no longer exists; its slot stays."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a pipe, and its slot in the source. Its dataset stays as it is.

    Example: pulse pipe delete acme planes
    """
    pipes.delete(registry.find_tenant(tenant), name, leave_slot=leave_slot)
    emit_or_say({"pipe": name, "done": "deleted"}, f"pipe {name} is deleted; its dataset stays", as_json)
