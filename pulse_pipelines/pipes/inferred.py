"""A schema that follows from a sample of entities; of what no value shows, it says nothing."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

SAMPLE = 1_000
"""Entities of a sample, at most."""
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def schema(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON Schema of rows whose values are JSON; empty if there are none."""
    seen: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            if not name.startswith("_"):
                found = msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
                types = seen.setdefault(name, set())
                if found is not None:
                    types.add(_NAMES.get(type(found), ""))
    return {"type": "object", "properties": {name: _of(types) for name, types in seen.items()}}


def _of(types: set[str]) -> dict[str, Any]:
    """Of one kind of values; of several, of objects and of arrays: any JSON."""
    if types == {"integer", "number"}:
        types = {"number"}
    return {"type": [*types, "null"]} if len(types) == 1 and "" not in types else {}
