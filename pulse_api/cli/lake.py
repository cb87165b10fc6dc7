"""`pulse preview`, `pulse snapshots` and `pulse reconcile`: what landed, and that it adds up."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pulse_api.cli.arguments import DatasetSlug, TenantSlug
from pulse_api.cli.output import AsJson, emit, harmless, show_table, write
from pulse_pipelines import registry
from pulse_pipelines.monitoring.reconcile import TenantReport, reconcile_tenant
from pulse_pipelines.query import snapshots as history
from pulse_pipelines.query.formats import to_csv, to_json
from pulse_pipelines.query.preview import MAX_LIMIT, moment
from pulse_pipelines.query.preview import preview as read_preview
from pulse_resources.errors import UserError

app = typer.Typer()

LABEL_WIDTH = 22
CELL_WIDTH = 26


@app.command()
def preview(
    tenant: TenantSlug,
    slug: DatasetSlug,
    limit: Annotated[int, typer.Option(min=1, max=MAX_LIMIT, help="Most rows to show.")] = 10,
    start: Annotated[
        str | None, typer.Option("--from", help="Events at this moment or later: 2026-11-19T10:00:00Z.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Events before this moment.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns of the table, with commas between them; all if not given.")
    ] = None,
    snapshot: Annotated[
        int | None, typer.Option(help="The table as this snapshot left it: pulse snapshots.")
    ] = None,
    as_of: Annotated[str | None, typer.Option(help="The table as it was at this moment.")] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Show the newest rows of a dataset, resolved as its tenant and read by DuckDB.

    Example: pulse preview acme orders --limit 5 --columns timestamp,id --from 2026-11-19T00:00:00Z
    """
    if as_json and as_csv:
        raise UserError("both --json and --csv are given", fix="Give one of them")
    rows = read_preview(
        registry.find_tenant(tenant),
        slug,
        limit,
        columns=columns.split(",") if columns is not None else None,
        start=moment(start) if start is not None else None,
        end=moment(end) if end is not None else None,
        snapshot_id=snapshot,
        as_of=moment(as_of) if as_of is not None else None,
    )
    if as_json or as_csv:
        write((to_json(rows) + b"\n" if as_json else to_csv(rows)).decode())
    else:
        print_rows(Console(), rows.to_pylist(), f"{slug} of {tenant}")


@app.command()
def snapshots(
    tenant: TenantSlug,
    slug: DatasetSlug,
    limit: Annotated[int, typer.Option(min=1, help="Most snapshots to show.")] = history.SHOWN,
    as_json: AsJson = False,
) -> None:
    """Show a dataset's snapshots, newest first: moments that `pulse preview` can go back to.

    Example: pulse snapshots acme orders
    """
    found = history.snapshots(registry.find_tenant(tenant), slug, limit)
    if as_json:
        emit(found)
        return
    rows = (
        (str(s.snapshot_id), s.committed_at, s.operation, s.added_rows, s.total_rows, s.batch_id, s.schema_id)
        for s in found
    )
    columns = ("snapshot", "committed", "operation", "rows added", "rows", "batch", "schema")
    show_table(columns, rows, empty="No snapshots yet: nothing has landed")


def print_rows(console: Console, rows: list[dict[str, object]], title: str) -> None:
    """A table of rows without the columns that say the same in each of them."""
    hidden = {"tenant_id", "dataset_id", "_batch", "schema_version"}
    names = [name for name in (rows[0] if rows else {}) if name not in hidden]
    used = [name for name in names if any(row[name] is not None for row in rows)]
    if not rows:
        console.print(f"{title}: no rows yet")
    abreast = max(1, (console.width - LABEL_WIDTH) // CELL_WIDTH)
    for first in range(0, len(rows), abreast):  # a row is a column here: tables are wide
        shown = rows[first : first + abreast]
        numbers = (f"row {first + index}" for index in range(1, len(shown) + 1))
        table = Table("column", *numbers, title=None if first else title)
        for name in used:
            table.add_row(name, *(_cell(row[name]) for row in shown))
        console.print(table)


def _cell(value: object) -> str:
    """What a tenant's events hold is text and nothing else: neither markup nor a terminal's commands."""
    return "" if value is None else escape(harmless(str(value)))


@app.command()
def reconcile(
    tenant: Annotated[str | None, typer.Argument(help="One tenant; all if not given.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Look all duplicates up in the raw zone: slow where there are many.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Prove that every drained event is a row, a duplicate or a dead letter, exactly once.

    Compares tables, event ids, dead letters and ledger offset by offset. Exit code 1, and the precise
    difference, when it does not hold.

    Example: pulse reconcile acme
    """
    chosen = [registry.find_tenant(tenant)] if tenant else registry.list_tenants()
    console = Console(stderr=True)
    with console.status("reading tables") as status:
        reports: list[TenantReport] = []
        for owner in chosen:
            status.update(f"reconciling {owner.slug} ({len(reports) + 1} of {len(chosen)})")
            reports.append(reconcile_tenant(owner, raw=raw))
    balanced = all(report.balanced for report in reports)
    if as_json:
        found = [asdict(report) | {"balanced": report.balanced} for report in reports]
        emit({"balanced": balanced, "tenants": found})
    else:
        _print_reports(Console(), reports)
    raise typer.Exit(0 if balanced else 1)


def _print_reports(console: Console, reports: list[TenantReport]) -> None:
    table = Table("tenant", "drained", "landed", "duplicates", "dead letters", "balanced")
    for report in reports:
        numbers = (report.drained, report.landed, report.duplicates, report.dead_letters)
        table.add_row(report.tenant, *(f"{n:,}" for n in numbers), "yes" if report.balanced else "[red]NO")
    console.print(table)
    for report in reports:
        for problem in report.problems:
            shown = f", offsets {', '.join(map(str, problem.offsets))}" if problem.offsets else ""
            fix = f"; {problem.fix}" if problem.fix else ""
            console.print(
                f"[red]{problem.kind}[/red] tenant {report.tenant}, {escape(problem.where)}: "
                f"{problem.count}{shown}{fix}",
                highlight=False,
            )
