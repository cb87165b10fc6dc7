"""Types of Parquet: how an entity has the values of a column, as for Postgres (`domain.pg_types`)."""

import base64
import math
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Form = Callable[[Any], Any]
_SECOND = 1_000_000_000
_DAY = 86_400 * _SECOND
_NANOSECONDS = {"s": _SECOND, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""By unit of a time."""


def schema(columns: pa.Schema) -> dict[str, Any]:
    """The JSON Schema of rows with these columns."""
    return {"type": "object", "properties": {column.name: _schema(column.type) for column in columns}}


def _schema(kind: pa.DataType) -> dict[str, Any]:
    kind = _plain(kind)
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


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type that values of an extension of Arrow have in Python; any other type itself."""
    if isinstance(kind, pa.UuidType | pa.JsonType):
        return pa.string()
    if isinstance(kind, pa.Bool8Type):
        return pa.bool_()
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def has_variant(kind: pa.DataType) -> bool:
    """Whether it is or holds a VARIANT: a struct of encoded values, known by its members."""
    if pa.types.is_struct(kind):
        names = {member.name for member in kind}
        if names in _VARIANTS and not kind.field("metadata").nullable and _is_bytes(kind.field("value").type):
            return True
    return any(has_variant(kind.field(place).type) for place in range(kind.num_fields))


_VARIANTS = ({"metadata", "value"}, {"metadata", "value", "typed_value"})


def readable(kind: pa.DataType) -> pa.DataType:
    """The type that a column is cast to before `form` has its values.

    Python has no times in nanoseconds, no 24:00, not all zones, and outside the years 1 to 9999 no hours
    of other zones.
    """
    if pa.types.is_dictionary(kind):
        return readable(kind.value_type) if pa.types.is_time(kind.value_type) else kind
    if pa.types.is_struct(kind):
        return pa.struct([member.with_type(readable(member.type)) for member in kind])
    if pa.types.is_map(kind):
        return pa.map_(readable(kind.key_type), readable(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(_readable_item(kind))
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(_readable_item(kind))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_readable_item(kind), kind.list_size)
    if pa.types.is_timestamp(kind) and kind.tz:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_time(kind):
        return pa.int32() if pa.types.is_time32(kind) else pa.int64()
    return kind


def _readable_item(kind: pa.DataType) -> pa.Field:
    return kind.value_field.with_type(readable(kind.value_type))


def annotated(columns: pa.Schema, stored: pq.ParquetSchema) -> dict[str, pa.DataType]:
    """The types of columns by name: with ENUM as text and INTERVAL as such, which Arrow has as bytes."""
    annotations = iter([stored.column(place).converted_type for place in range(len(stored))])
    return {column.name: _annotated(column.type, annotations) for column in columns}


def _annotated(kind: pa.DataType, annotations: Iterator[str]) -> pa.DataType:
    """A type with the annotations of its leaves, which come in the order of the file's columns."""
    if isinstance(kind, pa.BaseExtensionType):
        _annotated(kind.storage_type, annotations)
        return kind
    if pa.types.is_struct(kind):
        return pa.struct([member.with_type(_annotated(member.type, annotations)) for member in kind])
    if pa.types.is_map(kind):
        key = _annotated(kind.key_type, annotations)
        return pa.map_(key, _annotated(kind.item_type, annotations))
    if _is_list(kind):
        return pa.list_(_annotated(kind.value_type, annotations))
    return _ANNOTATED.get(next(annotations), kind)


_ANNOTATED = {"ENUM": pa.string(), "INTERVAL": pa.month_day_nano_interval()}


def form(kind: pa.DataType) -> Form:
    """The function that makes the JSON form of a Python value of a type (see `readable`); null stays null."""
    convert = _form(kind)
    return lambda value: None if value is None else convert(value)


def _form(kind: pa.DataType) -> Form:
    kind = _plain(kind)
    if pa.types.is_dictionary(kind):
        return _form(kind.value_type)
    if pa.types.is_float64(kind):
        return _finite
    if pa.types.is_floating(kind):
        short = np.float16 if pa.types.is_float16(kind) else np.float32
        return lambda value: _finite(_shortest(float(value), short))
    if pa.types.is_decimal(kind):
        return lambda value: format(value, "f")
    if pa.types.is_time(kind):
        unit = _NANOSECONDS[kind.unit]
        return lambda value: _time(value * unit)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _moment
    if pa.types.is_duration(kind):
        return _duration
    if pa.types.is_interval(kind):
        return _interval
    if _is_bytes(kind):
        return lambda value: base64.b64encode(value).decode()
    if _is_list(kind):
        item = form(kind.value_type)
        return lambda value: [item(element) for element in value]
    if pa.types.is_struct(kind):
        forms = {field.name: form(field.type) for field in kind}
        return lambda value: {name: convert(value[name]) for name, convert in forms.items()}
    if pa.types.is_map(kind):
        key, item = form(kind.key_type), form(kind.item_type)
        return lambda value: [[key(name), item(element)] for name, element in value]
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return lambda value: value
    return lambda value: value.decode() if isinstance(value, bytes) else str(value)


_BYTES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
)
_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def _is_bytes(kind: pa.DataType) -> bool:
    return any(check(kind) for check in _BYTES)


def _is_list(kind: pa.DataType) -> bool:
    return any(check(kind) for check in _LISTS)


def _is_plain(kind: pa.DataType) -> bool:
    """Whether a column of arrays can hold it."""
    return "type" in _schema(kind) and not _is_list(kind)


def _shortest(value: float, short: Any) -> float:
    """The shortest decimal that stands for a float of fewer bits, but a whole number with all its digits."""
    return value if value.is_integer() and abs(value) < 2**53 else float(str(short(value)))


def _finite(value: float) -> float | str:
    """JSON has no NaN and no infinity: as texts they are refused by the schema, and seen."""
    return value if math.isfinite(value) else str(value)


def _moment(value: Any) -> str:
    """ISO 8601: in UTC, or without a zone where it has none; fractions without zeros at their end."""
    if value != value:
        raise ValueError("a moment out of range")
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
    text: str = value.isoformat()
    if (isinstance(value, date) and not isinstance(value, datetime)) or "." not in text:
        return text
    text, plus, zone = text.partition("+")
    return text.rstrip("0") + plus + zone


def _time(nanoseconds: int) -> str:
    if not 0 <= nanoseconds <= _DAY:
        raise ValueError("a time out of range")
    seconds, remainder = divmod(nanoseconds, _SECOND)
    minutes, second = divmod(seconds, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}{_fraction(remainder)}"


def _duration(value: Any) -> str:
    """ISO 8601: days and seconds, with all digits of what pandas has for nanoseconds."""
    if not hasattr(value, "value"):
        return str(msgspec.to_builtins(value))
    seconds, remainder = divmod(abs(value.value), _SECOND)
    days, seconds = divmod(seconds, 86_400)
    time = f"T{seconds}{_fraction(remainder)}S" if seconds or remainder or not days else ""
    return f"{'-' * (value.value < 0)}P{f'{days}D' * (days > 0)}{time}"


def _interval(value: bytes) -> str:
    """ISO 8601, as Postgres writes it: months, days and milliseconds, each of which Parquet stores alone."""
    months, days, milliseconds = _INTERVAL(value)
    minutes, remainder = divmod(milliseconds, 60_000)
    seconds = f"{remainder // 1_000}{_fraction(remainder % 1_000 * 1_000_000)}"
    of_day = ((months // 12, "Y"), (months % 12, "M"), (days, "D"))
    of_time = ((minutes // 60, "H"), (minutes % 60, "M"), (seconds, "S"))
    day, time = ("".join(f"{n}{unit}" for n, unit in some if n not in (0, "0")) for some in (of_day, of_time))
    return f"P{day}{f'T{time}' * bool(time)}" if day or time else "PT0S"


_INTERVAL = struct.Struct("<III").unpack


def _fraction(nanoseconds: int) -> str:
    return f".{nanoseconds:09}".rstrip("0") if nanoseconds else ""
