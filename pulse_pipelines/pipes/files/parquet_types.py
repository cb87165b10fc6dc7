"""Types of Parquet: what a column becomes in an entity, by the rule for Postgres (`domain.pg_types`)."""

import base64
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

Form = Callable[[Any], Any]


def schema(columns: pa.Schema) -> dict[str, Any]:
    """The JSON Schema of rows with these columns."""
    return {"type": "object", "properties": {column.name: _schema(column.type) for column in columns}}


def _schema(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_dictionary(kind):
        return _schema(kind.value_type)
    if pa.types.is_integer(kind):
        return {"type": ["integer", "null"]}
    if pa.types.is_floating(kind):
        return {"type": ["number", "null"]}
    if pa.types.is_boolean(kind):
        return {"type": ["boolean", "null"]}
    if pa.types.is_timestamp(kind) and kind.tz:
        return {"type": ["string", "null"], "format": "date-time"}
    if pa.types.is_date(kind):
        return {"type": ["string", "null"], "format": "date"}
    if _is_list(kind):
        item = _schema(kind.value_type)
        return {"type": ["array", "null"], "items": item} if _is_plain(kind.value_type) else {}
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return {}
    return {"type": ["string", "null"]}


def form(kind: pa.DataType) -> Form:
    """What makes the JSON form of a Python value of a type; null stays null."""
    made = _form(kind)
    return lambda value: None if value is None else made(value)


def _form(kind: pa.DataType) -> Form:
    if pa.types.is_dictionary(kind):
        return _form(kind.value_type)
    if pa.types.is_float64(kind):
        return _finite
    if pa.types.is_floating(kind):
        short = np.float16 if pa.types.is_float16(kind) else np.float32
        return lambda value: _finite(float(str(short(value))))
    if pa.types.is_decimal(kind):
        return lambda value: format(value, "f")
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        return _moment
    if pa.types.is_duration(kind):
        return lambda value: value.isoformat() if hasattr(value, "isoformat") else _iso(value)
    if any(check(kind) for check in _BYTES):
        return lambda value: base64.b64encode(value).decode()
    if _is_list(kind):
        item = form(kind.value_type)
        return lambda value: [item(each) for each in value]
    if pa.types.is_struct(kind):
        forms = {each.name: form(each.type) for each in kind}
        return lambda value: {name: made(value[name]) for name, made in forms.items()}
    if pa.types.is_map(kind):
        key, item = form(kind.key_type), form(kind.item_type)
        return lambda value: [[key(name), item(each)] for name, each in value]
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return lambda value: value
    return str


_BYTES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_plain(kind: pa.DataType) -> bool:
    """Whether a column of arrays can hold it."""
    return "type" in _schema(kind) and not _is_list(kind)


def _finite(value: float) -> float | str:
    """JSON has no NaN and no infinity: as texts they are refused by the schema, and seen."""
    return value if math.isfinite(value) else str(value)


def _moment(value: Any) -> str:
    """ISO 8601: in UTC, or without a zone where it has none; fractions without zeros at their end."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
    text: str = value.isoformat()
    if (isinstance(value, date) and not isinstance(value, datetime)) or "." not in text:
        return text
    text, plus, zone = text.partition("+")
    return text.rstrip("0") + plus + zone


def _iso(value: Any) -> str:
    return str(msgspec.to_builtins(value))
