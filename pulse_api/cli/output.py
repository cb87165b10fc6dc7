"""How commands print: JSON for programs, tables for people, both on stdout; remarks on stderr."""

import dataclasses
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def emit(document: object) -> None:
    """Print a document as JSON. Dates, UUIDs and dataclasses are understood."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_NON_STR_KEYS
    typer.echo(orjson.dumps(document, default=_plain, option=options).decode())


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table for a person, or `empty` on stderr where it has no rows."""
    table = Table(*columns)
    for row in rows:
        table.add_row(*(escape(cell(value)) for value in row))
    if table.row_count:
        # Piped, a table has no edge to fit in: addresses are there to be copied.
        Console(width=None if sys.stdout.isatty() else 400).print(table)
    else:
        remark(empty)


def show_fields(fields: Iterable[tuple[str, object]]) -> None:
    """One thing's properties, a line each."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields:
        table.add_row(name, escape(cell(value)))
    Console(width=None if sys.stdout.isatty() else 400).print(table, highlight=False)


def say(line: str) -> None:
    """A sentence on stdout."""
    Console(soft_wrap=True).print(escape(line), highlight=False)


def remark(line: str) -> None:
    """A sentence on stderr, so that stdout holds nothing but the answer."""
    Console(stderr=True, soft_wrap=True).print(escape(line), highlight=False)


def harmless(value: object) -> object:
    """What a stranger wrote, unable to steer the terminal of whoever looks at it."""
    if not isinstance(value, str):
        return value
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in value)


def cell(value: object) -> str:
    """A value as a person reads it."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z").strip()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
