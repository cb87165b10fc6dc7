"""Output formats of rows: JSON, CSV (RFC 4180) and Arrow IPC streams; media types, including Parquet's.

In JSON and CSV a timestamp is RFC 3339 in UTC with Z, a date is ISO 8601, an integer is a number of any size,
and NaN, which JSON lacks, is null. `context`, `_extra` and other columns of JSON text stay the text that the
table holds. CSV is opened in spreadsheets: text that they would take for a formula is prefixed with `'`.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa

JSON = "application/json"
CSV = "text/csv"
ARROW = "application/vnd.apache.arrow.stream"
PARQUET = "application/vnd.apache.parquet"
_QUOTED = frozenset('",\r\n')
_FORMULA = frozenset(
    "=+-@\t\r\n\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}"
    "\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)
"""First characters of a cell that spreadsheets take for a formula."""
_NUMBER = re.compile(r"[+-][0-9]*[.]?[0-9]+")


def to_json(rows: pa.Table) -> bytes:
    """`{"rows": [...]}`, an object per row with every column in it."""
    return orjson.dumps({"rows": rows.to_pylist()}, option=orjson.OPT_UTC_Z)


def to_csv(rows: pa.Table) -> bytes:
    """A header and a line per row; nested values are JSON text.

    Null and NaN are an empty field, an empty string is `""`.
    """
    return csv_header(rows.column_names) + csv_lines(c.to_pylist() for c in rows.columns)


def csv_header(names: Iterable[str]) -> bytes:
    """The header line."""
    return f"{','.join(map(_field, names))}\r\n".encode()


def csv_lines(columns: Iterable[Iterable[Any]]) -> bytes:
    """The lines of rows given as columns."""
    cells = [map(_field, column) for column in columns]
    return "".join(f"{','.join(row)}\r\n" for row in zip(*cells, strict=True)).encode()


def _field(value: Any) -> str:
    if value is None or value != value:  # NaN
        return ""
    text: str = _no_formula(value) if isinstance(value, str) else _text(value)
    if not text or not _QUOTED.isdisjoint(text):
        return '"{}"'.format(text.replace('"', '""'))
    return text


def _no_formula(text: str) -> str:
    return f"'{text}" if text[:1] in _FORMULA and not _NUMBER.fullmatch(text) else text


def _text(value: Any) -> str:
    encoded = orjson.dumps(value, default=plain, option=orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS)
    return str(orjson.loads(encoded)) if encoded.startswith(b'"') else encoded.decode()


def plain(value: Any) -> Any:
    """`default` for orjson: exact numbers stay exact, bytes become base64, all other types text."""
    if isinstance(value, int):
        return orjson.Fragment(str(value).encode())  # beyond 64 bits
    if isinstance(value, Decimal):
        return orjson.Fragment(f"{value:f}".encode()) if value.is_finite() else None
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return str(value)


def to_arrow(rows: pa.Table) -> bytes:
    """An Arrow IPC stream: exact types, with nulls distinct from NaN."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


FORMATS: Mapping[str, Callable[[pa.Table], bytes]] = {JSON: to_json, CSV: to_csv, ARROW: to_arrow}
"""Encoders by media type, the default first."""
