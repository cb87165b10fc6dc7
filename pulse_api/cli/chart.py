"""Bar charts in a terminal, for results with one label and one number in each row."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table

from pulse_api.cli.output import shown

MAX_BARS = 60
WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"


def shape(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """The label column and the number column, if the rows can be charted."""
    if not 2 <= len(rows) <= MAX_BARS or len(rows[0]) != 2:
        return None
    label, number = rows[0]
    values = [row[number] for row in rows if row[number] is not None]
    plain = all(isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in values)
    return (label, number) if values and plain and min(values) >= 0 < max(values) else None


def show(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a bar for each row, as long as its number."""
    columns = shape(rows)
    if columns is None:
        return
    label, number = columns
    most = max(row[number] or 0 for row in rows)
    table = Table(box=None, pad_edge=False)
    table.add_column(shown(label), no_wrap=True, max_width=30)
    table.add_column(shown(number), justify="right")
    table.add_column("")
    for row in rows:
        value = row[number]
        figure = "" if value is None else f"{value:,f}" if isinstance(value, Decimal) else f"{value:,}"
        table.add_row(shown(row[label]), figure, bar(float((value or 0) / most)))
    console.print(table, highlight=False)


def bar(share: float) -> str:
    """A bar of this share of the width."""
    whole, part = divmod(round(share * WIDTH * 8), 8)
    return "█" * whole + _EIGHTHS[part].strip()
