"""Column types: one entry for each scalar kind of a declared field.

A new kind is an entry here, a row in docs/column-types.md, which a test compares, and a case in
`domain.schemas.columns`, which finds it in a JSON Schema; one that is sent as text has a parser in
`arrow_columns`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.types import (
    BooleanType,
    DateType,
    DoubleType,
    IcebergType,
    LongType,
    StringType,
    TimestamptzType,
)

from pulse_pipelines.domain.event import INT64
from pulse_pipelines.domain.json_values import Number
from pulse_pipelines.domain.schemas.columns import Kind

TIMESTAMP = pa.timestamp("us", "UTC")


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_whole(value: Any) -> bool:
    return type(value) is int or (isinstance(value, float) and value.is_integer())


def _whole(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return int(value) if _is_whole(value) and int(value) in INT64 else float(value)


@dataclass(frozen=True)
class ColumnType:
    declared_by: str
    """The JSON Schema that declares a column of this type, for docs."""
    arrow: pa.DataType
    iceberg: IcebergType
    holds: Callable[[Any], bool]
    """Whether it can hold a decoded JSON value, other than null, that was not validated against it."""
    fit: Callable[[Any], Any] = lambda value: value
    """Converts a value for Arrow: JSON has one type of numbers, Arrow has two."""


SCALARS: dict[Kind, ColumnType] = {
    Kind.STRING: ColumnType('`"type": "string"`', pa.string(), StringType(), _is_text),
    Kind.LONG: ColumnType('`"type": "integer"`', pa.int64(), LongType(), _is_whole, _whole),
    Kind.DOUBLE: ColumnType(
        '`"type": "number"`',
        pa.float64(),
        DoubleType(),
        lambda value: type(value) in (int, float, Number),
        lambda value: float(value) if type(value) is int else value,
    ),
    Kind.BOOLEAN: ColumnType(
        '`"type": "boolean"`', pa.bool_(), BooleanType(), lambda value: type(value) is bool
    ),
    Kind.TIMESTAMP: ColumnType(
        '`"type": "string", "format": "date-time"`, not within another field',
        TIMESTAMP,
        TimestamptzType(),
        _is_text,
    ),
    Kind.DATE: ColumnType(
        '`"type": "string", "format": "date"`, not within another field', pa.date32(), DateType(), _is_text
    ),
    Kind.JSON: ColumnType(
        "anything else: several types, none, or choices that differ",
        pa.string(),
        StringType(),
        lambda value: True,
    ),
}
ICEBERG = {each.arrow: each.iceberg for kind, each in SCALARS.items() if kind is not Kind.JSON}
"""Iceberg types by Arrow type."""
