"""Output of commands: JSON for programs, tables for people, both on stdout; remarks on stderr.

Text of tenants and their events is escaped: it cannot control a person's terminal.
"""

import dataclasses
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

import orjson
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pulse_pipelines.domain.json_values import Number, digits, plain, with_text_ids
from pulse_pipelines.domain.moments import utc_text
from pulse_pipelines.domain.naming import STEERING
from pulse_resources.errors import printable

_STEERING = re.compile(f"[{STEERING}]".replace(r"\x00-\x1f", ""))
"""Control characters that JSON does not escape; the lower ones are escaped by the encoder."""
PIPED = 400
"""Width of a table that goes to a file or a pipe, unless COLUMNS gives another."""
PROSE = 24
"""Minimum width of a column of sentences."""
TELL_S = 15.0
"""How often a long command says what it does, where no terminal shows it."""
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


AsSpreadsheet = Annotated[
    bool,
    typer.Option(
        "--spreadsheet", help="Print CSV with ' before text that a spreadsheet takes for a formula."
    ),
]


def emit(document: object) -> None:
    """Print a document as JSON. Dates, UUIDs and dataclasses are supported."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_NON_STR_KEYS
    text = orjson.dumps(document, default=_plain, option=options).decode()
    # These characters occur only within strings, where the escape means the same.
    typer.echo(_STEERING.sub(lambda character: f"\\u{ord(character[0]):04x}", text))


def write(content: str) -> None:
    """Write data unchanged, in UTF-8, to a file or a pipe; to a terminal without control characters."""
    if sys.stdout.isatty():
        typer.echo(harmless(content.replace("\r\n", "\n")), nl=False)
        return
    sys.stdout.flush()
    typer.echo(content.encode(), nl=False)  # of text it would take away what colours a terminal


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return with_text_ids({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Decimal | Number):
        return plain(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str, spare: Sequence[str] = ()
) -> None:
    """Print a table for a person, or `empty` on stderr where it has no rows. Names of columns are untrusted.

    Where the width does not suffice, sentences are wrapped; then columns are left out, and named.

    Args:
        spare: columns that may be left out, in this order.
    """
    texts = [[cell(value) for value in row] for row in rows]
    if not texts:
        remark(empty)
        return
    console = _console()
    needs = {name: _need(cell(name), column) for name, *column in zip(columns, *texts, strict=True)}
    omitted: list[str] = []
    for name in spare:
        if sum(needs.values()) <= console.width - 1:
            break
        omitted.append(name)
        del needs[name]
    fits = sum(needs.values()) < console.width
    table = Table()
    for name, *column in zip(columns, *texts, strict=True):
        if name in needs:
            table.add_column(shown(name), overflow="fold", no_wrap=fits and not _is_prose(column))
    for row in texts:
        fitting = (text for name, text in zip(columns, row, strict=True) if name in needs)
        table.add_row(*(escape(text) for text in fitting))
    console.print(table)
    if omitted:
        remark(f"Columns left out to fit {console.width} characters: {', '.join(omitted)}. --json has all.")


def _need(name: str, column: Sequence[str]) -> int:
    """Width that a column needs, including its border."""
    longest = max(map(cell_len, (name, *column)))
    return min(longest, PROSE) + 3 if _is_prose(column) else longest + 3


def _is_prose(column: Sequence[str]) -> bool:
    """Whether the column holds sentences, which can be wrapped."""
    return any(len(text) > PROSE and " " in text for text in column)


def show_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print the properties of one object, one per line."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields:
        table.add_row(shown(name), shown(value))
    _console().print(table, highlight=False)


def _console() -> Console:
    """Console for a table: without a terminal or COLUMNS it is wide, so that addresses stay whole."""
    columns = os.environ.get("COLUMNS", "")
    fits = sys.stdout.isatty() or (columns.isdigit() and int(columns) > 0)
    return Console(width=None if fits else PIPED)


@contextmanager
def working(title: str) -> Iterator[Callable[[str], None]]:
    """Show on stderr what a long command does: a spinner on a terminal, elsewhere a line now and then.

    Yields a function that names the step under way.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(shown(title)) as status:
            yield lambda step: status.update(shown(step))
        return
    doing, ended, began = title, threading.Event(), time.monotonic()

    def begins(step: str) -> None:
        nonlocal doing
        doing = step

    def tell() -> None:
        while not ended.wait(TELL_S):
            remark(f"{doing} ({time.monotonic() - began:.0f} s)")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield begins
    finally:
        ended.set()
        teller.join()


def say(line: str) -> None:
    """Print a sentence on stdout."""
    Console(soft_wrap=True).print(shown(line), highlight=False)


def emit_or_say(document: object, line: str, as_json: bool) -> None:
    """Print a document as JSON, or a sentence in its place."""
    if as_json:
        emit(document)
    else:
        say(line)


def remark(line: str) -> None:
    """Print a sentence on stderr, so that stdout holds only the answer."""
    Console(stderr=True, soft_wrap=True).print(shown(line), highlight=False)


def harmless(text: str) -> str:
    """Untrusted text without characters that control a terminal."""
    return printable(text, besides="\n")


def readable(payload: bytes) -> str:
    """The text of an event. A lone CR, which senders put for the ends of lines, ends one, too."""
    return re.sub("\r\n?", "\n", payload.decode(errors="replace")).expandtabs(4)


def shown(value: object) -> str:
    """Markup for a cell, a name or a sentence: text of tenants cannot control a terminal, nor style it."""
    return escape(cell(value))


def cell(value: object) -> str:
    """A value for a person, harmless; times are in a form that options such as --since accept."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Decimal):
        return digits(value)
    return harmless(str(value))


def instant(at: datetime) -> str:
    """A moment of the data, with its fraction of a second."""
    return utc_text(at, sep=" ")


def counted(count: int, noun: str) -> str:
    """A number of things: `1 event`, `2,000 events`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
