"""Which changes of a schema a dataset can follow, and what is said of those that it cannot."""

import json
import random
from typing import Any

import pytest

from pulse_pipelines.domain.schemas.compatibility import Incompatibility, incompatibilities
from pulse_pipelines.domain.schemas.schema import check_document, validator

DRAFT_04 = "http://json-schema.org/draft-04/schema#"
DRAFT_07 = "http://json-schema.org/draft-07/schema#"
STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def document(**keywords: Any) -> dict[str, Any]:
    return check_document(json.dumps({"type": "object"} | keywords))


def of(schema: Any, **keywords: Any) -> dict[str, Any]:
    """A schema whose property `a` is this."""
    return document(properties={"a": schema}, **keywords)


def nested(schema: Any) -> dict[str, Any]:
    """The same inside an object and a list."""
    return of({"type": "array", "items": {"type": "object", "properties": {"b": schema, "c": STRING}}})


def referred(schema: Any, **definitions: Any) -> dict[str, Any]:
    return of({"$ref": "#/$defs/x"}, **{"$defs": {"x": schema, **definitions}})


def chosen(kind: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": ["kind"], "properties": {"kind": {"const": kind}} | properties}


def check(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, str]]:
    return [(entry.pointer, entry.change) for entry in incompatibilities(old, new)]


PAIRS: dict[str, tuple[Any, Any]] = {
    # Name: a subschema before and after, wherever it stands.
    "nothing": (STRING, STRING),
    "annotations": (STRING, STRING | {"title": "t", "description": "d", "default": "x", "examples": ["y"]}),
    "more annotations": (STRING | {"$comment": "c", "deprecated": True}, STRING | {"x-owner": {"a": 1}}),
    "integer to number": (INTEGER, NUMBER),
    "integer to number, with null": ({"type": ["integer", "null"]}, {"type": ["null", "number"]}),
    "integer to number, as choices": (
        {"anyOf": [INTEGER, {"type": "null"}]},
        {"anyOf": [NUMBER, {"type": "null"}]},
    ),
    "null added": (STRING, {"type": ["string", "null"]}),
    "minimum lowered": (NUMBER | {"minimum": 5}, NUMBER | {"minimum": 4.5}),
    "minimum gone": (NUMBER | {"minimum": 5}, NUMBER),
    "exclusive bounds relaxed": (
        NUMBER | {"exclusiveMinimum": 1, "exclusiveMaximum": 2},
        NUMBER | {"exclusiveMinimum": 0, "exclusiveMaximum": 3},
    ),
    "maximum raised": (INTEGER | {"maximum": 5}, INTEGER | {"maximum": 6}),
    "lengths relaxed": (
        STRING | {"minLength": 2, "maxLength": 5},
        STRING | {"minLength": 1, "maxLength": 50},
    ),
    "pattern gone": (STRING | {"pattern": "^a"}, STRING),
    "enum grew": (STRING | {"enum": ["a", "b"]}, STRING | {"enum": ["b", "c", "a"]}),
    "enum gone": (STRING | {"enum": ["a"]}, STRING),
    "const to enum": (STRING | {"const": "a"}, STRING | {"enum": ["a", "b"]}),
    "const gone": (STRING | {"const": "a"}, STRING),
    "multipleOf gone": (INTEGER | {"multipleOf": 5}, INTEGER),
    "not gone": (STRING | {"not": {"const": "a"}}, STRING),
    "a condition gone": (
        STRING | {"allOf": [{"minLength": 1}, {"maxLength": 5}]},
        STRING | {"allOf": [{"minLength": 1}]},
    ),
    "items relaxed": (
        {"type": "array", "items": STRING | {"maxLength": 5}, "minItems": 2, "uniqueItems": True},
        {"type": "array", "items": STRING | {"maxLength": 6}, "minItems": 1, "uniqueItems": False},
    ),
    "object grew": (
        {"type": "object", "required": ["x"], "properties": {"x": STRING}},
        {"type": "object", "properties": {"x": STRING, "y": STRING}},
    ),
    "object opened": (
        {"type": "object", "properties": {"x": STRING}, "additionalProperties": False},
        {"type": "object", "properties": {"x": STRING}},
    ),
    "undeclared properties relaxed": (
        {"type": "object", "properties": {"x": STRING}, "additionalProperties": INTEGER},
        {"type": "object", "properties": {"x": STRING}, "additionalProperties": NUMBER},
    ),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("place", [of, nested, referred])
def test_a_compatible_change(name: str, place: Any) -> None:
    old, new = PAIRS[name]
    assert check(place(old), place(new)) == []


WHOLE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "an optional property is added": (of(STRING), document(properties={"a": STRING, "b": INTEGER})),
    "the first property is added": (document(), of(STRING)),
    "a property that shares no column": (of(STRING), document(properties={"a": STRING, "id": STRING})),
    "a property without a column": (of(STRING), document(properties={"a": STRING, "b c": STRING})),
    "required becomes optional": (of(STRING, required=["a"]), of(STRING)),
    "one of two becomes optional": (
        document(properties={"a": STRING, "b": STRING}, required=["a", "b"]),
        document(properties={"a": STRING, "b": STRING}, required=["b"]),
    ),
    "a definition is added": (of(STRING), of(STRING, **{"$defs": {"new": INTEGER}})),
    "an unused definition changes": (of(STRING, **{"$defs": {"x": INTEGER}}), of(STRING)),
    "what was written out is referred to": (of(INTEGER), referred(NUMBER)),
    "what was referred to is written out": (referred(INTEGER), of(NUMBER)),
    "a definition is renamed": (
        of({"$ref": "#/$defs/x"}, **{"$defs": {"x": STRING}}),
        of({"$ref": "#/$defs/y"}, **{"$defs": {"y": STRING}}),
    ),
    "a recursive schema grows": (
        document(properties={"child": {"$ref": "#"}}),
        document(properties={"child": {"$ref": "#"}, "name": STRING}),
    ),
    "the address changes": (of(STRING, **{"$id": "https://a/1"}), of(STRING, **{"$id": "https://a/2"})),
    "draft 4": (
        of(NUMBER | {"minimum": 1, "exclusiveMinimum": True}, **{"$schema": DRAFT_04}),
        of(NUMBER | {"minimum": 1, "exclusiveMinimum": False}, **{"$schema": DRAFT_04}),
    ),
    "a choice that is told apart is added": (
        document(oneOf=[chosen("x", a=INTEGER), chosen("y")]),
        document(oneOf=[chosen("w", b=STRING), chosen("y", c=STRING), chosen("x", a=NUMBER)]),
    ),
    "an address inside changes": (
        of({"$ref": "x"}, **{"$defs": {"x": {"$id": "x"} | INTEGER}}),
        of({"$ref": "y"}, **{"$defs": {"x": {"$id": "y"} | NUMBER}}),
    ),
    "draft 7 with and without #": (
        of(STRING, **{"$schema": DRAFT_07}),
        of(STRING, **{"$schema": DRAFT_07.removesuffix("#")}),
    ),
    "annotations where all must be the same": (
        of(STRING | {"not": {"const": "a", "title": "old"}}),
        of(STRING | {"not": {"title": "new", "const": "a"}}),
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_compatible_change_of_the_whole(name: str) -> None:
    assert check(*WHOLE[name]) == []


A = "/properties/a"
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], list[tuple[str, str]]]] = {
    "number to integer": (of(NUMBER), of(INTEGER), [
        (f"{A}/type", "number became integer"),
        (A, "the column a would be long, not double"),
    ]),
    "string to number": (of(STRING), of(NUMBER), [
        (f"{A}/type", "string became number"),
        (A, "the column a would be double, not string"),
    ]),
    "null taken away": (
        of({"type": ["string", "null"]}), of(STRING), [(f"{A}/type", "null or string became string")]
    ),
    "a second type": (of(STRING), of({"type": ["string", "integer"]}), [
        (A, "the column a would be JSON text, not string")
    ]),
    "a type where there was none": (of({}), of(STRING), [
        (f"{A}/type", "type was added"), (A, "the column a would be string, not JSON text"),
    ]),
    "no type any more": (of(STRING), of({}), [(A, "the column a would be JSON text, not string")]),
    "a string becomes a timestamp": (of(STRING), of(STRING | {"format": "date-time"}), [
        (A, "the column a would be timestamptz, not string")
    ]),
    "a date becomes a string": (of(STRING | {"format": "date"}), of(STRING), [
        (A, "the column a would be string, not date")
    ]),
    "a property is removed": (of(STRING), document(), [(A, "the property was removed")]),
    "a property is renamed": (of(STRING), document(properties={"A": STRING}), [
        (A, "the property was removed")
    ]),
    "a nested property is removed": (
        of({"type": "object", "properties": {"x": STRING, "y": STRING}}),
        of({"type": "object", "properties": {"y": STRING}}),
        [
            (f"{A}/properties/x", "the property was removed"),
            (A, "the column a would be struct<y: string>, not struct<x: string, y: string>"),
        ],
    ),
    "a required property is added": (
        of(STRING), document(properties={"a": STRING, "b": {}}, required=["b"]),
        [("/required", "'b' was added as required")],
    ),
    "optional becomes required": (of(STRING), of(STRING, required=["a"]), [
        ("/required", "'a' became required")
    ]),
    "a struct becomes JSON text": (
        of({"type": "object", "properties": {"x": STRING}}),
        of({"type": "object", "properties": {"x": STRING, "y": {}}}),
        [(A, "the column a would be JSON text, not struct<x: string>")],
    ),
    "JSON text becomes a struct": (
        of({"type": "object"}),
        of({"type": "object", "properties": {"x": STRING}}),
        [(A, "the column a would be struct<x: string>, not JSON text")],
    ),
    "a struct with two members of a name": (
        of({"type": "object", "properties": {"x": STRING}}),
        of({"type": "object", "properties": {"x": STRING, "X": STRING}}),
        [(A, "the column a would be JSON text, not struct<x: string>")],
    ),
    "enum shrank": (of(STRING | {"enum": ["a", "b"]}), of(STRING | {"enum": ["a"]}), [
        (f"{A}/enum", "'b' was removed")
    ]),
    "enum added": (of(STRING), of(STRING | {"enum": ["a"]}), [(f"{A}/enum", "enum was added")]),
    "one is not true": (of({"enum": [1]}), of({"enum": [True]}), [
        (f"{A}/enum", "1 was removed"), (A, "the column a would be boolean, not long")
    ]),
    "const changed": (of({"const": 1}), of({"const": 2}), [(f"{A}/const", "const changed")]),
    "minimum raised": (of(NUMBER | {"minimum": 1}), of(NUMBER | {"minimum": 2}), [
        (f"{A}/minimum", "1 became 2")
    ]),
    "maximum added": (of(NUMBER), of(NUMBER | {"maximum": 2}), [(f"{A}/maximum", "maximum was added")]),
    "maxLength lowered": (of(STRING | {"maxLength": 5}), of(STRING | {"maxLength": 4}), [
        (f"{A}/maxLength", "5 became 4")
    ]),
    "pattern changed": (of(STRING | {"pattern": "a"}), of(STRING | {"pattern": "b"}), [
        (f"{A}/pattern", "pattern changed")
    ]),
    "closed": (of(STRING), of(STRING, additionalProperties=False), [
        ("/additionalProperties", "undeclared properties are refused")
    ]),
    "undeclared ones narrowed": (of(STRING), of(STRING, additionalProperties=STRING), [
        ("/additionalProperties/type", "type was added")
    ]),
    "forbidden": (of(STRING), of(False), [
        (A, "no value is accepted"), (A, "the column a would be JSON text, not string"),
    ]),
    "what is not accepted grows": (
        of(STRING | {"not": {"const": "a"}}), of(STRING | {"not": {"enum": ["a"]}}),
        [(f"{A}/not", "not changed")],
    ),
    "what not refers to grows": (
        of(STRING | {"not": {"$ref": "#/$defs/x"}}, **{"$defs": {"x": {"maxLength": 1}}}),
        of(STRING | {"not": {"$ref": "#/$defs/x"}}, **{"$defs": {"x": {"maxLength": 2}}}),
        [(f"{A}/not", "not changed")],
    ),
    "what not refers to in the end grows": (
        of({"not": {"$ref": "#/$defs/x"}}, **{"$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"maxLength": 1}}}),
        of({"not": {"$ref": "#/$defs/x"}}, **{"$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"maxLength": 2}}}),
        [(f"{A}/not", "not changed")],
    ),
    "a condition is added": (
        of(STRING | {"allOf": [{"minLength": 1}]}),
        of(STRING | {"allOf": [{"minLength": 1}, {"maxLength": 5}]}),
        [(f"{A}/allOf", "a condition was added")],
    ),
    "a choice is removed": (
        of({"anyOf": [STRING, INTEGER, {"type": "boolean"}]}), of({"anyOf": [STRING, INTEGER]}),
        [(f"{A}/anyOf", "a choice was removed")],
    ),
    "a choice of one": (
        of({"oneOf": [STRING, INTEGER]}), of({"oneOf": [STRING, NUMBER]}), [(f"{A}/oneOf", "oneOf changed")]
    ),
    "a choice that is told apart is removed": (
        document(oneOf=[chosen("x"), chosen("y"), chosen("z")]), document(oneOf=[chosen("x"), chosen("z")]),
        [("/oneOf", "the choice whose kind is y was removed")],
    ),
    "a choice that is told apart narrows": (
        document(oneOf=[chosen("x", a=NUMBER), chosen("y")]),
        document(oneOf=[chosen("y"), chosen("x", a=INTEGER)]),
        [
            ("/oneOf/1/properties/a/type", "number became integer"),
            (A, "the column a would be long, not double"),
        ],
    ),
    "a property is declared by no choice any more": (
        document(allOf=[{}, {"properties": {"a": STRING}}]), document(allOf=[{}]),
        [(A, "nothing declares the property")],
    ),
    "a definition narrows": (referred(STRING | {"maxLength": 9}), referred(STRING | {"maxLength": 8}), [
        ("/$defs/x/maxLength", "9 became 8")
    ]),
    "an if is added": (of(STRING), of(STRING, **{"if": {"required": ["a"]}, "then": {"required": ["b"]}}), [
        ("/if", "if was added"), ("/then", "then was added")
    ]),
    "names are restricted": (of(STRING), of(STRING, propertyNames={"maxLength": 1}), [
        ("/propertyNames", "propertyNames was added")
    ]),
    "patterns of names changed": (
        of(STRING, patternProperties={"^x": STRING}),
        of(STRING, patternProperties={"^x": STRING, "^a": INTEGER}),
        [("/patternProperties", "patternProperties changed")],
    ),
    "what is not evaluated depends on it": (
        of(STRING, unevaluatedProperties=False, anyOf=[{"properties": {"b": STRING}}, {"required": ["a"]}]),
        of(STRING, unevaluatedProperties=False, anyOf=[{"properties": {"b": {}}}, {"required": ["a"]}]),
        [("/anyOf", "anyOf changed"), ("/properties/b", "the column b would be JSON text, not string")],
    ),
    "another draft": (of(STRING), of(STRING, **{"$schema": DRAFT_07}), [
        ("/$schema", f"the draft https://json-schema.org/draft/2020-12/schema became {DRAFT_07[:-1]}")
    ]),
    "the name of a handler is no keyword": (of(STRING), of(STRING | {"keywords": 1}), [
        (f"{A}/keywords", "keywords was added")
    ]),
    "beside a reference": (
        of({"$ref": "#/$defs/x", "minLength": 2}, **{"$defs": {"x": STRING}}),
        of({"$ref": "#/$defs/x", "minLength": 1}, **{"$defs": {"x": STRING}}),
        [(f"{A}/$ref", "keywords beside a reference changed")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_incompatible_change_has_a_pointer_and_a_reason(name: str) -> None:
    old, new, expected = REFUSED[name]
    actual = incompatibilities(old, new)
    assert [(entry.pointer, entry.change) for entry in actual] == expected
    assert all(entry.reason for entry in actual)
    assert all(isinstance(entry, Incompatibility) and entry.__dict__ for entry in actual)


@pytest.mark.parametrize("wide", [lambda kind: kind, lambda kind: {"type": "array", "items": kind}])
def test_a_column_that_is_called_like_a_renamed_one_keeps_its_integers(wide: Any) -> None:
    """The digits that a double lacks would be taken for those of `id`."""
    for name, incompatible in (("data_id", True), ("data_Context", True), ("id", False), ("data_x", False)):
        old, new = (document(properties={name: wide(kind)}) for kind in (INTEGER, NUMBER))
        reasons = [entry.reason for entry in incompatibilities(old, new)]
        like = name.removeprefix("data_")
        assert (
            reasons == [f"it is called like that of a property {like!r}, and keeps its type"] * incompatible
        )
        assert incompatibilities(old, document(properties={name: wide(INTEGER), "more": NUMBER})) == []


def test_definitions_that_refer_to_each_other_are_compared_wholly() -> None:
    """Neither is the same, although each would be if the other were."""

    def circle(limit: int) -> dict[str, Any]:
        defs = {
            "x": {"properties": {"y": {"$ref": "#/$defs/y"}}},
            "y": {"properties": {"x": {"$ref": "#/$defs/x"}}, "maxProperties": limit},
        }
        first = {"not": {"$ref": "#/$defs/x"}}
        return document(properties={"a": first, "b": {"not": {"$ref": "#/$defs/y"}}}, **{"$defs": defs})

    assert check(circle(1), circle(1)) == []
    assert check(circle(1), circle(2)) == [
        ("/properties/a/not", "not changed"),
        ("/properties/b/not", "not changed"),
    ]


def test_many_references_are_compared_in_no_time() -> None:
    def chain(limit: int) -> dict[str, Any]:
        defs: dict[str, Any] = {
            f"d{n}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/d{n + 1}"}}}
            for n in range(900)
        }
        defs["d900"] = {"type": "string", "maxLength": limit}
        return document(properties={"a": {"$ref": "#/$defs/d0"}}, **{"$defs": defs})

    assert check(chain(5), chain(5)) == []


SCALARS = (
    STRING,
    INTEGER,
    NUMBER,
    {"type": "boolean"},
    {"type": "null"},
    {},
    True,
    {"const": 1},
    {"enum": [1, "a"]},
)


def any_schema(chance: random.Random, depth: int = 0) -> Any:
    """A small random subschema."""
    kind = chance.randrange(9 if depth < 3 else 3)
    inner = lambda: any_schema(chance, depth + 1)  # noqa: E731
    match kind:
        case 0 | 1:
            return chance.choice(SCALARS)
        case 2:
            return {
                chance.choice(("minimum", "maximum", "minLength", "maxLength", "minItems")): chance.randrange(
                    3
                )
            }
        case 3:
            return {"anyOf": [inner() for _ in range(chance.randrange(1, 3))]}
        case 4:
            return {"allOf": [inner() for _ in range(chance.randrange(1, 3))]}
        case 5:
            return {"not": inner()}
        case 6:
            return {"items": inner()}
        case 7:
            return {"oneOf": [inner(), inner()]}
        case 8 if chance.random() < 0.5:
            kinds = chance.sample("abc", 2)
            return {"oneOf": [chosen(kind, x=inner()) for kind in kinds]}
    names = [name for name in "xyz" if chance.random() < 0.6]
    schema: dict[str, Any] = {"properties": {name: inner() for name in names}}
    if chance.random() < 0.4:
        schema["required"] = [chance.choice("xyz")]
    if chance.random() < 0.3:
        schema["additionalProperties"] = chance.choice((True, False, INTEGER))
    return schema


def mutated(chance: random.Random, schema: Any) -> Any:
    """The same with a change somewhere, often one that relaxes."""
    if not isinstance(schema, dict) or not schema or chance.random() < 0.15:
        return any_schema(chance, 2)
    schema = json.loads(json.dumps(schema))
    keyword = chance.choice(sorted(schema))
    value = schema[keyword]
    if chance.random() < 0.25:
        del schema[keyword]
    elif isinstance(value, dict) and keyword == "properties" and value:
        name = chance.choice(sorted(value))
        value[name] = mutated(chance, value[name])
    elif isinstance(value, dict) and keyword != "properties":
        schema[keyword] = mutated(chance, value)
    elif isinstance(value, list) and keyword in ("anyOf", "allOf", "oneOf"):
        value[0] = mutated(chance, value[0])
        if chance.random() < 0.3:
            value.append(any_schema(chance, 2))
    elif isinstance(value, int) and not isinstance(value, bool):
        schema[keyword] = value + chance.choice((-1, 1)) if value else 1
    elif schema.get("type") == "integer":
        schema["type"] = "number"
    return schema


def any_value(chance: random.Random, depth: int = 0) -> Any:
    choice = chance.randrange(9 if depth < 3 else 6)
    if choice < 6:
        return (None, True, 1, 0.5, "a", "")[choice]
    if choice == 6:
        return [any_value(chance, depth + 1) for _ in range(chance.randrange(3))]
    kind = {"kind": chance.choice("abc")} if chance.random() < 0.5 else {}
    return kind | {name: any_value(chance, depth + 1) for name in "xyz" if chance.random() < 0.5}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sample(5)
def test_a_compatible_schema_accepts_all_events_of_the_old_one(seed: int) -> None:
    """Random schemas, random changes, random events: no event is refused after a compatible move.

    An event with a property that was added is left out: such a property is allowed by definition.
    """
    chance = random.Random(seed)  # noqa: S311
    compatible = compared = 0
    while compatible < 25:
        before = any_schema(chance)
        old, new = of(before), of(mutated(chance, before))
        if old == new or incompatibilities(old, new):
            continue
        compatible += 1
        accepted, still = validator(old), validator(new)
        for _ in range(60):
            event = {"a": any_value(chance)}
            if accepted.is_valid(event) and not added_property(old, new):
                compared += 1
                assert still.is_valid(event), (old, new, event)
    assert compared


def added_property(old: Any, new: Any) -> bool:
    """Whether the new version declares a property, anywhere, that the old one does not."""
    return bool(_names(new) - _names(old))


def _names(node: Any, path: str = "") -> set[str]:
    names: set[str] = set()
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "properties" and isinstance(value, dict):
                names |= {f"{path}/{name}" for name in value}
            names |= _names(value, f"{path}/{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            names |= _names(value, f"{path}/{index}")
    return names
