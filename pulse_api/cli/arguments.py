"""Arguments that several commands take."""

import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from pulse_api.cli import complete
from pulse_resources.errors import UserError

TenantSlug = Annotated[
    str,
    typer.Argument(help="The tenant's slug.", show_default=False, autocompletion=complete.tenants),
]
DatasetSlug = Annotated[
    str,
    typer.Argument(help="The dataset's slug.", show_default=False, autocompletion=complete.datasets),
]

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_LONGEST = timedelta(days=36_500)


def duration(text: str) -> timedelta:
    """`90s`, `15m`, `1h`, `30d`, `2w`, or several of them together.

    Raises:
        typer.BadParameter: it is none.
    """
    if not re.fullmatch(r"(\d{1,9}[smhdw])+", text):
        raise typer.BadParameter(f"{text!r} is no duration: write 90s, 15m, 1h, 30d, 2w or 1h30m")
    found = re.findall(r"(\d+)([smhdw])", text)
    seconds = sum(int(number) * _UNITS[unit] for number, unit in found)
    if seconds > _LONGEST.total_seconds():
        raise typer.BadParameter(f"{text!r} is longer than a hundred years")
    return timedelta(seconds=seconds)


def read(file: Path, what: str) -> bytes:
    """The content of a file, or of standard input for `-`.

    Raises:
        UserError: it cannot be read.
    """
    if str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the {what}: {error}") from error
