"""`pulse preview`, `pulse snapshots` and `pulse reconcile`: landed rows, snapshots and reconciliation."""

from dataclasses import asdict
from datetime import datetime
from decimal import Decimal
from typing import Annotated

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from pulse_api.cli.arguments import DatasetSlug, TenantSlug
from pulse_api.cli.guard import FAILED
from pulse_api.cli.output import (
    AsJson,
    AsSpreadsheet,
    emit,
    instant,
    remark,
    show_table,
    shown,
    working,
    write,
)
from pulse_pipelines import registry
from pulse_pipelines.domain.json_values import encoded
from pulse_pipelines.domain.requests import MAX_ROWS, SHOWN_SNAPSHOTS
from pulse_pipelines.monitoring import reconcile as reconciling
from pulse_pipelines.query import formats, preview as previews, snapshots as history
from pulse_resources.errors import UserError

app = typer.Typer()

LABEL_WIDTH = 22
CELL_WIDTH = 26
WIDEST = 10_000
_SAME = {"tenant_id", "dataset_id", "_batch", "schema_version"}


@app.command()
def preview(
    tenant: TenantSlug,
    slug: DatasetSlug,
    limit: Annotated[int, typer.Option(min=1, max=MAX_ROWS, help="Maximum number of rows to show.")] = 10,
    start: Annotated[
        str | None, typer.Option("--from", help="Events at this time or later: 2026-11-19T10:00:00Z.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Events before this time.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns of the table, separated by commas; all by default.")
    ] = None,
    snapshot: Annotated[
        int | None, typer.Option(help="Read the table as of this snapshot; `pulse snapshots` lists them.")
    ] = None,
    as_of: Annotated[str | None, typer.Option(help="Read the table as of this time.")] = None,
    subset: Annotated[
        str | None, typer.Option(help="Rows for which an expression has a value: name=Germany.")
    ] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_spreadsheet: AsSpreadsheet = False,
) -> None:
    """Show the newest rows of a dataset.

    Example: pulse preview acme orders --limit 5 --columns timestamp,id --from 2026-11-19T00:00:00Z
    """
    if as_json + as_csv + as_spreadsheet > 1:
        raise UserError(
            "more than one output format is given", fix="Give one of --json, --csv and --spreadsheet"
        )
    form = (
        formats.JSON
        if as_json
        else formats.CSV
        if as_csv
        else formats.SPREADSHEET
        if as_spreadsheet
        else None
    )
    rows = previews.preview(
        registry.find_tenant(tenant),
        slug,
        limit,
        columns=columns.split(",") if columns is not None else None,
        start=previews.moment(start) if start is not None else None,
        end=previews.moment(end) if end is not None else None,
        snapshot_id=snapshot,
        as_of=previews.moment(as_of) if as_of is not None else None,
        subset=subset,
    )
    if form:
        write(formats.FORMATS[form](rows).decode() + ("\n" if as_json else ""))
    else:
        print_rows(Console(), rows.to_pylist(), f"{slug} of {tenant}", empty="no rows yet")


@app.command()
def snapshots(
    tenant: TenantSlug,
    slug: DatasetSlug,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of snapshots to show.")] = SHOWN_SNAPSHOTS,
    as_json: AsJson = False,
) -> None:
    """List a dataset's snapshots, newest first; `pulse preview` can read each of them.

    Example: pulse snapshots acme orders
    """
    listed = history.snapshots(registry.find_tenant(tenant), slug, limit)
    if as_json:
        emit(listed)
        return
    rows = (
        (str(s.snapshot_id), s.committed_at, s.operation, s.added_rows, s.total_rows, s.batch_id, s.schema_id)
        for s in listed
    )
    columns = ("snapshot", "committed", "operation", "rows added", "rows", "batch", "schema")
    show_table(
        columns, rows, empty="No snapshots yet: nothing has landed", spare=("schema", "operation", "batch")
    )


def print_rows(
    console: Console, rows: list[dict[str, object]], title: str, *, empty: str = "no rows"
) -> None:
    """Print a table of rows, without columns that are empty or the same in each row.

    Where a row does not fit into a line, rows become columns, as many as fit beside each other. Title, names
    and values are untrusted.
    """
    if not rows:
        console.print(f"{shown(title)}: {empty}", soft_wrap=True, highlight=False)
        return
    used = [name for name in rows[0] if name not in _SAME and any(row[name] is not None for row in rows)]
    cells = [[_cell(row[name]) for name in used] for row in rows]
    # A title of the table itself would be broken at the table's width.
    console.print(shown(title), soft_wrap=True, highlight=False)
    table = Table(*map(shown, used))
    for row in cells:
        table.add_row(*row)
    if Measurement.get(console, console.options.update(max_width=WIDEST), table).maximum <= console.width:
        console.print(table)
    else:
        _print_turned(console, used, cells)
    if omitted := [name for name in rows[0] if name not in used]:
        remark(
            f"Columns left out, empty or the same in all rows: {', '.join(omitted)}. --json has everything."
        )


def _print_turned(console: Console, names: list[str], cells: list[list[str]]) -> None:
    abreast = max(1, (console.width - LABEL_WIDTH) // CELL_WIDTH)
    for first in range(0, len(cells), abreast):
        group = cells[first : first + abreast]
        numbers = (f"row {first + index}" for index in range(1, len(group) + 1))
        table = Table("column", *numbers)
        for name, *values in zip(names, *group, strict=True):
            table.add_row(shown(name), *values)
        console.print(table)


def _cell(value: object) -> str:
    """A value as it is stored: numbers without separators, times with their fractions, lists as JSON."""
    if isinstance(value, datetime):
        return shown(instant(value))
    if isinstance(value, bool | list | dict):
        return shown(encoded(value).decode())
    return shown(value if value is None or isinstance(value, Decimal) else str(value))


@app.command()
def reconcile(
    tenant: Annotated[str | None, typer.Argument(help="One tenant; by default all.")] = None,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Also read the whole raw zone, and look up every duplicate in it."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Prove that every drained event is a row, a duplicate or a dead letter, exactly once.

    Compares tables, event ids, dead letters and the ledger, offset by offset. Exit code 1, with the
    exact difference, if they disagree.

    Example: pulse reconcile acme
    """
    chosen = [registry.find_tenant(tenant)] if tenant else registry.list_tenants()
    with working("reading tables") as begins:
        reports: list[reconciling.TenantReport] = []
        for owner in chosen:
            begins(f"reconciling {owner.slug} ({len(reports) + 1} of {len(chosen)})")
            reports.append(reconciling.reconcile_tenant(owner, raw=raw))
    balanced = all(report.balanced for report in reports)
    if as_json:
        documents = [asdict(report) | {"balanced": report.balanced} for report in reports]
        emit({"balanced": balanced, "tenants": documents})
    else:
        _print_reports(Console(), reports)
    if not balanced:
        raise typer.Exit(FAILED)


def _print_reports(console: Console, reports: "list[reconciling.TenantReport]") -> None:
    table = Table("tenant", "drained", "landed", "duplicates", "dead letters", "balanced")
    for report in reports:
        numbers = (report.drained, report.landed, report.duplicates, report.dead_letters)
        table.add_row(report.tenant, *(f"{n:,}" for n in numbers), "yes" if report.balanced else "[red]NO")
    console.print(table)
    for report in reports:
        for problem in report.problems:
            offsets = f", offsets {', '.join(map(str, problem.offsets))}" if problem.offsets else ""
            fix = f"; {problem.fix}" if problem.fix else ""
            where = f"tenant {report.tenant}, {problem.where}: {problem.count}{offsets}{fix}"
            console.print(f"[red]{problem.kind}[/red] {shown(where)}", highlight=False)
