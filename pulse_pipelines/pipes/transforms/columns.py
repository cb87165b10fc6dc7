"""Columns of a transform's result: their JSON Schema, and the SQL that writes each row's JSON."""

import re
from collections.abc import Sequence
from typing import Any

import orjson
from pyspark.sql import types as t

from pulse_pipelines.pipes.transforms.sources import ID
from pulse_resources.errors import UserError

_INTEGERS = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_LONG_DOUBLE = re.compile(r"[0-9]E-?[0-9]|[0-9.]{17}", re.ASCII)
_TIMES = "map('timeZone', 'UTC', 'timestampFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX\")"


def check(columns: Sequence[t.StructField]) -> None:
    """Check that a result has an id, and properties that entities can have.

    Raises:
        UserError: it does not have them, with the column.
    """
    names = [column.name for column in columns]
    for name in names:
        if name.startswith("_"):
            raise UserError(
                f"the column {name!r} begins with _, and such properties of entities are not stored",
                fix="Give it another name with AS",
            )
        if [name.lower() for name in names].count(name.lower()) > 1:
            raise UserError(f"two columns of the transform are called {name!r}", fix="Rename one with AS")
    for column in columns:
        _check_members(column.name, column.dataType)
    id_column = next((column for column in columns if column.name == ID), None)
    if id_column is None:
        raise UserError("the transform has no column id", fix="Select the id of each entity, AS id")
    if not isinstance(id_column.dataType, (t.StringType, *_INTEGERS)):
        raise UserError("the column id of the transform is neither text nor integer", fix="Cast it to string")


def schema(columns: Sequence[t.StructField]) -> dict[str, Any]:
    """The JSON Schema of the entities of a result. Raises UserError: a type has none."""
    properties = {
        column.name: _schema(column.name, column.dataType) for column in columns if column.name != ID
    }
    return {"type": "object", "properties": properties}


def written(columns: Sequence[t.StructField], sql: str) -> str:
    """SQL of a result's rows: `id` as text, `data` as JSON, `times` that the id is there, and `not_text`.

    That is the name of a column with bytes that are not UTF-8: JSON has other characters for them.
    """
    named = ", ".join(f"{_literal(column.name)}, {_value(column)}" for column in columns if column.name != ID)
    data = f"to_json(named_struct({named}), {_TIMES})" if named else "'{}'"
    return (
        "SELECT id, data, count(*) OVER (PARTITION BY id) AS times, not_text "  # noqa: S608 - see `checked`
        f"FROM (SELECT CAST({ID} AS STRING) AS id, {data} AS data, {_not_text(columns)} AS not_text "
        f"FROM ({sql}))"
    )


def shortest(data: str) -> str:
    """The JSON text of a row with its doubles in their shortest form, which Java does not always write."""
    return orjson.dumps(orjson.loads(data)).decode() if _LONG_DOUBLE.search(data) else data


def with_ids(rows: str, ids: str) -> str:
    """SQL of rows as `written` has them, for each of some ids: without `data` where there is none."""
    return (
        f"SELECT ids.id, data, coalesce(times, 1) AS times, not_text "  # noqa: S608 - from SQL
        f"FROM ({ids}) AS ids LEFT JOIN ({rows}) AS result ON ids.id = result.id"
    )


def _not_text(columns: Sequence[t.StructField]) -> str:
    """SQL of the name of the first column with a text that has such bytes; a cast to text keeps them."""
    whens = [
        f"WHEN NOT is_valid_utf8(CAST({_name(column)} AS STRING)) THEN {_literal(column.name)}"
        for column in columns
        if _has_text(column.dataType)
    ]
    return f"CASE {' '.join(whens)} END" if whens else "CAST(NULL AS STRING)"


def _has_text(of: t.DataType) -> bool:
    if isinstance(of, t.ArrayType):
        return _has_text(of.elementType)
    if isinstance(of, t.StructType):
        return any(_has_text(field.dataType) for field in of.fields)
    return isinstance(of, t.StringType)


def _name(column: t.StructField) -> str:
    return f"`{column.name.replace('`', '``')}`"


def _value(column: t.StructField) -> str:
    name = _name(column)
    return f"CAST({name} AS STRING)" if isinstance(column.dataType, t.DecimalType) else name


def _check_members(name: str, of: t.DataType) -> None:
    """Raise UserError if an object of a column would have two members of one name."""
    if isinstance(of, t.ArrayType):
        _check_members(name, of.elementType)
    elif isinstance(of, t.StructType):
        if len(set(of.names)) < len(of.names):
            raise UserError(
                f"a struct of the column {name!r} of the transform has two members of one name",
                fix="Give each its own name",
            )
        for field in of.fields:
            _check_members(name, field.dataType)


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _schema(name: str, of: t.DataType, *, within: bool = False) -> dict[str, Any]:
    if isinstance(of, _INTEGERS):
        return {"type": ["integer", "null"]}
    if isinstance(of, t.FloatType | t.DoubleType):
        return {"type": ["number", "null"]}
    if isinstance(of, t.BooleanType):
        return {"type": ["boolean", "null"]}
    if isinstance(of, t.StringType) or (isinstance(of, t.DecimalType) and not within):
        return {"type": ["string", "null"]}
    if isinstance(of, t.TimestampType | t.DateType):
        return {"type": ["string", "null"], "format": "date" if isinstance(of, t.DateType) else "date-time"}
    if isinstance(of, t.ArrayType):
        return {"type": ["array", "null"], "items": _schema(name, of.elementType, within=True)}
    if isinstance(of, t.StructType):
        members = {field.name: _schema(name, field.dataType, within=True) for field in of.fields}
        return {"type": ["object", "null"], "properties": members}
    raise UserError(
        f"the column {name!r} of the transform is of the type {of.simpleString()}",
        fix="Cast it to a number, text, date, timestamp, or an array or struct of these",
    )
