"""`pulse source`: addresses of the databases, buckets and services that pipes read and write."""

import sys
from typing import Annotated

import typer

from pulse_api.cli.arguments import TenantSlug
from pulse_api.cli.output import AsJson, emit, emit_or_say, say, show_table
from pulse_pipelines import pipes, registry

app = typer.Typer(
    no_args_is_help=True,
    help="Sources: addresses, with credentials, of what pipes read and write.",
)

SourceName = Annotated[str, typer.Argument(help="The source's name, as pipes write it: letters and digits.")]


@app.command("set")
def set_source(
    tenant: TenantSlug,
    name: SourceName,
    untested: Annotated[
        bool, typer.Option("--untested", help="Store the address without connecting to it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Store the address of a source, after connecting to it; an earlier address is replaced.

    The address is read from standard input, or asked for without being shown, so that no list of processes
    has it. It is kept in a file that only Pulse may read. An address is one of:
    a connection string of Postgres; s3://key:secret@bucket/prefix?endpoint=...&region=...; or
    https://user:password@host/path, where the user `bearer` stands for a token.

    Example: printf %s "$SHOP" | pulse source set acme shop
    """
    owner = registry.find_tenant(tenant)
    address = (
        typer.prompt("Address", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.read()
    ).strip()
    answer = None if untested else pipes.connections.answer_of(address)
    replaced = pipes.connections.store(owner, name, address)
    if as_json:
        emit(
            {
                "source": name,
                "kind": pipes.connections.kind_of(address),
                "replaced": replaced,
                "answer": answer,
            }
        )
    else:
        say(f"{'replaced' if replaced else 'stored'} the source {name}" + (f": {answer}" if answer else ""))


@app.command("list")
def list_sources(tenant: TenantSlug, as_json: AsJson = False) -> None:
    """List the sources of a tenant with the pipes that use them, without their addresses.

    Example: pulse source list acme
    """
    listed = pipes.connections.list_connections(registry.find_tenant(tenant))
    if as_json:
        emit([{"source": s.name, "kind": s.kind, "stored_in": s.stored_in, "pipes": s.pipes} for s in listed])
        return
    rows = [(source.name, source.kind, source.stored_in, ", ".join(source.pipes)) for source in listed]
    show_table(
        ("source", "kind", "stored in", "pipes"), rows, empty=f"{tenant} has no sources: see pulse source set"
    )


@app.command("test")
def try_source(tenant: TenantSlug, name: SourceName, as_json: AsJson = False) -> None:
    """Connect to a source, and show what answers. Nothing is written there.

    Example: pulse source test acme shop
    """
    answer = pipes.connections.answer_of(pipes.addresses.url(registry.find_tenant(tenant), name))
    emit_or_say({"source": name, "answer": answer}, answer, as_json)


@app.command("remove")
def remove_source(tenant: TenantSlug, name: SourceName, as_json: AsJson = False) -> None:
    """Remove the address of a source that no pipe uses.

    Example: pulse source remove acme shop
    """
    pipes.connections.remove(registry.find_tenant(tenant), name)
    emit_or_say({"source": name, "removed": True}, f"removed the source {name}", as_json)
