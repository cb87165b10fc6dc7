"""`pulse schema`: schemas of a tenant's events."""

from datetime import date
from pathlib import Path
from typing import Annotated

import orjson
import typer

from pulse_api.cli import complete
from pulse_api.cli.arguments import TenantSlug, day, read
from pulse_api.cli.guard import FAILED
from pulse_api.cli.output import AsJson, emit, remark, say, show_table, working, write
from pulse_pipelines import backfill, registry
from pulse_pipelines.domain.schemas import shorthand
from pulse_pipelines.domain.schemas.cost import Bound
from pulse_pipelines.domain.schemas.examination import examine
from pulse_resources.errors import NotFound, meant
from pulse_resources.settings import load_settings

app = typer.Typer(
    no_args_is_help=True, help="JSON Schemas that a tenant publishes; a published version never changes."
)


@app.command("publish")
def publish_schema(
    tenant: TenantSlug,
    name: Annotated[str, typer.Argument(help="Name of the schema; versions count up.")],
    file: Annotated[Path, typer.Argument(help="Schema file; - for standard input.", allow_dash=True)],
    as_json: AsJson = False,
) -> None:
    """Publish a JSON Schema as the next version of NAME and print its address.

    Drafts 2020-12 (if $schema names none), 2019-09, 7, 6 and 4, or the shorthand that the example shows.
    Publishing the same document again prints its existing address.

    Example: echo '{"fields": {"country": "string", "at": "timestamp"}}' | pulse schema publish acme orders -
    """
    published = registry.publish_schema(
        registry.find_tenant(tenant), name, shorthand.write_out(read(file, "schema"))
    )
    if as_json:
        emit(published.version_entry | {"created": published.created})
        return
    typer.echo(published.schema_uri)
    if not published.created:
        remark("The same document is published already.")


@app.command("check")
def check_schema(
    file: Annotated[Path, typer.Argument(help="Schema file; - for standard input.", allow_dash=True)],
    as_json: AsJson = False,
) -> None:
    """Show the columns of a schema, and the most that an event can cost, without publishing it.

    Needs no running stack. If the schema would be refused, the error says why.

    Example: pulse schema check docs/examples/orders.json
    """
    ingest = load_settings().ingest
    bound = Bound(ingest.max_event_bytes, ingest.max_schema_seconds)
    examination = examine(shorthand.write_out(read(file, "schema")), bound)
    declared, worst = examination.columns, examination.largest_event_seconds
    if as_json:
        rows = [{"field": column.field, "name": column.name, "type": str(column.type)} for column in declared]
        emit({"columns": rows, "largest_event_seconds": round(worst, 4), "limit_seconds": bound.seconds})
        return
    table = ((column.field, column.name, str(column.type)) for column in declared)
    show_table(("property", "column", "type"), table, empty="No columns: everything is in _extra")
    remark(
        f"Validating an event of {bound.max_bytes:,} bytes takes at most {worst:,.2f} s, "
        f"whatever it contains; the limit is {bound.seconds:g} s."
    )


@app.command("try")
def try_schema(
    tenant: TenantSlug,
    file: Annotated[Path, typer.Argument(help="Schema file; - for standard input.", allow_dash=True)],
    against: Annotated[
        str,
        typer.Option(
            metavar="DATASET", help="The dataset whose events to test.", autocompletion=complete.datasets
        ),
    ],
    of_day: Annotated[
        date,
        typer.Option(
            "--day", parser=day, metavar="DATE", help="The day of the events: a date, today or yesterday."
        ),
    ] = "yesterday",  # type: ignore[assignment] # typer parses the default, too
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of events to test.")] = 1_000_000,
    as_json: AsJson = False,
) -> None:
    """Show how many of a day's events an unpublished schema would refuse, with three of them.

    The events are those of the raw zone, re-deliveries included. Nothing is written. Exit code 1 if an
    event that the dataset accepts today would be refused, or if the dataset cannot move to the schema.

    Example: pulse schema try acme docs/examples/orders.json --against orders --day yesterday
    """
    owner = registry.find_tenant(tenant)
    with working("validating"):
        trial = backfill.try_schema(owner, against, shorthand.write_out(read(file, "schema")), of_day, limit)
    if as_json:
        emit(trial)
    else:
        _show_trial(trial)
    if trial.refused or trial.incompatibilities:
        raise typer.Exit(FAILED)


def _show_trial(trial: "backfill.Trial") -> None:
    all_ = "" if trial.complete else "the first "
    already = trial.refused_already
    beside = f", beside {already:,} that the current schema refuses, too" if already else ""
    say(f"{all_}{trial.events:,} events of {trial.day}: {trial.refused:,} would be refused{beside}")
    if trial.examples:
        rows = ((row.event_id, row.reason, row.pointer, row.detail) for row in trial.examples)
        show_table(("event id", "reason", "pointer", "detail"), rows, empty="")
    if trial.incompatibilities:
        remark("The dataset cannot move to this schema:")
        changes = ((row.pointer, row.change, row.reason) for row in trial.incompatibilities)
        show_table(("in the schema", "change", "why not"), changes, empty="")


@app.command("list")
def list_schemas(tenant: TenantSlug, as_json: AsJson = False) -> None:
    """List every version of every schema of a tenant.

    Example: pulse schema list acme
    """
    schemas = registry.list_schemas(registry.find_tenant(tenant))
    if as_json:
        emit([schema.version_entry for schema in schemas])
        return
    rows = ((schema.schema_uri, schema.published_at, schema.bytes) for schema in schemas)
    show_table(
        ("schema", "published", "bytes"),
        rows,
        empty="No schemas yet: pulse schema publish",
        spare=("bytes",),
    )


@app.command("show")
def show_schema(
    tenant: TenantSlug,
    schema: Annotated[
        str,
        typer.Argument(
            help="Address of the schema, or its name for the latest version.",
            autocompletion=complete.schema_uris,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Print a schema as it was published, byte for byte; with --json, its address and date as well.

    Example: pulse schema show acme orders > orders.json
    """
    owner = registry.find_tenant(tenant)
    published = registry.list_schemas(owner)
    matches = [entry for entry in published if schema in (entry.schema_uri, entry.name)]
    if not matches:
        names = {name for entry in published for name in (entry.schema_uri, entry.name)}
        fix = meant(schema, names, f"See: pulse schema list {tenant}")
        raise NotFound("no such schema", fix=fix, tenant=tenant, schema=schema)
    versions = {entry.version: entry.document for entry in registry.load_schemas(owner, [matches[-1].name])}
    document = versions[matches[-1].version]
    if as_json:
        emit(matches[-1].version_entry | {"schema": orjson.loads(document)})
    else:
        write(document.removesuffix("\n") + "\n")
