"""What judging an event may cost: dear schemas are refused with their keyword, honest ones are not."""

import json
import time
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, strategies as st
from support.examples import times

from pulse_pipelines.domain.schemas.cheap_checks import guarded
from pulse_pipelines.domain.schemas.cost import Bound, cost
from pulse_pipelines.domain.schemas.schema import DRAFTS, check_document, validator
from pulse_pipelines.domain.schemas.violations import violation
from pulse_resources.errors import UserError

Schema = dict[str, Any]


def schema(**keywords: Any) -> Schema:
    return {"type": "object"} | keywords


def a(fragment: Any, **keywords: Any) -> Schema:
    return schema(properties={"a": fragment}, **keywords)


def items(fragment: Any) -> Schema:
    return a({"items": fragment})


FLOATS = [number + 0.5 for number in range(20_000)]
NAMES = [f"n{number}" for number in range(8_000)]
SLOW = "(a|b)*a(a|b){%d}[^ab]"
DEAR: dict[str, tuple[Schema, str]] = {
    # Name: a schema, and the pointer of the keyword that its refusal names.
    "not one of many floats": (items({"not": {"enum": FLOATS}}), "/properties/a/items/not/enum"),
    "one of 100 floats": (items({"enum": FLOATS[:100]}), "/properties/a/items/enum"),
    "one of 100 integers, or text": (items({"enum": ["x", *range(100)]}), "/properties/a/items/enum"),
    "one of 100 objects": (items({"enum": [{"a": n} for n in range(100)]}), "/properties/a/items/enum"),
    "one of 100 arrays": (items({"enum": [[n] for n in range(100)]}), "/properties/a/items/enum"),
    "any member is one of many": (
        schema(additionalProperties={"enum": FLOATS[:100]}),
        "/additionalProperties/enum",
    ),
    "a large constant": (items({"const": {"a": FLOATS[:1_000]}}), "/properties/a/items/const"),
    "many that depend": (
        items({"dependentRequired": {name: ["x"] for name in NAMES}}),
        "/properties/a/items/dependentRequired",
    ),
    "many that depend, of draft 7": (
        items({"dependencies": {name: ["x"] for name in NAMES}}) | {"$schema": DRAFTS[2]},
        "/properties/a/items/dependencies",
    ),
    "8 patterns": (
        a({"allOf": [{"pattern": SLOW % 100}] * 8}),
        "/properties/a/allOf/0/pattern",
    ),
    "patterns that count far": (
        a({"pattern": SLOW % 900, "not": {"pattern": SLOW % 800}}),
        "/properties/a/pattern",
    ),
    "patterns of names": (
        schema(patternProperties={SLOW % (100 + n): True for n in range(8)}),
        "/patternProperties",
    ),
    "multiples": (
        items({"allOf": [{"multipleOf": 0.01 * n} for n in range(1, 9)]}),
        "/properties/a/items/allOf/0/multipleOf",
    ),
    "deep in a tree": (
        schema(properties={"left": {"$ref": "#"}, "value": {"enum": FLOATS[:200]}}),
        "/properties/value/enum",
    ),
    "an enum in another one": (
        schema(enum=[{"enum": FLOATS[:100]}], properties={"a": {"items": {"$ref": "#/enum/0"}}}),
        "/$defs/enum~10/enum",
    ),
}


@pytest.mark.parametrize("name", DEAR)
def test_an_expensive_schema_is_refused_with_its_costliest_keyword(name: str) -> None:
    document, pointer = DEAR[name]
    with pytest.raises(UserError) as refused:
        check_document(json.dumps(document), Bound())
    assert f"#{pointer} costs most" in str(refused.value)
    assert "the limit is 10.0 s" in str(refused.value)
    assert refused.value.fix


STRINGS = [f"country {number}" for number in range(600)]
PRICE = {"type": "number", "minimum": 0.01, "maximum": 1e6, "multipleOf": 0.01}
HONEST: dict[str, Schema] = {
    "an enum of many strings": items({"enum": STRINGS}),
    "an enum of many strings and null": items({"enum": [*STRINGS, None]}),
    "an enum of integers in items": items({"enum": list(range(100))}),
    "an enum of many integers": a({"enum": list(range(2_000))}),
    "an enum of some floats": a({"enum": FLOATS[:100]}),
    "an enum of some floats in items": items({"enum": [0, 0.07, 0.19]}),
    "an enum of a mix": a({"enum": [None, True, "x", 1, 2.5, {"a": 1}, [1]]}),
    "prices in items": items({"properties": dict.fromkeys(("net", "gross", "tax"), PRICE)}),
    "2,000 properties": schema(properties={name: {"type": "string"} for name in NAMES[:1_900]}),
    "many enums": schema(properties={name: {"enum": ["a", "b", 1]} for name in NAMES[:1_000]}),
    "items with 300 properties": items(
        {"properties": {name: {"maxLength": 9} for name in NAMES[:300]}, "required": NAMES[:300]}
    ),
    "unique strings": a({"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
    "unique anything": a({"uniqueItems": True}),
    "unique in two ways": a({"uniqueItems": True, "allOf": [{"uniqueItems": True}]}),
    "unique on every level": schema(properties={"a": {"items": {"$ref": "#"}, "uniqueItems": True}}),
    "an e-mail address": items({"pattern": r"^[^@\s]+@[^@\s]+\.[^@\s]+$"}),
    "a UUID": items({"pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}),
    "words": a({"pattern": r"^\w{1,100}$"}),
    "a URL": items({"pattern": r"^https?://[\w.-]+(:\d+)?(/\S*)?$"}),
    "a version": a({"pattern": r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[\w.-]+)?(\+[\w.-]+)?$"}),
    "some names": schema(propertyNames={"pattern": "^[a-z][a-z0-9_]*$"}),
    "events of a kind": schema(
        oneOf=[{"properties": {"kind": {"const": f"k{n}"}}, "required": ["kind"]} for n in range(40)]
    ),
    "what depends": schema(dependentRequired={name: ["x"] for name in NAMES[:20]}),
    "a tree": schema(properties={"left": {"$ref": "#"}, "right": {"$ref": "#"}, "value": PRICE}),
    "nothing else": schema(allOf=[{"properties": {"a": {}}}] * 5, unevaluatedProperties=False),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_schema_is_accepted(name: str) -> None:
    check_document(json.dumps(HONEST[name]), Bound())


def test_a_bound_is_of_the_largest_event() -> None:
    document = json.dumps(items({"enum": FLOATS[:20]}))
    check_document(document, Bound(max_bytes=20_000))
    check_document(document, Bound(seconds=100))
    with pytest.raises(UserError, match="an event of 262,144 bytes"):
        check_document(document, Bound())
    check_document(document)  # published before there was a bound


@pytest.mark.parametrize("name", HONEST)
def test_the_largest_event_of_a_time_takes_that_time(name: str) -> None:
    bound = cost(HONEST[name], 262_144)
    for seconds in (0.02, 1.0):
        size = bound.largest(seconds)
        assert bound.seconds(size) <= seconds * 1.001 or not size
        assert bound.seconds(size + 2) >= seconds * 0.999


# guards ------------------------------------------------------------------------------------------

NUMBERS = st.one_of(st.integers(-3, 5), st.sampled_from([1.0, 2.0, 1.5, 1e300, -0.0, 5e-324, 2**53, 2.0**53]))
SCALARS = st.one_of(NUMBERS, st.none(), st.booleans(), st.sampled_from(["a", "1", ""]))
VALUES = st.one_of(SCALARS, st.lists(st.one_of(SCALARS, st.lists(SCALARS, max_size=2)), max_size=4))
TYPES = st.sampled_from(["integer", "string", ["string", "null"], ["integer", "boolean"], "number", "array"])
FRAGMENTS = st.fixed_dictionaries(
    {},
    optional={
        "type": TYPES,
        "enum": st.lists(st.one_of(st.integers(-3, 5), st.none(), NUMBERS), min_size=1, max_size=5),
        "uniqueItems": st.booleans(),
        "items": st.fixed_dictionaries({}, optional={"type": TYPES, "maximum": st.integers(0, 4)}),
        "allOf": st.just([{"maxLength": 1}, {"maxItems": 3}]),
    },
)


@times(4)
@given(FRAGMENTS, VALUES, st.sampled_from(DRAFTS))
def test_guards_change_no_verdict(fragment: Schema, value: Any, draft: str) -> None:
    document = a(fragment) | {"$schema": draft}
    before = json.dumps(document)
    plain = jsonschema_rs.validator_for(document, validate_formats=False)
    assert validator(document).is_valid({"a": value}) == plain.is_valid({"a": value})
    assert json.dumps(document) == before


@pytest.mark.long
def test_guards_make_expensive_checks_cheap() -> None:
    """By the time that the same check takes without."""
    for fragment, event in (
        ({"enum": list(range(100))}, {"a": [1e-300] * 500}),
        ({"enum": [*range(100), None]}, {"a": [0.1] * 500}),
    ):
        document = items({"not": fragment})
        assert guarded(document) != document
        slow, fast = jsonschema_rs.validator_for(document), validator(document)
        assert seconds_of(fast, event) < seconds_of(slow, event) / 5
    assert guarded(HONEST["prices in items"]) == HONEST["prices in items"]


def seconds_of(check: Any, event: Any) -> float:
    started = time.process_time()
    assert check.is_valid(event)
    return time.process_time() - started


# locating ----------------------------------------------------------------------------------------


def test_a_violation_is_located_in_large_values_too() -> None:
    """Where collecting each alternative's errors costs too much, the place is narrowed down."""
    choices = json.dumps(a({"anyOf": [{"items": {"type": "string", "minLength": n}} for n in range(45)]}))
    assert violation(choices, {"a": [1] * 20})[0] == "/a/0"
    assert violation(choices, {"a": [1] * 2_000})[0] == "/a/0"
    plain = json.dumps(items({"type": "string"}))
    assert violation(plain, {"a": [*["x"] * 50_000, 1]})[0] == "/a/50000"
