"""Arguments shared by several commands, and parsers of their values."""

import codecs
import re
import sys
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Annotated

import typer

from pulse_api.cli import complete
from pulse_pipelines.domain import event
from pulse_resources.errors import UserError

TenantSlug = Annotated[
    str,
    typer.Argument(help="The tenant's slug.", show_default=False, autocompletion=complete.tenants),
]
DatasetSlug = Annotated[
    str,
    typer.Argument(help="The dataset's slug.", show_default=False, autocompletion=complete.datasets),
]

_AS_UTF_8 = "Save the file as UTF-8"
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""First bytes of compressed files, and what decompresses them."""
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_LONGEST = timedelta(days=36_500)


def duration(text: str) -> timedelta:
    """Parse a duration: `90s`, `15m`, `1h`, `30d`, `2w`, or several of them together.

    Raises:
        typer.BadParameter: it is not a duration.
    """
    if not re.fullmatch(r"(\d{1,100}[smhdw])+", text):
        raise typer.BadParameter(f"{text!r} is not a duration: write 90s, 15m, 1h, 30d, 2w or 1h30m")
    parts = re.findall(r"(\d+)([smhdw])", text)
    seconds = sum(int(number) * _UNITS[unit] for number, unit in parts)
    if seconds > _LONGEST.total_seconds():
        raise typer.BadParameter(f"{text!r} is longer than a hundred years")
    return timedelta(seconds=seconds)


def moment(text: str) -> datetime:
    """Parse a time: RFC 3339, a date (its midnight in UTC), or an age such as `2h`.

    Raises:
        typer.BadParameter: it is not a time.
    """
    if re.fullmatch(r"(\d+[smhdw])+", text):
        return datetime.now(UTC) - duration(text)
    if isinstance(timestamp := event.parse_timestamp(text), datetime):
        return timestamp
    try:
        return datetime.combine(event.parse_date(text), time.min, UTC)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is not a time: write 2026-11-19T10:00:00Z, 2026-11-19, or 2h for two hours ago"
        ) from error


def day(text: str) -> date:
    """Parse a date: `2026-11-19`, or `today` and `yesterday` in UTC. Raises typer.BadParameter otherwise."""
    days = {"today": 0, "yesterday": 1}
    if text in days:
        return datetime.now(UTC).date() - timedelta(days=days[text])
    try:
        return event.parse_date(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a date: write 2026-11-19, today or yesterday") from error


def read(file: Path, noun: str) -> bytes:
    """The content of a text file, or of standard input for `-`, without a byte order mark.

    Raises:
        UserError: it cannot be read, is compressed, or is not UTF-8.
    """
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot read the {noun}: {file}: {error.strerror}", fix="Name a file that this account may read"
        ) from error
    content = without_mark(content, noun)
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        bad_byte = f"line {line} has the byte 0x{content[error.start]:02x}"
        raise UserError(f"the {noun} is not UTF-8: {bad_byte}", fix=_AS_UTF_8) from error
    return content


def without_mark(content: bytes, noun: str) -> bytes:
    """Text, or its beginning, without a byte order mark. Raises UserError if it is UTF-16 or compressed."""
    for magic, program in _COMPRESSED.items():
        if content.startswith(magic):
            fix = f"Decompress it on the way: {program} -dc FILE | pulse ... -"
            raise UserError(f"the {noun} is compressed by {program}", fix=fix)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"the {noun} is not UTF-8: its first bytes mark it as UTF-16", fix=_AS_UTF_8)
    return content.removeprefix(codecs.BOM_UTF8)
