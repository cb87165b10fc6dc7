"""`pulse summary`: precomputed summaries of a dataset's days."""

from datetime import date
from typing import Annotated

import typer

from pulse_api.cli.arguments import DatasetSlug, TenantSlug, day
from pulse_api.cli.output import AsJson, emit, remark, show_table
from pulse_pipelines import registry
from pulse_pipelines.curated import summary as summaries
from pulse_pipelines.domain.json_values import Number

app = typer.Typer()


@app.command()
def summary(
    tenant: TenantSlug,
    slug: DatasetSlug,
    rollup: Annotated[
        str, typer.Option(help="Name of the rollup: daily, behaviour, or one that a team added.")
    ] = "daily",
    first: Annotated[
        date | None,
        typer.Option(
            "--from", parser=day, metavar="DATE", help="First day; by default a week before the last."
        ),
    ] = None,
    last: Annotated[
        date | None,
        typer.Option("--to", parser=day, metavar="DATE", help="Last day, inclusive; by default today."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the precomputed summaries of a dataset's days.

    Example: pulse summary acme orders --from 2026-11-01 --to 2026-11-19
    """
    result = summaries.summary(registry.find_tenant(tenant), slug, rollup, first, last)
    if as_json:
        emit(result)
        return
    names = list({name: None for summary_day in result.days for row in summary_day.rows for name in row})
    rows = [
        (
            summary_day.day,
            *(_short(row.get(name)) for name in names),
            "changed since" if summary_day.changed_since else "",
        )
        for summary_day in result.days
        for row in summary_day.rows or [{}]
    ]
    show_table(("day", *names, "state"), rows, empty="Nothing landed on these days", spare=names[:1:-1])
    for summary_day in result.days:
        if summary_day.error:
            remark(f"{summary_day.day}: {summary_day.error}")


def _short(value: object) -> object:
    """Nested values, replaced by their size; `--json` has them whole."""
    if isinstance(value, Number):
        return value.text
    if isinstance(value, float):
        return f"{value:,}"
    return f"a list of {len(value):,}" if isinstance(value, list) else value
