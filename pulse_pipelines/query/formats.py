"""Rows as bytes: JSON, CSV (RFC 4180) and an Arrow IPC stream.

In JSON and CSV a timestamp is RFC 3339 in UTC with Z, a date is ISO 8601, an integer is a number whatever
its size, and NaN, which JSON has not, is null. `context`, `_extra` and other columns of JSON text stay the
text that the table holds. CSV ends in spreadsheets: text that they would take for a formula begins with `'`.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pyarrow as pa

JSON = "application/json"
CSV = "text/csv"
ARROW = "application/vnd.apache.arrow.stream"
_QUOTED = frozenset('",\r\n')
_FORMULA = frozenset(
    "=+-@\t\r\n\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}"
    "\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)
"""What a cell begins with that spreadsheets compute."""
_NUMBER = re.compile(r"[+-][0-9]*[.]?[0-9]+")


def to_json(rows: pa.Table) -> bytes:
    """`{"rows": [...]}`, an object per row with every column in it."""
    return orjson.dumps({"rows": rows.to_pylist()}, option=orjson.OPT_UTC_Z)


def to_csv(rows: pa.Table) -> bytes:
    """A header and a line per row; nested values are JSON text.

    Null and NaN are an empty field, an empty string is `""`.
    """
    lines = [",".join(map(_field, rows.column_names))]
    columns = [map(_field, column.to_pylist()) for column in rows.columns]
    lines += map(",".join, zip(*columns, strict=True))
    return "".join(f"{line}\r\n" for line in lines).encode()


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
    decoded = orjson.loads(encoded := orjson.dumps(value, option=orjson.OPT_UTC_Z))
    return decoded if isinstance(decoded, str) else encoded.decode()


def to_arrow(rows: pa.Table) -> bytes:
    """An Arrow IPC stream: exact types, nulls apart from NaN."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


FORMATS: Mapping[str, Callable[[pa.Table], bytes]] = {JSON: to_json, CSV: to_csv, ARROW: to_arrow}
"""By media type, the default first."""
