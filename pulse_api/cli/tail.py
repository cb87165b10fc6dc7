"""`pulse tail`: a dataset's rows as they land."""

import select
import sys
from typing import Annotated, Any

import orjson
import typer

from pulse_api.cli import interrupted
from pulse_api.cli.arguments import DatasetSlug, TenantSlug
from pulse_api.cli.output import cell, instant, remark, write
from pulse_pipelines import registry
from pulse_pipelines.query import tail

app = typer.Typer()

PHYSICAL = frozenset({"tenant_id", "dataset_id", "ingested_at", "schema_version"})
"""Columns that are hidden, being constant or not about the event; so are those that begin with _."""


@app.command("tail")
def tail_rows(
    tenant: TenantSlug,
    slug: DatasetSlug,
    as_json: Annotated[bool, typer.Option("--json", help="Print rows as JSON, one per line.")] = False,
) -> None:
    """Print the rows of a dataset as they land, until it is interrupted.

    It also ends when the reader of its output ends: `pulse tail acme orders | head -1`.

    Example: pulse tail acme orders
    """
    owner = registry.find_tenant(tenant)
    rows = tail.follow(owner, registry.find_dataset(owner, slug).slug, _pause)
    remark(f"Waiting for rows of {slug}; Ctrl-C ends it.")
    with interrupted.leaves(interrupted.TAIL):
        for landed in rows:
            for row in landed.to_pylist():
                write(f"{_text(row) if as_json else _line(row)}\n")


def _pause() -> None:
    """Wait until the next poll. Raises BrokenPipeError as soon as the reader of stdout has ended."""
    reader = select.poll()
    reader.register(sys.stdout, 0)  # its end is reported whatever is asked for
    if reader.poll(tail.POLL_S * 1_000):
        raise BrokenPipeError


def _line(row: dict[str, Any]) -> str:
    """An event's time, id and properties on one line."""
    properties = {
        name: value
        for name, value in row.items()
        if value is not None
        and name not in PHYSICAL
        and name not in ("id", "timestamp")
        and not name.startswith("_")
    }
    return f"{instant(row['timestamp'])}  {cell(row['id'])}  {_text(properties)}"


def _text(row: dict[str, Any]) -> str:
    return orjson.dumps(row, option=orjson.OPT_UTC_Z).decode()
