"""Reconstruction of an event's `data`, as it was sent, from its row."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from pulse_pipelines.domain import json_values
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.schemas.bundle import bundled
from pulse_pipelines.domain.schemas.columns import FieldType, Kind, columns as declared_columns
from pulse_pipelines.domain.schemas.discriminators import unions
from pulse_pipelines.domain.schemas.subschemas import Subschema, dict_of, list_of, resolve


def event_data(dataset: Dataset, row: Mapping[str, Any], document: str) -> dict[str, Any]:
    """The `data` of an event, from its row. A null column means absent, unless the property is required.

    Args:
        document: the schema version that the row was validated by.
    """
    schema = _declared(document)
    data: dict[str, Any] = json_values.stored(row["_extra"]) if row["_extra"] else {}
    nodes, required = [schema.root], schema.required
    if not schema.alone:
        nodes = schema.applying(nodes, {column.field: row[column.name] for column in dataset.columns})
        required = _required(nodes)
    for column in dataset.columns:
        value, field = row[column.name], column.field
        if value is None:
            if field in required:
                data[field] = None
        elif type(value) in _AS_THEY_ARE:
            data[field] = json_values.stored(value) if column.type.kind is Kind.JSON else value
        elif type(value) is float and field in schema.doubles:
            data.setdefault(field, value)  # there are more digits in `_extra`
        elif column.type.kind in (Kind.TIMESTAMP, Kind.DATE):
            data[field] = value.isoformat()
        else:
            converted = schema.without_nulls(value, _members(nodes, field))
            converted = _as_sent(converted, schema.types.get(field, column.type))
            data[field] = _whole(converted, data.get(field))
    return data


_AS_THEY_ARE = frozenset((str, int, bool))
"""Types of values that stay as they were sent, except JSON text."""
_OTHERS = ("$ref", "allOf", "anyOf", "oneOf")
"""Keywords by which other subschemas apply to the same value."""


@lru_cache(maxsize=1024)
def _declared(document: str) -> "_Schema":
    return _Schema(orjson.loads(document))


class _Schema:
    """A schema version: tells whether a null in a row was sent as null or was absent."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.root: Subschema = bundled(document)
        self.types: Mapping[str, FieldType] = {
            column.field: column.type for column in declared_columns(document)
        }
        self.doubles = {field for field, kind in self.types.items() if kind.kind is Kind.DOUBLE}
        """Declared fields whose numbers are as they were sent."""
        self.alone = not any(keyword in self.root for keyword in _OTHERS)
        """Whether the root is the only subschema that applies to an event's data."""
        self.required = _required([self.root])
        self._unions = unions(self.root)

    def applying(self, nodes: Sequence[Any], value: Any) -> list[Subschema]:
        """The given subschemas, and all others that apply to the value through them."""
        unique: dict[int, Subschema] = {}
        pending = [*nodes]
        while pending:
            node = pending.pop()
            if not isinstance(node, dict) or id(node) in unique:
                continue
            unique[id(node)] = node
            if isinstance(reference := node.get("$ref"), str):
                pending.append(resolve(reference, self.root))
            pending.extend(list_of(node.get("allOf")))
            if (union := self._unions.get(id(node))) is not None and isinstance(value, dict):
                pending.extend(c.schema for c in union.choices if value.get(union.member) in c.values)
                continue
            for keyword in ("anyOf", "oneOf"):
                choices = [choice for choice in list_of(node.get(keyword)) if choice != {"type": "null"}]
                pending.extend(choices if len(choices) == 1 else ())
        return list(unique.values())

    def without_nulls(self, value: Any, nodes: Sequence[Any]) -> Any:
        """A value without its members that are null and not required."""
        if isinstance(value, dict):
            applying = self.applying(nodes, value)
            required = _required(applying)
            return {
                key: self.without_nulls(item, _members(applying, key))
                for key, item in value.items()
                if item is not None or key in required
            }
        if isinstance(value, list):
            items = [node.get("items") for node in self.applying(nodes, value)]
            return [self.without_nulls(item, items) for item in value]
        return value


def _required(nodes: Sequence[Subschema]) -> set[str]:
    return {name for node in nodes for name in list_of(node.get("required"))}


def _members(nodes: Sequence[Subschema], name: str) -> list[Any]:
    return [node["properties"][name] for node in nodes if name in dict_of(node.get("properties"))]


def _whole(value: Any, undeclared: Any) -> Any:
    """A nested value with the members that its column has no place for (see `arrow_columns.extras`)."""
    if isinstance(value, dict) and isinstance(undeclared, dict):
        return value | {name: _whole(value.get(name), member) for name, member in undeclared.items()}
    if isinstance(value, list) and isinstance(undeclared, list):
        return [_whole(item, member) for item, member in zip(value, undeclared, strict=True)]
    is_rounded = isinstance(undeclared, int | float)
    return undeclared if value is None or is_rounded else value


def _as_sent(value: Any, kind: FieldType) -> Any:
    """The value with integers as sent, where the column was integer once and is double now."""
    if kind.kind is Kind.LONG and isinstance(value, float):
        return int(value)
    if kind.kind is Kind.STRUCT and isinstance(value, dict):
        members = dict(kind.fields)
        return {
            name: _as_sent(item, members[name]) if name in members else item for name, item in value.items()
        }
    if kind.kind is Kind.LIST and isinstance(value, list) and kind.item is not None:
        return [_as_sent(item, kind.item) for item in value]
    return value
