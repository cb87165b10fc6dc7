"""Column types: one entry for each scalar kind of a declared field.

A new kind is an entry here, a row in docs/column-types.md, which a test compares, and a case in
`domain.schemas.columns`, which finds it in a JSON Schema; one that is sent as text has a parser in
`arrow_columns`.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
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
    """The integer that a number is, by its digits. Raises ValueError if it is none of 64 bits."""
    if not isinstance(value, float):
        return value
    text = value.text if isinstance(value, Number) else repr(value)
    if abs(value) <= -INT64.start:  # also: neither endless nor NaN
        with suppress(ArithmeticError):  # of an exponent beyond all decimals
            exact = Decimal(text)
            if exact == int(exact) and int(exact) in INT64:
                return int(exact)
    raise ValueError(f"{text[:100]} is not a whole number from {INT64.start} to {INT64.stop - 1}")


@dataclass(frozen=True)
class ColumnType:
    declared_by: str
    """The JSON Schema that declares a column of this type, for docs."""
    arrow: pa.DataType
    iceberg: IcebergType
    holds: Callable[[Any], bool]
    """Whether it can hold a decoded JSON value, other than null, that was not validated against it."""
    fit: Callable[[Any], Any] = lambda value: value
    """Converts a value for Arrow: JSON has one type of numbers, Arrow has two. Raises ValueError."""


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
ICEBERG = {
    column_type.arrow: column_type.iceberg for kind, column_type in SCALARS.items() if kind is not Kind.JSON
}
"""Iceberg types by Arrow type."""
