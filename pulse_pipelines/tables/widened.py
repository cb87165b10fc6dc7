"""Widened columns: the digits of integers that become doubles, which cannot hold all of them.

As when an event lands whose number has more digits than its column: the column has the nearest double, and
`_extra` the number as it was.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulse_pipelines.domain import json_values
from pulse_pipelines.domain.schemas.columns import FieldType, Kind, property_of
from pulse_pipelines.tables.arrow_columns import json_text, untyped_parts

EXTRA = "_extra"
EXACT = 2**53
"""A double holds each integer up to it."""


def extra_column(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Array | None:
    """The column `_extra` of rows that are cast to a schema; None if the cast changes nothing of it."""
    place = batch.schema.get_field_index(EXTRA)
    rounded = [
        (property_of(field.name), _kind(field.type), column)
        for field in schema
        if (index := batch.schema.get_field_index(field.name)) >= 0
        and (column := batch.column(index)).type != field.type
        and _may_round(column, field.type)
    ]
    if place < 0 or not rounded:
        return None
    texts = batch.column(place).to_pylist()
    for name, kind, column in rounded:
        for row, value in enumerate(column.to_pylist()):
            if digits := untyped_parts(value, kind):
                before = {} if texts[row] is None else json_values.stored(texts[row])
                texts[row] = json_text(_joined(before, {name: digits}))
    return pa.array(texts, batch.column(place).type)


def _may_round(column: pa.Array, kind: pa.DataType) -> bool:
    """Whether an integer of a column, at any depth, is too large for each double in a column of a type."""
    if pa.types.is_integer(column.type):
        least, most = pc.min_max(column).as_py().values()
        return pa.types.is_floating(kind) and least is not None and (least < -EXACT or most > EXACT)
    if pa.types.is_struct(column.type):
        return any(
            _may_round(pc.struct_field(column, [index]), kind.field(member.name).type)
            for index, member in enumerate(column.type)
        )
    if _is_list(column.type):
        return _may_round(column.flatten(), kind.value_type)
    return False


def _kind(kind: pa.DataType) -> FieldType:
    """Where a type has doubles; all others are as one that rounds nothing."""
    if pa.types.is_floating(kind):
        return FieldType(Kind.DOUBLE)
    if pa.types.is_struct(kind):
        return FieldType(Kind.STRUCT, tuple((member.name, _kind(member.type)) for member in kind))
    if _is_list(kind):
        return FieldType(Kind.LIST, item=_kind(kind.value_type))
    return FieldType(Kind.STRING)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _joined(before: Any, digits: Any) -> Any:
    """What `_extra` has, with more of it; lists keep their positions."""
    if isinstance(before, dict) and isinstance(digits, dict):
        return before | {name: _joined(before.get(name), value) for name, value in digits.items()}
    if isinstance(before, list) and isinstance(digits, list):
        return [_joined(item, more) for item, more in zip(before, digits, strict=True)]
    return before if digits is None else digits
