"""Random schemas and events, judged by the package `jsonschema`: nothing of Pulse is asked what is right.

By docs/column-types.md `format` is an annotation, unless it makes a typed column. Which strings are moments
and days is written down here, so that nobody's parser decides it.
"""

import json
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st
from hypothesis.errors import HypothesisDeprecationWarning
from jsonschema import Draft202012Validator, FormatChecker

MOMENTS = {
    "2026-11-19T10:00:00Z": datetime(2026, 11, 19, 10, tzinfo=UTC),
    "2026-11-19t10:00:00z": datetime(2026, 11, 19, 10, tzinfo=UTC),
    "2026-11-19T10:00:00.123456789Z": datetime(2026, 11, 19, 10, 0, 0, 123456, UTC),
    "2026-11-19T10:00:00.5+02:00": datetime(2026, 11, 19, 8, 0, 0, 500000, UTC),
    "1969-12-31T23:59:59.999999-05:30": datetime(
        *(1969, 12, 31, 23, 59, 59, 999999), timezone(-timedelta(hours=5, minutes=30))
    ),
    "0001-01-01T00:00:00Z": datetime(1, 1, 1, tzinfo=UTC),
    "9999-12-31T23:59:59.999999Z": datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
    "2024-02-29T00:00:00+00:00": datetime(2024, 2, 29, tzinfo=UTC),
}
DAYS = {
    "2026-11-19": date(2026, 11, 19),
    "2024-02-29": date(2024, 2, 29),
    "0001-01-01": date(1, 1, 1),
    "9999-12-31": date(9999, 12, 31),
}
NEITHER = (
    *("2023-02-29", "2026-11-19T10:00:00", "2026-11-19T25:00:00Z", "2026-13-01", "20261119"),
    *("2023-02-29T00:00:00Z", "2026-W47-4", "2026-11-19T10:00Z", "10:00:00Z"),
)
FORMATS = FormatChecker(formats=())
FORMATS.checks("date-time")(lambda value: not isinstance(value, str) or value in MOMENTS)
FORMATS.checks("date")(lambda value: not isinstance(value, str) or value in DAYS)
PARSED = {"date-time": MOMENTS, "date": DAYS}

COLUMNLESS = "a-b"
"""A name that no column has."""
NAMES = ("a", "b", "count", "timestamp", COLUMNLESS)
MEMBERS = ("x", "y", "z")
TEXTS = (
    "",
    "a",
    "ab",
    "abc",
    "ABC",
    "EWR",
    "é",
    "😀😀",
    "a\u0301",
    "0",
    "1",
    "true",
    "null",
    '"',
    "\\",
    "a\nb",
    " ",
)
WHOLE = (0, 1, -1, 2, 5, 10, 2**31, 2**53 - 1, 2**53 + 1, 2**63 - 1, -(2**63))
BROKEN = (0.5, -0.5, 1.5, 10.5, 0.1, 1e-9, 5e-324, 1.0, -0.0, 2.0**53)
HUGE = (1e22, -1e22, 1.7976931348623157e308)
"""Integers to a JSON Schema, and to no column of them."""
PATTERNS = ("^[A-Z]{3}", "^a", "b", "[0-9]", "^.{2,3}", "^(a|EWR)", "^[^a]")  # none with $: Python's is lax
BOUNDS = (0, 1, 5, -1, 0.5, 10.5, 2**53)

Schema = dict[str, Any]
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\x85\u2028\u2029")
"""None that cannot be stored, and none that is the end of a line to some patterns only."""
scalars = st.one_of(
    *(st.none(), st.booleans(), st.sampled_from(TEXTS), st.sampled_from([*MOMENTS, *DAYS, *NEITHER])),
    *(st.sampled_from(WHOLE), st.sampled_from(BROKEN), st.integers(-20, 20)),
    *(st.integers(-(2**63), 2**63 - 1), st.floats(-(2.0**53), 2.0**53)),
    st.text(CHARACTERS, max_size=5),
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=3),
    max_leaves=6,
)


def some(draw: st.DrawFn, least: int = 0, **keywords: st.SearchStrategy[Any]) -> Schema:
    """A few of these keywords."""
    chosen = draw(st.lists(st.sampled_from([*keywords]), min_size=least, max_size=2, unique=True))
    return {name: draw(keywords[name]) for name in chosen}


PLAIN = ("string", "integer", "number", "boolean")
"""What a decoder of its own may read (see `validation.quick`), if nothing else is in the schema."""
KINDS = ("string", "integer", "number", "boolean", "null", "any", "several", "values")


@st.composite
def leaf(draw: st.DrawFn, kinds: Sequence[str] = KINDS) -> Schema:
    """A schema of a value without parts."""
    sizes, bounds = st.integers(0, 4), st.sampled_from(BOUNDS)
    kind = draw(st.sampled_from(kinds))
    if kind == "any":
        return {}
    if kind == "several":
        names = ["string", "integer", "number", "boolean", "null", "array", "object"]
        return {"type": draw(st.lists(st.sampled_from(names), min_size=2, max_size=3, unique=True))}
    if kind == "values":
        values = draw(st.lists(scalars, min_size=1, max_size=3))
        return {"const": values[0]} if len(values) == 1 else {"enum": values}
    schema: Schema = {"type": kind}
    if kind in PARSED:
        schema = {"type": "string", "format": kind}
    elif kind == "string":
        schema |= some(draw, minLength=sizes, maxLength=sizes, pattern=st.sampled_from(PATTERNS))
    elif kind in ("integer", "number"):
        schema |= some(
            draw,
            least=1,
            minimum=bounds,
            maximum=bounds,
            exclusiveMinimum=bounds,
            exclusiveMaximum=bounds,
            multipleOf=st.sampled_from([1, 2, 5]),
        )
    if kind != "null" and draw(st.booleans()):
        schema["type"] = draw(st.permutations([schema["type"], "null"]))
    return schema


@st.composite
def compound(draw: st.DrawFn, parts: st.SearchStrategy[Schema]) -> Schema:
    """A schema with parts."""
    sizes = st.integers(0, 3)
    one = draw(parts)
    match draw(st.sampled_from(["array", "object", "object", "anyOf", "oneOf", "allOf", "not", "if"])):
        case "array":
            extra = some(draw, minItems=sizes, maxItems=sizes, uniqueItems=st.booleans(), contains=parts)
            return {"type": "array", "items": draw(st.just(one) | leaf([*PARSED]))} | extra
        case "object":
            members = draw(st.lists(st.sampled_from(MEMBERS), min_size=1, max_size=3, unique=True))
            extra = some(
                draw,
                required=st.lists(st.sampled_from(MEMBERS), max_size=2, unique=True),
                additionalProperties=st.booleans() | parts,
                minProperties=sizes,
                maxProperties=sizes,
                propertyNames=st.just({"pattern": "^[xy]"}),
                patternProperties=st.just({"^[z]": one}),
                dependentRequired=st.just({"x": ["y"]}),
            )
            return {
                "type": "object",
                "properties": {name: draw(parts | leaf([*PARSED])) for name in members},
            } | extra
        case "anyOf":
            return {"anyOf": [one, draw(parts | st.just({"type": "null"}))]}
        case "oneOf":
            return {"oneOf": [one, draw(parts)]}
        case "allOf":
            return {
                "allOf": [
                    one,
                    draw(st.sampled_from([{}, {"not": {"const": 5}}, {"not": {"enum": ["a", 1]}}])),
                ]
            }
        case "not":
            return one | {"not": draw(parts.filter(bool))}
        case _:
            return one | {"if": draw(parts), "then": draw(parts), "else": True}


def schemas() -> st.SearchStrategy[Schema]:
    """Of a property."""
    return st.recursive(leaf(), compound, max_leaves=4)


@st.composite
def roots(draw: st.DrawFn) -> Schema:
    """Of an event's data."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    plain = draw(st.booleans())
    member = leaf(PLAIN) if plain else leaf([*KINDS, *PARSED]) | schemas()
    root: Schema = {"type": "object", "properties": {name: draw(member) for name in names}}
    keywords = {
        "required": st.lists(st.sampled_from(names), max_size=2, unique=True),
        "additionalProperties": st.booleans(),
    }
    if plain:
        return root | some(draw, **keywords)
    if draw(st.integers(0, 7)) == 7:
        root["$defs"] = {"shared": root["properties"][names[0]]}
        root["properties"][names[0]] = {"$ref": "#/$defs/shared"}
    return root | some(
        draw,
        **keywords,
        minProperties=st.integers(0, 2),
        maxProperties=st.integers(1, 3),
        dependentRequired=st.just({names[0]: [names[-1]]}),
        patternProperties=st.just({"^un": {"type": ["integer", "null"]}}),
    )


def near(schema: Any, root: Schema) -> st.SearchStrategy[Any]:
    """Values of which many are valid by a schema."""
    if not isinstance(schema, dict):
        return anything
    if "$ref" in schema:
        return near(root["$defs"]["shared"], root)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            return st.one_of(
                *(near(branch, root) for branch in schema[keyword][: 1 if keyword == "allOf" else None])
            )
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    return st.one_of(*(_of(kind, schema, root) for kind in _kinds(schema) or ["any"]))


def _of(kind: str, schema: Schema, root: Schema) -> st.SearchStrategy[Any]:
    match kind:
        case "string" if schema.get("format") in PARSED:
            return st.sampled_from([*PARSED[schema["format"]], *NEITHER[:2]])
        case "string":
            texts = st.sampled_from(TEXTS)
            return (
                texts | st.from_regex(schema["pattern"], alphabet=CHARACTERS)
                if "pattern" in schema
                else texts
            )
        case "integer":
            return st.sampled_from(WHOLE) | st.integers(-20, 20) | st.sampled_from([1.0, 5.0, -0.0])
        case "number":
            # Python's remainder is that of the double, not that of the number as it was sent.
            huge = () if "multipleOf" in schema else HUGE
            return st.sampled_from([*WHOLE, *BROKEN, *huge]) | st.integers(-20, 20)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "array":
            return st.lists(near(schema.get("items", True), root), max_size=3)
        case "object":
            members = {name: near(member, root) for name, member in schema.get("properties", {}).items()}
            return st.fixed_dictionaries({}, optional=members) | st.dictionaries(
                st.sampled_from(MEMBERS), scalars, max_size=2
            )
    return anything


@dataclass(frozen=True)
class Case:
    """A schema, and data of events for it."""

    schema: Schema
    data: list[dict[str, Any]]

    def accepted(self, data: dict[str, Any]) -> bool:
        """Whether the package `jsonschema` takes it."""
        typed = {name: member for name, member in self._properties().items() if _typed(member)}
        return bool(
            Draft202012Validator(self.schema).is_valid(data)
            and Draft202012Validator({"properties": typed}, format_checker=FORMATS).is_valid(data)
        )

    def format_of(self, name: str) -> str | None:
        """The format that makes a typed column of a property."""
        schema = self._properties().get(name)
        return schema["format"] if _typed(schema) else None

    def is_text(self, name: str) -> bool:
        """Whether a property is a string, and so its column the string itself and no JSON text."""
        return set(_kinds(self._properties().get(name, {}))) in ({"string"}, {"string", "null"})

    def _properties(self) -> dict[str, Schema]:
        """Those that have columns."""
        properties: dict[str, Schema] = dict(self.schema["properties"])
        return {
            name: self.schema["$defs"]["shared"] if "$ref" in member else member
            for name, member in properties.items()
            if name != COLUMNLESS
        }


def _typed(schema: Schema | None) -> bool:
    resolved = schema or {}
    return resolved.get("format") in PARSED and set(_kinds(resolved)) <= {"string", "null"}


def _kinds(schema: Schema) -> list[str]:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def data_of(schema: Schema) -> st.SearchStrategy[dict[str, Any]]:
    """Data of events for a schema: much of it valid."""
    members = {name: near(member, schema) for name, member in schema["properties"].items()}
    names = st.sampled_from([*members, "undeclared", "z"])
    return st.one_of(
        st.fixed_dictionaries(members),
        st.fixed_dictionaries({}, optional=members),
        st.dictionaries(names, anything, max_size=3),
    )


def gathered(count: int, events: int, number: int) -> list[Case]:
    """So many cases with so many events each at most, by a seed; no two are the same."""
    schemas = drawn(roots(), count, number)
    return [Case(schema, drawn(data_of(schema), events, number)) for schema in schemas]


def drawn(strategy: st.SearchStrategy[Any], count: int, number: int) -> list[Any]:
    """Up to so many values, by a seed."""
    values: dict[str, Any] = {}

    @seed(number)
    @settings(
        max_examples=2 * count,  # hypothesis likes to change little from one to the next
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def gather(value: Any) -> None:
        values.setdefault(json.dumps(value), value)

    with warnings.catch_warnings():
        # It sees that `random` was used, and cannot know that threads of a server beside it did.
        warnings.simplefilter("ignore", HypothesisDeprecationWarning)
        gather()
    return list(values.values())[-count:]


def difference(case: Case, sent: dict[str, Any], row: dict[str, Any]) -> str | None:
    """What is not the same in a row and in what was sent; a member that is null may as well be absent."""
    extra = json.loads(row["_extra"]) if row["_extra"] else {}
    received: dict[str, Any] = dict(extra)
    for name in case.schema["properties"]:
        column = name if name in row and name != "timestamp" else f"data_{name}"
        if column not in row:
            continue
        value = row[column]
        if value is not None and (kind := case.format_of(name)) is not None:
            if PARSED[kind].get(sent.get(name)) != value:
                return f"{name}: {sent.get(name)!r} became {value!r}"
            value = sent[name]
        elif isinstance(value, str) and not case.is_text(name) and value != sent.get(name):
            with suppress(json.JSONDecodeError):
                value = json.loads(value)
        received[name] = merged(value, extra.get(name))
    return None if same(bare(sent), bare(received)) else f"{sent!r} became {received!r}"


def merged(value: Any, extra: Any) -> Any:
    """A value of a typed column, with what of it stands in `_extra`."""
    if isinstance(value, dict) and isinstance(extra, dict):
        return {name: merged(value.get(name), extra.get(name)) for name in value.keys() | extra.keys()}
    if isinstance(value, list) and isinstance(extra, list):
        return [merged(*pair) for pair in zip(value, extra, strict=True)]
    return extra if value is None else value


def bare(value: Any) -> Any:
    """Without members that are null."""
    if isinstance(value, dict):
        return {name: bare(item) for name, item in value.items() if item is not None}
    return [bare(item) for item in value] if isinstance(value, list) else value


def same(sent: Any, received: Any) -> bool:
    """Whether two JSON values are equal; a number of a column of doubles is the nearest one."""
    if isinstance(sent, dict) and isinstance(received, dict):
        return sent.keys() == received.keys() and all(
            same(item, received[name]) for name, item in sent.items()
        )
    if isinstance(sent, list) and isinstance(received, list):
        return len(sent) == len(received) and all(same(*pair) for pair in zip(sent, received, strict=True))
    if isinstance(sent, bool) or isinstance(received, bool) or not isinstance(sent, int | float):
        return type(sent) is type(received) and bool(sent == received)
    if isinstance(received, float):
        return float(sent) == received
    return isinstance(received, int) and sent == received
