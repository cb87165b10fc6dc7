"""Types of Postgres: how an entity has the values of a column, by the rule of docs/pipes.md.

Nothing is rounded and nothing is made up: what no JSON Schema of one type can hold exactly is text, as
Postgres writes it. What a schema then refuses (infinite dates, NaN) becomes a dead letter.
"""

from typing import Any, NamedTuple

TEXT = "string"
_INTEGERS = frozenset({"int2", "int4", "int8"})
_NUMBERS = frozenset({"float4", "float8"})
_STRINGS = frozenset({"text", "varchar", "bpchar", "name", "uuid", "citext"})
_SIZED = frozenset({"text", "varchar", "bpchar"})
_FORMATS = {"timestamptz": "date-time", "date": "date"}
_JSON = frozenset({"json", "jsonb"})


class Shape(NamedTuple):
    """A column of an entity."""

    schema: dict[str, Any]
    expression: str
    """SQL of its value, with {} for the column."""
    is_sized: bool = False
    """Whether `octet_length` tells the bytes of a value, without reading those that are stored apart."""


_MOMENTS = {
    "timestamptz": "trim('\"' FROM to_json({})::text)",
    "timestamp": "CASE WHEN isfinite({}) THEN trim('\"' FROM to_json({})::text) || 'Z' ELSE {}::text END",
    "date": "CASE WHEN isfinite({}) THEN {}::text || 'T00:00:00Z' ELSE {}::text END",
}


def moment(name: str) -> str | None:
    """SQL of a column as an event's timestamp, with {} for the column; None: the type is not a time.

    RFC 3339, in UTC, as which what has no zone is read; of infinite values and of years beyond 1 to 9999 a
    text that no event may have.

    Args:
        name: of the type in `pg_type`, of domains that of their base.
    """
    return _MOMENTS.get(name)


def shape(name: str, *, of_array: bool = False) -> Shape:
    """The shape of a column of a type.

    Args:
        name: of the type in `pg_type`, of domains that of their base; of arrays that of their elements.
        of_array: whether it is an array of these.
    """
    if of_array:
        item = shape(name)
        if name in _INTEGERS | _NUMBERS | _STRINGS | {"bool"}:
            return Shape({"type": ["array", "null"], "items": item.schema}, "{}")
        return Shape({"type": ["array", "null"], "items": {"type": [TEXT, "null"]}}, "{}::text[]")
    if name in _INTEGERS:
        return Shape({"type": ["integer", "null"]}, "{}")
    if name in _NUMBERS:
        return Shape({"type": ["number", "null"]}, "{}")
    if name == "bool":
        return Shape({"type": ["boolean", "null"]}, "{}")
    if name in _FORMATS:
        return Shape({"type": [TEXT, "null"], "format": _FORMATS[name]}, "{}")
    if name in _JSON:
        return Shape({}, "{}")
    if name == "bytea":
        return Shape({"type": [TEXT, "null"]}, "translate(encode({}, 'base64'), E'\\n', '')", is_sized=True)
    if name == "timestamp":
        return Shape({"type": [TEXT, "null"]}, "{}")  # as JSON has it, with a T: no zone is made up
    return Shape({"type": [TEXT, "null"]}, "{}::text", is_sized=name in _SIZED)
