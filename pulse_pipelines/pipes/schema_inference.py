"""A schema derived from a sample of entities; it declares only properties that the sample has."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from pulse_pipelines.pipes.rows import is_container

SAMPLE = 1_000
"""Entities of a sample, at most."""
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def schema(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The JSON Schema of rows whose values are JSON; None if they show no property."""
    types_by_name: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            if not name.startswith("_"):
                types_by_name.setdefault(name, set()).update(_type(value))
    properties = {name: _schema_of_types(types) for name, types in types_by_name.items()}
    return {"type": "object", "properties": properties} if properties else None


def _type(value: Any) -> tuple[str, ...]:
    """The name of a value's type; of what has none, an empty one; of null, nothing."""
    if isinstance(value, msgspec.Raw):
        if is_container(value):
            return ("",)
        try:
            value = msgspec.json.decode(value)
        except msgspec.ValidationError:  # a number that is too large for this decoder
            return ("number",)
        except UnicodeDecodeError:  # the row is refused when it is read
            return ("string",)
    return () if value is None else (_NAMES.get(type(value), ""),)


def _schema_of_types(types: set[str]) -> dict[str, Any]:
    """The schema of values of one type; any JSON for several types, objects and arrays."""
    if types == {"integer", "number"}:
        types = {"number"}
    return {"type": [*types, "null"]} if len(types) == 1 and "" not in types else {}
