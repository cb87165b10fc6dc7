"""Output formats of rows: JSON, CSV (RFC 4180) and Arrow IPC streams; media types, including Parquet's.

In JSON and CSV a timestamp is RFC 3339 in UTC with Z, a date is ISO 8601, an integer is a number of any size.
NaN and infinities, which JSON lacks, are null there, and `NaN`, `Infinity` and `-Infinity` in CSV. `context`,
`_extra` and other columns of JSON text stay the text that the table holds.
CSV for spreadsheets has a `'` before text that they would take for a formula, or that begins with
`'`: removing one gives the text back.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson
import pyarrow as pa

from pulse_pipelines.domain.json_values import encoded

JSON = "application/json"
CSV = "text/csv"
SPREADSHEET = "text/csv;for=spreadsheet"
"""CSV that a person opens in a spreadsheet, which would run text that looks like a formula."""
ARROW = "application/vnd.apache.arrow.stream"
PARQUET = "application/vnd.apache.parquet"
FOR_SPREADSHEETS = "As CSV, with ' before text that a spreadsheet takes for a formula, or that begins with '."
_QUOTED = frozenset('",\r\n')
_FORMULA = frozenset(
    "'=+-@\t\r\n\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}"
    "\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)
"""First characters of a cell that spreadsheets take for a formula, and the one that is put before these."""
_NUMBER = re.compile(r"[+-][0-9]*[.]?[0-9]+")


def to_json(rows: pa.Table) -> bytes:
    """`{"rows": [...]}`, an object per row with every column in it."""
    return encoded({"rows": rows.to_pylist()})


def to_csv(rows: pa.Table) -> bytes:
    """A header and a line per row; nested values are JSON text, null is empty, an empty string `""`."""
    return csv_line(rows.column_names) + csv_lines(c.to_pylist() for c in rows.columns)


def to_spreadsheet(rows: pa.Table) -> bytes:
    """The same, without text that a spreadsheet takes for a formula."""
    columns = (map(no_formula, column.to_pylist()) for column in rows.columns)
    return csv_line(map(no_formula, rows.column_names)) + csv_lines(columns)


def csv_line(values: Iterable[Any]) -> bytes:
    """One line: the header, or a row."""
    return f"{','.join(map(_field, values))}\r\n".encode()


def csv_lines(columns: Iterable[Iterable[Any]]) -> bytes:
    """The lines of rows given as columns."""
    cells = [map(_field, column) for column in columns]
    return "".join(f"{','.join(row)}\r\n" for row in zip(*cells, strict=True)).encode()


def _field(value: Any) -> str:
    if value is None:
        return ""
    text: str = value if isinstance(value, str) else _text(value)
    if not text or not _QUOTED.isdisjoint(text):
        return '"{}"'.format(text.replace('"', '""'))
    return text


def no_formula(value: Any) -> Any:
    """A value, with `'` before a text that a spreadsheet takes for a formula, or that begins with `'`."""
    if not isinstance(value, str) or value[:1] not in _FORMULA or _NUMBER.fullmatch(value):
        return value
    return f"'{value}"


def _text(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    text = encoded(value)
    return str(orjson.loads(text)) if text.startswith(b'"') else text.decode()


def to_arrow(rows: pa.Table) -> bytes:
    """An Arrow IPC stream: exact types, with nulls distinct from NaN."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


FORMATS: Mapping[str, Callable[[pa.Table], bytes]] = {
    JSON: to_json,
    CSV: to_csv,
    SPREADSHEET: to_spreadsheet,
    ARROW: to_arrow,
}
"""Encoders by media type, the default first."""
