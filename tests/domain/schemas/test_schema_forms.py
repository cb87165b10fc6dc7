"""The forms in which people and generators write schemas: resolved, told apart, typed, and judged alike."""

import json
import random
import signal
import subprocess
import sys
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, strategies as st
from support.examples import times

from pulse_pipelines.domain.schemas.bundle import bundled
from pulse_pipelines.domain.schemas.cheap_checks import guarded
from pulse_pipelines.domain.schemas.columns import Kind, columns
from pulse_pipelines.domain.schemas.cost import Bound, cost
from pulse_pipelines.domain.schemas.discriminators import unions
from pulse_pipelines.domain.schemas.patterns import LINEAR, compiles, equivalent
from pulse_pipelines.domain.schemas.schema import DRAFTS, check_document, validator
from pulse_pipelines.domain.schemas.unique_items import UniqueItems
from pulse_pipelines.domain.schemas.violations import violation
from pulse_pipelines.domain.table_columns import fitted
from pulse_pipelines.tables.arrow_columns import holds
from pulse_pipelines.tables.iceberg_schema import table_schema
from pulse_resources.errors import UserError

Schema = dict[str, Any]
DRAFT_7 = DRAFTS[2]
STRING, INTEGER, NULL = {"type": "string"}, {"type": "integer"}, {"type": "null"}


def schema(**keywords: Any) -> Schema:
    return {"type": "object"} | keywords


def choice(kind: str, **properties: Any) -> Schema:
    return schema(required=["kind"], properties={"kind": {"const": kind}} | properties)


def types(document: Schema) -> dict[str, str]:
    checked = check_document(json.dumps(document), Bound())
    return {column.field: str(column.type) for column in columns(checked)}


# columns ---------------------------------------------------------------------------------------------

COLUMNS: dict[str, tuple[Schema, dict[str, str]]] = {
    "a reference at the root": (
        {"$ref": "#/$defs/e", "$defs": {"e": schema(properties={"a": STRING})}},
        {"a": "string"},
    ),
    "properties without a type": ({"properties": {"a": STRING}}, {"a": "string"}),
    "all of": (
        {
            "allOf": [schema(properties={"a": STRING}), {"properties": {"b": INTEGER}}],
            "properties": {"c": STRING},
        },
        {"c": "string", "a": "string", "b": "long"},
    ),
    "what several say at once is narrowed": (
        schema(
            properties={"a": {"type": ["string", "null", "integer"]}}, allOf=[{"properties": {"a": STRING}}]
        ),
        {"a": "string"},
    ),
    "one of": (
        {"oneOf": [choice("x", a=STRING), choice("y", a=STRING, b=INTEGER)]},
        {"kind": "string", "a": "string", "b": "long"},
    ),
    "types that differ": (
        {"anyOf": [choice("x", a=STRING), choice("y", a=INTEGER)]},
        {"kind": "string", "a": "JSON text"},
    ),
    "integer or number": (
        {"anyOf": [choice("x", a={"type": "number"}), choice("y", a=INTEGER)]},
        {"kind": "string", "a": "double"},
    ),
    "null, or a time": (
        {"oneOf": [choice("x", a=STRING | {"format": "date-time"}), choice("y", a=NULL)]},
        {"kind": "string", "a": "timestamptz"},
    ),
    "a time, or a text": (
        {"oneOf": [choice("x", a=STRING | {"format": "date-time"}), choice("y", a=STRING)]},
        {"kind": "string", "a": "string"},
    ),
    "structs are merged": (
        {
            "oneOf": [
                choice("x", a=schema(properties={"p": STRING})),
                choice("y", a=schema(properties={"q": INTEGER})),
            ]
        },
        {"kind": "string", "a": "struct<p: string, q: long>"},
    ),
    "members that are only null": (
        schema(properties={"a": schema(properties={"p": NULL, "q": STRING})}),
        {"a": "struct<p: string, q: string>"},
    ),
    "then and else": (
        schema(
            **{
                "if": {"required": ["b"]},
                "then": {"properties": {"b": STRING}},
                "else": {"properties": {"c": INTEGER}},
            }
        ),
        {"b": "string", "c": "long"},
    ),
    "constants": (
        schema(
            properties={
                "a": {"enum": ["s", "e", None]},
                "b": {"const": 1},
                "c": {"enum": [1, 2.5]},
                "d": {"enum": ["s", 1]},
                "e": {"const": True},
            }
        ),
        {"a": "string", "b": "long", "c": "double", "d": "JSON text", "e": "boolean"},
    ),
    "a declared type is the one": (
        schema(properties={"a": {"type": "number", "enum": [1, 2]}}),
        {"a": "double"},
    ),
    "a recursive part": (
        {"$ref": "#/$defs/n", "$defs": {"n": schema(properties={"a": STRING, "n": {"$ref": "#/$defs/n"}})}},
        {"a": "string", "n": "JSON text"},
    ),
    "beside a reference, draft 7": (
        {
            "$schema": DRAFT_7,
            "properties": {"a": {"$ref": "#/definitions/s", "type": "integer"}},
            "definitions": {"s": STRING},
        },
        {"a": "string"},
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_the_union_of_all_declarations(name: str) -> None:
    document, expected = COLUMNS[name]
    assert types(document) == expected


@pytest.mark.long
def test_long_chains_and_many_references_are_put_together_in_bounds() -> None:
    chains = {
        f"{name}{n}": schema(properties={"a": {"$ref": f"#/$defs/{name}{n + 1}"}, name: STRING})
        for name in "xy"
        for n in range(400)
    }
    parts = [{"$ref": "#/$defs/x0"}, {"$ref": "#/$defs/y0"}]
    for keyword in ("allOf", "anyOf"):
        document = {keyword: parts, "$defs": chains | {"x400": STRING, "y400": STRING}}
        assert types(document) == {"a": "JSON text", "x": "string", "y": "string"}
    mesh = {
        f"d{n}": {
            "properties": {f"m{j}": {"$ref": f"#/$defs/d{(n * 7 + j * 13 + 1) % 200}"} for j in range(30)}
        }
        for n in range(200)
    }
    document = {"allOf": [{"$ref": f"#/$defs/d{n}"} for n in range(30)], "$defs": mesh}
    assert {column.type.kind for column in columns(document)} == {Kind.JSON}


def test_a_column_is_certain_where_no_choice_lets_other_values_pass() -> None:
    def certain(*choices: Schema) -> dict[str, bool]:
        return {column.field: column.certain for column in columns({"oneOf": list(choices)})}

    closed = choice("y") | {"additionalProperties": False}
    assert certain(choice("x", a=STRING), closed) == {"kind": True, "a": True}
    assert certain(choice("x", a=STRING), choice("y")) == {"kind": True, "a": False}
    assert certain(choice("x", a={}), choice("y")) == {"kind": True, "a": True}, "JSON text takes anything"
    assert certain(choice("x", a=schema(properties={"b": STRING})), choice("y", a={"type": "object"})) == {
        "kind": True,
        "a": False,
    }


FRAGMENTS = st.recursive(
    st.sampled_from(
        [STRING, INTEGER, NULL, {}, True, False, {"type": "number"}, {"enum": ["a", None]}, {"const": 1.0}]
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"properties": st.dictionaries(st.sampled_from("ab"), inner, min_size=1)},
            optional={
                "type": st.sampled_from(["object", ["object", "null"]]),
                "additionalProperties": inner,
                "patternProperties": st.dictionaries(st.just("^a"), inner, max_size=1),
                "required": st.lists(st.sampled_from("ab"), max_size=1),
            },
        ),
        st.builds(lambda item: {"type": "array", "items": item}, inner),
        st.builds(
            lambda keyword, parts: {keyword: parts},
            st.sampled_from(["anyOf", "oneOf", "allOf"]),
            st.lists(inner, min_size=1, max_size=3),
        ),
        st.builds(lambda a, b: {"if": a, "then": b}, inner, inner),
        st.builds(lambda a: {"dependentSchemas": {"a": a}}, inner),
    ),
    max_leaves=8,
)
VALUES = st.recursive(
    st.sampled_from([None, True, 1, 1.0, 1.5, "a", "b"]),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("ab"), inner)),
    max_leaves=5,
)


@times(10)
@given(FRAGMENTS, st.lists(st.dictionaries(st.sampled_from("ab"), VALUES), max_size=6))
def test_a_certain_column_holds_whatever_is_accepted(fragment: Any, events: list[Schema]) -> None:
    document = {"allOf": [fragment]} if isinstance(fragment, dict) else schema(properties={"a": fragment})
    check = validator(document)
    for column in columns(document):
        for event in events:
            if column.certain and column.field in event and check.is_valid(event):
                assert holds(column.type, event[column.field]), (column, event)


# tables of before ------------------------------------------------------------------------------------


def test_a_table_keeps_the_columns_that_it_has() -> None:
    """What was JSON text by an earlier rule stays that; what had no column gets none until a move."""
    document = schema(
        properties={
            "s": STRING,
            "e": {"enum": ["x"]},
            "n": {"const": 1},
            "o": schema(properties={"p": {"enum": ["x"]}}),
            "r": {"anyOf": [{"$ref": "#/$defs/t"}, NULL]},
        },
        allOf=[{"properties": {"z": STRING}}],
        **{"$defs": {"t": STRING}},
    )
    of_now = table_schema(columns(document)).model_dump_json()
    assert fitted(columns(document), document, of_now) == columns(document)
    fields = json.loads(of_now)
    fields["fields"] = [field for field in fields["fields"] if field["name"] != "z"]
    for field in fields["fields"]:
        if field["name"] in "senor":
            field.pop("doc", None)
            field["type"] = "string"
    before = json.dumps(fields)
    kinds = {column.field: column.type.kind for column in fitted(columns(document), document, before)}
    text, plain = Kind.JSON, Kind.STRING
    assert kinds == {"s": plain, "e": text, "n": text, "o": text, "r": plain}
    moved = {
        column.field: column.type.kind for column in fitted(columns(document), document, before, grow=True)
    }
    assert moved == kinds | {"z": plain}


# bundles ---------------------------------------------------------------------------------------------


def test_a_bundle_contains_only_reachable_definitions() -> None:
    document = {
        "$schema": DRAFT_7,
        "$ref": "#/definitions/e",
        "definitions": {
            "e": {
                "$schema": DRAFT_7 + "#",
                "$id": "http://x.org/e",
                "properties": {"a": {"$ref": "f#/items"}},
            },
            "f": {"$id": "http://x.org/f", "items": {"$ref": "#here"}, "contains": {"$id": "#here"} | STRING},
            "g": {"$ref": "http://elsewhere.org/"},
        },
    }
    assert bundled(document) == {
        "$schema": DRAFT_7,
        "$ref": "#/definitions/e",
        "definitions": {
            "e": {"properties": {"a": {"$ref": "#/definitions/f/items"}}},
            "f": {"items": {"$ref": "#/definitions/f/contains"}, "contains": STRING},
        },
    }
    assert bundled(bundled(document)) is not None
    assert types(document) == {"a": "string"}
    plain = schema(properties={"a": {"$ref": "#/$defs/x"}}, **{"$defs": {"x": STRING}})
    assert bundled(plain) is plain


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (schema(properties={"a": {"$schema": DRAFT_7}}), "names another draft"),
        (schema(properties={"a": {"$id": "http://x.org/a", "$ref": "b"}}), "may not refer to b"),
        (schema(properties={"a": {"pattern": "a(?!b)"}}), "looks around or refers back"),
        (schema(patternProperties={"^(?!b)": {}}), "looks around or refers back"),
        (schema(properties={"a": {"pattern": "(a{1000}){1000}"}}), "bytes when it is compiled"),
        (schema(properties={"a": {"pattern": "^(a{1,1000}){1,1000}$"}}), "bytes when it is compiled"),
        (schema(properties={"a": {"pattern": r"^\a$"}}), "not a regular expression of ECMA-262"),
        (schema(properties={"a": {"pattern": "a{3,2}"}}), "not a regular expression of ECMA-262"),
        (schema(properties={"a": {"pattern": "a{,3}"}}), "not a regular expression of ECMA-262"),
        (schema(properties={"a": {"pattern": r"\ud83d\ude00"}}), "half of a surrogate pair"),
        (schema(properties={"a": {"pattern": r"^\<b\>$"}}), r"has \\<, which engines do not take alike"),
        (schema(properties={"a": {"pattern": r"\b{start}a"}}), r"has \\b{, which engines"),
        (schema(patternProperties={"^[^]$": {}}), r"has \[\^\], which engines"),
        (schema(properties={"a": {"not": {"pattern": r"^\[[]a]$"}}}), r"has \[\], which engines"),
    ],
)
def test_a_refused_schema_form_has_a_fix(document: Schema, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        check_document(json.dumps(document), Bound())
    assert refused.value.fix


@pytest.mark.parametrize("pattern", [r"^\\<[\[a<]>$", r"[^\]]", r"[a^[]", r"\bfoo\B", r"^\[]$", r"[\]]"])
def test_a_pattern_that_engines_take_alike_is_accepted(pattern: str) -> None:
    check_document(json.dumps(schema(properties={"a": {"pattern": pattern}})), Bound())


def test_a_pattern_that_was_published_stays() -> None:
    check_document(json.dumps(schema(properties={"a": {"pattern": r"^\<b\>$"}})))


@pytest.mark.parametrize("reference", ["#x", "#/x", "#%78"])
def test_a_reference_to_nothing_is_named(reference: str) -> None:
    with pytest.raises(UserError, match=f"nothing is at {reference}"):
        check_document(json.dumps(schema(properties={"a": {"$ref": reference}})))


# choices that are told apart -------------------------------------------------------------------------

NAMES = ["x", "y", "z"]
DEAR = {"items": {"enum": [n + 0.5 for n in range(10)]}}


def test_the_cost_of_choices_with_a_discriminator_is_that_of_one() -> None:
    many = {"oneOf": [choice(f"k{n}", a=DEAR) for n in range(50)]}
    loose = {"oneOf": [schema(properties={"kind": {"const": f"k{n}"}, "a": DEAR}) for n in range(50)]}
    one, all_of_them = (cost(document, 262_144).byte for document in (many, loose))
    assert all_of_them > 40 * one
    check_document(json.dumps(many), Bound())
    with pytest.raises(UserError, match="could take"):
        check_document(json.dumps(loose), Bound())


def test_a_violation_of_a_choice_is_located_inside_the_choice() -> None:
    text = json.dumps({"oneOf": [choice("x", a=STRING), choice("y", a=INTEGER)]})
    assert violation(text, {"kind": "y", "a": "s"}) == ("/a", '"s" is not of type "integer"')
    assert violation(text, {"kind": "z"}) == ("/kind", '"z" is not one of "x" or "y"')


A = {"type": "object", "properties": {"action": {"enum": ["a"]}, "x": INTEGER, "t": STRING}}
LONG = {"action": "a", "x": "s", "t": "z" * 3_000}
IS_NO_INTEGER = '"s" is not of type "integer"'


@pytest.mark.parametrize(
    ("document", "data", "pointer", "message"),
    [
        ({"oneOf": [A]}, LONG, "/x", IS_NO_INTEGER),
        ({"anyOf": [A]}, LONG, "/x", IS_NO_INTEGER),
        ({"oneOf": [{"anyOf": [A]}]}, LONG, "/x", IS_NO_INTEGER),
        ({"$defs": {"A": A}, "oneOf": [{"$ref": "#/$defs/A"}]}, LONG, "/x", IS_NO_INTEGER),
        ({"properties": {"y": {"anyOf": [A, {"type": "null"}]}}}, {"y": LONG}, "/y/x", IS_NO_INTEGER),
        (
            {"properties": {"y": {"anyOf": [A, {"type": "null"}]}}},
            {"y": LONG | {"action": "b"}},
            "/y/action",
            None,
        ),
        ({"properties": {"y": {"oneOf": [STRING, {"const": 7}]}}}, {"y": 8}, "/y", None),
        ({"oneOf": [A | {"required": ["u"]}]}, LONG | {"x": 1}, "", '"u" is a required property'),
    ],
)
def test_a_violation_is_located_in_the_nearest_choice(
    document: dict[str, Any], data: dict[str, Any], pointer: str, message: str | None
) -> None:
    actual = violation(json.dumps({"type": "object"} | document), data)
    assert actual is not None
    assert (actual[0], message or actual[1]) == (pointer, actual[1])


def test_the_detail_of_a_violation_is_brief_and_names_the_fault() -> None:
    actual = violation(json.dumps({"oneOf": [A, A]}), LONG | {"x": 1})
    assert actual is not None
    assert len(actual[1]) < 700
    assert actual[1].endswith("is valid under more than one of the schemas listed in the 'oneOf' keyword")


def test_a_violation_of_a_choice_is_located_in_a_large_event() -> None:
    """Errors are collected of choices that are not told apart, of which there is one small one."""
    part = choice("x", a={"items": INTEGER}, b={"oneOf": [STRING, NULL]})
    text = json.dumps({"allOf": [{"properties": {"a": {}}}] * 40, "oneOf": [part, choice("y")]})
    assert violation(text, {"kind": "x", "a": [*[1] * 900, "s"]}) == (
        "/a/900",
        '"s" is not of type "integer"',
    )


ORDER: Schema = {
    "type": "object",
    "required": ["action", "lines"],
    "properties": {
        "action": {"enum": ["made", "sent"]},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
        "by": {"anyOf": [{"$ref": "#/$defs/line"}, NULL]},
        "a/b %41é": {"type": "string"},
    },
    "additionalProperties": False,
}
LINE = {"type": "object", "properties": {"x": INTEGER, "y": {"oneOf": [STRING, NULL]}}}
OTHER = ORDER | {"properties": ORDER["properties"] | {"action": {"enum": ["lost"]}}}
OF_REFERENCES: Schema = {
    "$defs": {"order": ORDER, "line": LINE, "other": OTHER},
    "oneOf": [{"$ref": "#/$defs/other"}, {"$ref": "#/$defs/order"}],
}


@pytest.mark.parametrize(
    ("changes", "pointer", "says"),
    [
        ({"lines": [*[{"x": 1}] * 4_000, {"x": "s"}]}, "/lines/4000/x", '"s" is not of type "integer"'),
        ({"lines": [*[{"y": None}] * 4_000, {"y": 1}]}, "/lines/4000/y", "is not valid under any"),
        ({"lines": [*[{}] * 9_000, 3]}, "/lines/9000", '3 is not of type "object"'),
        ({"more": 1}, "", "'more' was unexpected"),
        ({"by": {"x": "s"}}, "/by/x", '"s" is not of type "integer"'),
        ({"a/b %41é": 1}, "/a~1b %41é", '1 is not of type "string"'),
        ({"action": "gone"}, "/action", '"gone" is not one of'),
    ],
)
def test_in_a_large_event_of_references_the_place_is_narrowed_down(
    changes: dict[str, Any], pointer: str, says: str
) -> None:
    data = {"action": "made", "lines": [{"x": 1}] * 4_000} | changes
    actual = violation(json.dumps(OF_REFERENCES), data)
    assert actual is not None
    assert actual[0].startswith(pointer)
    assert says in actual[1], actual


def test_choices_that_a_reference_leads_into_stay() -> None:
    document = {"oneOf": [choice("x", a=STRING), choice("y", a={"$ref": "#/oneOf/0/properties/a"})]}
    assert not unions(document)
    assert validator(document).is_valid({"kind": "y", "a": "s"})
    assert not validator(document).is_valid({"kind": "y", "a": 1})


@st.composite
def choices(draw: st.DrawFn) -> tuple[Schema, list[Any]]:
    """A document with choices that may be told apart, and values."""

    def one() -> Schema:
        values = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True))
        kind = draw(st.sampled_from([{"const": values[0]}, {"enum": values}, STRING | {"enum": values}]))
        form: Schema = {
            "properties": {"kind": kind, "a": draw(st.sampled_from([STRING, INTEGER, {}, False]))}
        }
        if draw(st.integers(0, 9)):
            form["type"] = "object"
        if draw(st.integers(0, 9)):
            form["required"] = ["kind"]
        if draw(st.booleans()):
            form["additionalProperties"] = False
        if draw(st.booleans()):
            form["allOf"] = [
                {"required": ["a"]},
                {"properties": {"b": draw(st.sampled_from([STRING, True]))}},
            ]
        return form

    parts = [one() for _ in range(draw(st.integers(2, 4)))]
    keyword = draw(st.sampled_from(["oneOf", "anyOf"]))
    if draw(st.booleans()):
        parts = [{"$ref": f"#/$defs/d{number}"} for number in range(len(parts))]
    node: Schema = {keyword: parts}
    if draw(st.integers(0, 3)) == 0:
        node = {"oneOf": [node, choice(draw(st.sampled_from(NAMES)))]}
    document = {"properties": {"v": node}, "$defs": {f"d{number}": one() for number in range(4)}}
    if draw(st.booleans()):
        node["unevaluatedProperties"] = draw(st.sampled_from([False, STRING]))
    members = st.fixed_dictionaries(
        {},
        optional={
            "kind": st.sampled_from([*NAMES, "w", 1, None]),
            "a": st.sampled_from(["s", 1, None]),
            "b": st.sampled_from(["s", 1]),
            "c": st.sampled_from(["s", 1]),
        },
    )
    return document, [
        {"v": value} for value in draw(st.lists(st.one_of(members, st.sampled_from([1, "x", []]))))
    ]


@pytest.mark.long
@times(8)
@given(choices(), st.sampled_from([*DRAFTS[:3], DRAFTS[3]]))
def test_telling_choices_apart_changes_no_verdict(case: tuple[Schema, list[Any]], draft: str) -> None:
    document = {"$schema": draft} | case[0]
    plain = jsonschema_rs.validator_for(document, validate_formats=False)
    ours = validator(document)
    for value in case[1]:
        assert ours.is_valid(value) == plain.is_valid(value), (guarded(bundled(document)), value)


# patterns --------------------------------------------------------------------------------------------

REWRITTEN = [
    r"^.{1,200}$",
    r"^.{900}$",
    r"^[\s\S]{2,999}$",
    r"^[^a]{0,400}$",
    r"^\p{L}{1,50}$",
    r"^\S{3,300}$",
    r"^\W{1,90}$",
    r"^(?!a).*$",
    r"^(?!\s*$).+",
    r"^(?=.*[A-Z])(?=.*\d)[^)]{3,}$",
    r"^(?!a|b)(?!.*--)[a-z-]+$",
    r"^(?![)])x$",
    r"^(?!x$)",
    r"^(?=a).{1,300}$",
    r"^(?!(a|b)\))[ab)]*$",
]
NOT_REWRITTEN = [
    *("(?=a)b", "^(?!a)b|c", r"(a)\1", "^(?=a)*b", "^(?!(?=a)b)c", "^((?!a)b)$", r"^(?!a\)b"),
    *(r"^\b{2}(?!a)$", r"^(?<!a)b$", "^(?!", "(", "^(?=a)(?<=b)$"),
]
ALPHABET = ["a", "b", "A", "1", " ", "\n", ")", "-", "é", "x", "\U0001f600"]


@pytest.mark.parametrize("pattern", REWRITTEN)
def test_a_pattern_means_the_same_by_other_keywords(pattern: str) -> None:
    assert not compiles(pattern) or pattern in (r"^\S{3,300}$", r"^\W{1,90}$")
    draw = random.Random(pattern)  # noqa: S311
    plain = jsonschema_rs.validator_for({"pattern": pattern})
    ours = jsonschema_rs.validator_for({"allOf": equivalent(pattern)}, pattern_options=LINEAR)
    lengths = (0, 1, 2, 3, 4, 8, 50, 51, 200, 201, 300, 400, 900, 999, 1_000)
    texts = ["".join(draw.choices(ALPHABET, k=length)) for length in lengths for _ in range(20)]
    texts += [character * length for character in ALPHABET for length in lengths]
    verdicts = {plain.is_valid(text) for text in texts if ours.is_valid(text) == plain.is_valid(text)}
    assert verdicts == {True, False}
    assert [text for text in texts if ours.is_valid(text) != plain.is_valid(text)] == []
    assert ours.is_valid(1), "a pattern says nothing of what is no string"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("abc", '"abc" does not match {}'),
        ("tmp A1 for it", '"tmp A1 for it" does not match {}'),
        ("A1", '"A1" is shorter than 8 characters'),
    ],
)
@pytest.mark.parametrize("place", ["properties", "patternProperties", "propertyNames", "$ref", "oneOf"])
def test_a_violation_quotes_the_pattern_that_the_schema_has(place: str, value: str, message: str) -> None:
    of_text = {"pattern": "^(?!tmp)(?=.*[A-Z])(?=.*[0-9]).{8,}$", "enum": ["abc", "tmp A1 for it", "A1"]}
    schema: dict[str, Any] = {
        "properties": {"properties": {"a": of_text}},
        "patternProperties": {"patternProperties": {"^a$": of_text | {"allOf": [{"minLength": 1}]}}},
        "propertyNames": {"properties": {"a": {"type": "object", "propertyNames": of_text}}},
        "$ref": {"properties": {"a": {"$ref": "#/$defs/x~1y"}}, "$defs": {"x/y": of_text}},
        "oneOf": {
            "oneOf": [
                {"type": "object", "properties": {"k": {"const": kind}, "a": of_text}, "required": ["k"]}
                for kind in "xy"
            ]
        },
    }[place]
    document = json.dumps({"type": "object"} | schema)
    check_document(document)
    data = {"k": "x", "a": {value: 1} if place == "propertyNames" else value}
    quoted = json.dumps(of_text["pattern"])
    assert violation(document, data) == ("/a", message.format(quoted))


def test_a_violation_of_a_pattern_that_is_not_replaced_keeps_its_message() -> None:
    document = json.dumps({"properties": {"a": {"allOf": [{"pattern": "^x$"}, {"not": {"pattern": "^x$"}}]}}})
    assert violation(document, {"a": "y"}) == ("/a", '"y" does not match "^x$"')
    assert violation(document, {"a": "x"}) == ("/a", '{"pattern":"^x$"} is not allowed for "x"')


@pytest.mark.parametrize("pattern", NOT_REWRITTEN)
def test_a_pattern_without_equivalent_keywords_is_not_replaced(pattern: str) -> None:
    assert equivalent(pattern) is None


# unique items ----------------------------------------------------------------------------------------

SCALARS = st.sampled_from(
    [
        0,
        1,
        1.0,
        -0.0,
        0.0,
        True,
        False,
        None,
        "",
        "1",
        "a",
        2**53,
        2.0**53,
        2**53 + 1,
        1e300,
        0.1,
        1e-7,
        "None",
    ]
)
ITEMS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("ab1"), inner)),
    max_leaves=6,
)


@times(15)
@given(st.lists(ITEMS, max_size=5))
def test_items_are_equal_where_the_validator_holds_them_for_equal(items: list[Any]) -> None:
    plain = jsonschema_rs.validator_for({"uniqueItems": True})
    ours = jsonschema_rs.validator_for({"uniqueItems": True}, keywords={"uniqueItems": UniqueItems})
    assert ours.is_valid(items) == plain.is_valid(items)


def test_lack_of_memory_while_comparing_items_gives_no_verdict() -> None:
    """The validator takes every exception for one; as where it gets no memory itself, the process ends."""
    program = (
        "import resource\n"
        "from pulse_pipelines.domain.schemas.unique_items import UniqueItems\n"
        "items = [[1] * 1_500_000, 1]\n"
        "used = int(open('/proc/self/status').read().partition('VmData:')[2].split()[0]) * 1024\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (used + 4_000_000, resource.RLIM_INFINITY))\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "UniqueItems(None, True, None).validate(items)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == -signal.SIGABRT
