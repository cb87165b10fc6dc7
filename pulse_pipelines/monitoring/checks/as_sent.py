"""The `data` of an event as it was sent, made from its row."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.schema import FieldType, Kind
from pulse_pipelines.domain.schema import columns as declared_columns


def event_data(dataset: Dataset, row: Mapping[str, Any], document: str) -> dict[str, Any]:
    """The `data` of an event, from its row. A null stands for absent, but where it is required.

    Args:
        document: the schema version that the row was validated by.
    """
    required, types = _declared(document)
    data: dict[str, Any] = orjson.loads(row["_extra"]) if row["_extra"] else {}
    for column in dataset.columns:
        value = row[column.name]
        if value is None:
            if column.field in required:
                data[column.field] = None
        elif column.type.kind in (Kind.TIMESTAMP, Kind.DATE):
            data[column.field] = value.isoformat()
        elif column.type.kind is Kind.JSON:
            data[column.field] = orjson.loads(value)
        else:
            data[column.field] = _as_sent(_without_nulls(value), types.get(column.field, column.type))
    return data


@lru_cache(maxsize=1024)
def _declared(document: str) -> tuple[frozenset[str], Mapping[str, FieldType]]:
    """The required properties of a schema version, and the types of its columns by property."""
    schema = orjson.loads(document)
    types = {column.field: column.type for column in declared_columns(schema)}
    return frozenset(schema.get("required", ())), types


def _as_sent(value: Any, kind: FieldType) -> Any:
    """The integers of a column that has become one of doubles since, as integers."""
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


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
