"""Stored rows are judged by the package `jsonschema`: as ingestion does, and in time."""

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from support.conformance import data_of, roots

from chaos.waiting import PATIENCE_S
from pulse_pipelines.domain.schemas.schema import DRAFTS
from pulse_pipelines.domain.schemas.violations import violation
from pulse_pipelines.monitoring.checks.reference_validator import NotJudgedError, ReferenceValidator


def find_violation(schema: dict[str, Any], data: Any, seconds: float = PATIENCE_S) -> str | None:
    return ReferenceValidator(seconds).find_violation(json.dumps(schema), data)


@settings(max_examples=100)
@given(st.data())
def test_both_implementations_judge_alike(draw: st.DataObject) -> None:
    schema = draw.draw(roots())
    document = json.dumps({"$schema": DRAFTS[0]} | schema)
    reference = ReferenceValidator(PATIENCE_S)
    for data in draw.draw(st.lists(data_of(schema), min_size=1, max_size=5)):
        assert (reference.find_violation(document, data) is None) == (violation(document, data) is None)


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(
    ("schema", "data", "pointer"),
    [
        ({"properties": {"a": {"multipleOf": 0.1}}}, {"a": 0.3}, None),
        ({"properties": {"a": {"multipleOf": 0.1}}}, {"a": 0.35}, "/a"),
        ({"properties": {"a": {"multipleOf": 0.01}}}, {"a": 10**30}, None),
        ({"properties": {"a": {"pattern": "^a$"}}}, {"a": "a\n"}, "/a"),
        ({"patternProperties": {"^a": {"type": "integer"}}}, {"b": "", "a~/b": ""}, "/a~0~1b"),
        ({"patternProperties": {"^a": {}}, "additionalProperties": False}, {"ab": 1}, None),
        ({"patternProperties": {"^a": {}}, "additionalProperties": False}, {"ba": 1}, ""),
        ({"properties": {"b": {}}, "additionalProperties": {"type": "null"}}, {"b": 1, "c": 1}, "/c"),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [1, True]}, None),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [1, 1.0]}, "/a"),
        ({"properties": {"a": {"format": "date"}}}, {"a": "no date"}, None),
    ],
)
def test_numbers_patterns_and_formats_are_judged_as_ingestion_does(
    draft: str, schema: dict[str, Any], data: Any, pointer: str | None
) -> None:
    schema = {"$schema": draft} | schema
    assert find_violation(schema, data) == pointer
    assert (violation(json.dumps(schema), data) is None) == (pointer is None)


def test_patterns_do_not_backtrack() -> None:
    text = "a" * 5_000 + "!"
    for schema in (
        {"properties": {"a": {"pattern": "^(a+)+$"}}},
        {"patternProperties": {"^(a+)+$": False}, "properties": {"a": {"type": "string"}}},
        {"patternProperties": {"^(a+)+$": True}, "additionalProperties": {"type": "string"}},
    ):
        find_violation(schema, {"a": text, text: text})


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"$ref": "https://example.com/schema"}, {}),
        ({"properties": {"a": {"pattern": "(?<=a)b"}}}, {"a": "b"}),
        ({"patternProperties": {"a": {}}, "unevaluatedProperties": False}, {}),
        ({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}, {}),
        ({"description": "a" * 70_000}, {}),
        ({}, {"a": "b" * 70_000}),
    ],
    ids=[
        "another document",
        "a pattern",
        "a pattern of unevaluated",
        "endless",
        "a large schema",
        "large data",
    ],
)
def test_schemas_that_the_package_cannot_judge_are_left_to_ingestion(
    schema: dict[str, Any], data: Any
) -> None:
    with pytest.raises(NotJudgedError):
        find_violation(schema, data)


def test_the_time_is_checked_before_each_keyword() -> None:
    with pytest.raises(NotJudgedError, match="the time is over"):
        find_violation({"properties": {"a": {"type": "string"}}}, {"a": "b"}, seconds=-1)
