"""`pulse sql`: a query over a tenant's datasets and own tables, in the same sandbox as over HTTP."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pulse_api.cli.arguments import TenantSlug, moment
from pulse_api.cli.lake import print_rows
from pulse_api.cli.output import AsJson, AsSpreadsheet, emit, show_table, write
from pulse_pipelines import registry
from pulse_pipelines.query import formats
from pulse_pipelines.sql import audit, encoders, limits, pinned, processes, run
from pulse_resources.errors import UserError

app = typer.Typer()

FORMATS = {".json": "JSON", ".csv": "CSV", ".arrow": "ARROW", ".parquet": "PARQUET"}


@app.command("sql")
def query(
    tenant: TenantSlug,
    sql: Annotated[str | None, typer.Argument(help="The query; - for standard input.")] = None,
    snapshot: Annotated[
        list[str] | None,
        typer.Option(help="Read a table as of a snapshot: orders=<id>; may be repeated."),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(help="Read all other tables as of this time: 2026-11-19T10:00:00Z, or 2h.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the result to a file: .json, .csv, .arrow or .parquet."),
    ] = None,
    recent: Annotated[
        bool, typer.Option("--recent", help="List the tenant's latest queries instead.")
    ] = False,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_spreadsheet: AsSpreadsheet = False,
) -> None:
    """Run one SELECT over a tenant's datasets and own tables; every query is recorded.

    Name datasets by their slugs, and own tables as namespace.table.

    Example: pulse sql acme "SELECT country, count(*) AS orders FROM orders GROUP BY ALL"
    """
    owner = registry.find_tenant(tenant)
    if recent:
        _list(audit.queries(owner, 20), as_json)
        return
    if sql is None:
        raise UserError("no query is given", fix='pulse sql acme "SELECT count(*) AS n FROM orders"')
    if as_json + as_csv + as_spreadsheet + (output is not None) > 1:
        raise UserError(
            "more than one output format is given",
            fix="Give one of --json, --csv, --spreadsheet and --output",
        )
    form = _form(output) if output else "CSV" if as_csv else "SPREADSHEET" if as_spreadsheet else "JSON"
    allowed = limits.Limits.of_settings()
    query_processes = processes.Processes(allowed.confinement(), ready=0)
    request = run.QueryRequest(
        owner,
        sys.stdin.read() if sql == "-" else sql,
        media_type=getattr(formats, form),
        travel=pinned.Travel(_snapshots(snapshot or ()), moment(as_of) if as_of else None),
    )
    try:
        content = run.run(query_processes, allowed, request).content
    finally:
        query_processes.stop()
    if output is not None:
        output.write_bytes(content)
    elif as_json or as_csv or as_spreadsheet:
        write(content.decode() + ("\n" if as_json else ""))
    else:
        print_rows(Console(), encoders.of_json(content)["rows"], f"query {request.query_id} of {tenant}")


def _form(output: Path) -> str:
    if (form := FORMATS.get(output.suffix)) is None:
        raise UserError(f"{output.name!r} has an unknown extension", fix=f"Use {', '.join(FORMATS)}")
    return form


def _snapshots(options: "list[str] | tuple[()]") -> dict[str, int]:
    ids = {}
    for text in options:
        slug, _, number = text.rpartition("=")
        if not number.isascii() or not number.isdigit():
            raise UserError(
                f"{text!r} does not name a snapshot", fix="Write orders=<id>: pulse snapshots lists them"
            )
        ids[slug] = int(number)
    return ids


def _list(recorded: "list[audit.Recorded]", as_json: bool) -> None:
    if as_json:
        emit(recorded)
        return
    rows = (
        (
            q.query_id,
            q.asked_at,
            q.state,
            q.rows,
            q.bytes,
            None if q.seconds is None else f"{q.seconds:.2f}",
            q.key_id,
            " ".join(q.sql.split()),
        )
        for q in recorded
    )
    columns = ("query", "asked", "state", "rows", "bytes", "seconds", "key", "sql")
    show_table(columns, rows, empty="No queries yet", spare=("key", "bytes"))
