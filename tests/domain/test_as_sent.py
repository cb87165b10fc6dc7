"""The data of an event, made from its row: valid by the schema that the event followed. No services."""

import json
from typing import Any

import pytest
from support.conform import TENANT, dataset, messages

from pulse_pipelines.domain.as_sent import event_data
from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.event_limits import UNLIMITED
from pulse_pipelines.domain.schemas.violations import violation
from pulse_pipelines.ingest.conform import TopicConformer

NULLABLE = {"type": ["string", "null"]}
PERSON = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": NULLABLE, "age": {"type": "integer"}},
}
SCHEMA = {
    "$defs": {"person": PERSON},
    "oneOf": [
        {
            "type": "object",
            "required": ["kind", "note"],
            "additionalProperties": False,
            "properties": {"kind": {"const": "x"}, "note": NULLABLE, "by": {"$ref": "#/$defs/person"}},
        },
        {
            "type": "object",
            "required": ["kind", "all"],
            "additionalProperties": False,
            "properties": {
                "kind": {"const": "y"},
                "all": {"type": "array", "items": {"$ref": "#/$defs/person"}},
                "by": {"anyOf": [{"$ref": "#/$defs/person"}, {"type": "null"}]},
            },
        },
    ],
}


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "x", "note": None},
        {"kind": "x", "note": "n", "by": {"name": None}},
        {"kind": "x", "note": "n", "by": {"name": None, "age": 3}},
        {"kind": "y", "all": []},
        {"kind": "y", "all": [{"name": None}, {"name": "n", "age": 1}], "by": {"name": None}},
    ],
)
def test_nulls_are_where_the_choice_of_the_event_requires_them(data: dict[str, Any]) -> None:
    of = dataset(SCHEMA)
    event = {"event_id": "e", "dataset": "orders", "timestamp": "2026-11-19T10:00:00Z", "data": data}
    conformed = TopicConformer(Scope(TENANT, (of,)), "batch", UNLIMITED).chunk(
        messages([json.dumps(event).encode()])
    )
    (row,) = conformed.tables["orders"].to_pylist()
    assert event_data(of, row, of.document) == data
    assert violation(of.document, data) is None


def test_undeclared_members_of_declared_objects_are_there() -> None:
    place = {"type": "object", "properties": {"city": {"type": "string"}, "at": {"type": "object"}}}
    lines = {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}}
    nested = {
        "type": "object",
        "properties": {"place": place, "near": {"type": "array", "items": place}, "lines": lines},
    }
    of = dataset(nested)
    for data in (
        {"place": {"city": "B", "zip": "10115"}, "lines": [{"sku": "s"}, {"sku": "t", "n": 3}], "other": 1},
        {"place": {"zip": "10115"}, "lines": [{}, {"n": None}], "near": []},
        {"place": {"at": {"x": 1}}, "near": [{"city": "B"}, {"at": {}, "zip": [{"a": 1}]}]},
    ):
        event = {"event_id": "e", "dataset": "orders", "timestamp": "2026-11-19T10:00:00Z", "data": data}
        conformed = TopicConformer(Scope(TENANT, (of,)), "batch", UNLIMITED).chunk(
            messages([json.dumps(event).encode()])
        )
        (row,) = conformed.tables["orders"].to_pylist()
        assert event_data(of, row, of.document) == data
