"""Frames: dataclasses as Arrow record batches, with a schema derived from their fields.

Input and output of Spark tasks: only values of the declared types cross the process border, independent of
the Python versions on either side.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar
from uuid import UUID

import pyarrow as pa

_SCALARS: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    UUID: pa.string(),
    date: pa.date32(),
    datetime: pa.timestamp("us", "UTC"),
    timedelta: pa.duration("us"),
}
_LISTS = (list, tuple, frozenset, Sequence)
_Value = TypeVar("_Value")
_Way = Callable[[Any], Any]
"""Converts a value to what Arrow accepts, or back."""


def schema(kinds: Sequence[type]) -> pa.Schema:
    """Schema of a frame: one nullable column per dataclass that a row may hold."""
    return pa.schema([pa.field(kind.__name__, _arrow(kind)) for kind in kinds])


def frame(values: Iterable[object], kinds: Sequence[type]) -> pa.RecordBatch:
    """Build a frame: one row per value, in the column of its class.

    Args:
        kinds: dataclasses, whose fields are scalars, such dataclasses, or tuples, lists, frozensets and
            mappings of them; each may be optional.
    """
    rows = list(values)
    columns = []
    for kind in kinds:
        to_arrow = _ways(kind)[0]
        columns.append(pa.array([to_arrow(row) if type(row) is kind else None for row in rows], _arrow(kind)))
    return pa.record_batch(columns, schema=schema(kinds))


def values(rows: pa.Table | pa.RecordBatch, kinds: Sequence[type[_Value]]) -> list[_Value]:
    """Values of a frame, in order."""
    read: list[Any] = [None] * rows.num_rows
    for kind in kinds:
        from_arrow = _ways(typing.cast(Any, kind))[1]
        for index, row in enumerate(rows.column(kind.__name__).to_pylist()):
            if row is not None:
                read[index] = from_arrow(row)
    return read


@cache
def _fields(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@cache
def _arrow(hint: Any) -> pa.DataType:
    hint = _needed(hint)
    if dataclasses.is_dataclass(hint):
        return pa.struct([(name, _arrow(inner)) for name, inner in _fields(typing.cast(type, hint)).items()])
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Mapping or origin is dict:
        return pa.map_(_arrow(inner[0]), _arrow(inner[1]))
    if origin is tuple and inner[-1] is not ...:
        return pa.struct([(str(number), _arrow(member)) for number, member in enumerate(inner)])
    if origin in _LISTS:
        return pa.list_(_arrow(inner[0]))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return pa.string()
    return _SCALARS[hint]


@cache
def _ways(hint: Any) -> tuple[_Way, _Way]:
    """Converters to Arrow and back."""
    required = _needed(hint)
    to_arrow, from_arrow = _ways_of_needed(required)
    if required is hint:
        return to_arrow, from_arrow
    return (
        lambda value: None if value is None else to_arrow(value),
        lambda value: None if value is None else from_arrow(value),
    )


def _ways_of_needed(hint: Any) -> tuple[_Way, _Way]:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        kind = typing.cast(type, hint)
        ways = {name: _ways(field) for name, field in _fields(kind).items()}
        return (
            lambda value: {name: way[0](getattr(value, name)) for name, way in ways.items()},
            lambda row: kind(**{name: way[1](row[name]) for name, way in ways.items()}),
        )
    if origin is Mapping or origin is dict:
        (key, key_back), (item, item_back) = _ways(inner[0]), _ways(inner[1])
        return (
            lambda value: [(key(k), item(v)) for k, v in value.items()],
            lambda pairs: {key_back(k): item_back(v) for k, v in pairs},
        )
    if origin is tuple and inner[-1] is not ...:
        ways_by_position = [_ways(kind) for kind in inner]
        return (
            lambda value: {str(n): way[0](value[n]) for n, way in enumerate(ways_by_position)},
            lambda row: tuple(way[1](row[str(n)]) for n, way in enumerate(ways_by_position)),
        )
    if origin in _LISTS:
        item, item_back = _ways(inner[0])
        sequence = origin if origin in (tuple, frozenset) else list
        if _is_plain(inner[0]):
            return list, sequence
        return lambda value: [item(v) for v in value], lambda row: sequence(item_back(v) for v in row)
    if hint is UUID or (isinstance(hint, type) and issubclass(hint, StrEnum)):
        return str, hint
    if hint not in _SCALARS:
        raise TypeError(f"no frame has values of the type {hint}")
    return _same, _same


def _same(value: Any) -> Any:
    return value


def _is_plain(hint: Any) -> bool:
    return _ways(hint) == (_same, _same)


def _needed(hint: Any) -> Any:
    """Type of a value that is not None."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    (only,) = (choice for choice in typing.get_args(hint) if choice is not type(None))
    return only
