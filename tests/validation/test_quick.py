"""The quick decoder against the validator: the same verdicts and the same rows, or it says nothing."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import pytest
from hypothesis import example, given, strategies as st
from support.conform import TENANT, dataset, messages
from support.examples import times

from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.event_limits import UNLIMITED
from pulse_pipelines.ingest.conform import TopicConformer
from pulse_pipelines.validation import quick

# Schemas, and documents, of parts whose meaning two decoders might see differently.
NUMBERS = [
    *(
        "0",
        "-0",
        "-0.0",
        "1",
        "1.0",
        "1e2",
        "5",
        "-5",
        "10",
        "10.5",
        "1e400",
        "-1e400",
        "5e-324",
        "1E-400",
        "01",
        "1.",
    ),
    *(
        "9007199254740991",
        "9007199254740992",
        "9007199254740993",
        "-9007199254740993",
        "0.1",
        "2.2250738585072011e-308",
    ),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"),
    *(
        "1.7976931348623157e308",
        "1.7976931348623159e308",
        "123456789012345678901234567890",
        "0.12345678901234567890",
        "1.10",
        "9007199254740993.5",
        "1234567890123456e-3",
        "12345678901234567E-3",
        "NaN",
        "Infinity",
        "+1",
        "0x1",
    ),
]
STRINGS = [
    *(
        '""',
        '"a"',
        '"ab"',
        '"ABC"',
        '"ABC\\n"',
        '"EWR"',
        '"ewr"',
        '"\\u0041\\u0042\\u0043"',
        '"\\u0000"',
        '"\\ud800"',
    ),
    *(
        '"\\ud83d\\ude00"',
        '"\U0001f600\U0001f600"',
        '"a\u0301"',
        '"\\u0031\u0661"',
        '"\u0661"',
        '"1"',
        '"12"',
        '"a b"',
        '"\t"',
    ),
    *(
        '"2026-11-19T10:00:00Z"',
        '"2026-11-19"',
        '"2026-13-40"',
        '"9999-12-31T23:59:60Z"',
        '"null"',
        '"\\"',
        '"\\x"',
    ),
]
OTHERS = ["null", "true", "false", "{}", "[]", '{"a":1}', "[1]", '["a"]', "[null]", "[[1]]", "tru", ""]
TOKENS = [*NUMBERS, *STRINGS, *OTHERS]

PATTERNS = [
    "^[A-Z]{3}$",
    "^[a-z]+$",
    "^[A-Z0-9_-]*$",
    "^a?b$",
    "^\\d+$",
    "[A-Z]",
    "^.$",
    "^[^a]$",
    "^(a|b)$",
    "^[A-Z]{3}",
]
BOUNDS = [0, 1, 5, -5, 0.5, 10.5, 2**53 - 1, 2**53, 2**63, -(2**63)]
BOUNDED = [
    {"type": kind, name: n}
    for kind in ("integer", "number")
    for n in BOUNDS
    for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
]
PROPERTIES = [
    *({"type": "string"}, {"type": ["string", "null"]}, {"type": "string", "enum": ["a", "EWR", ""]}),
    *({"type": ["string", "null"], "enum": ["a", None]}, {"type": ["string", "null"], "enum": ["a"]}),
    *({"type": "string", "enum": ["a", None]}, {"type": "string", "enum": ["a"], "minLength": 2}),
    *({"type": "string", "pattern": pattern} for pattern in PATTERNS),
    *({"type": "string", name: n} for name in ("minLength", "maxLength") for n in (0, 1, 2, 2.0)),
    *({"type": "string", "format": form} for form in ("date-time", "date", "email")),
    *BOUNDED,
    *(
        {"type": "integer", "minimum": 0, "exclusiveMinimum": 0},
        {"type": "integer", "minimum": 1, "maximum": 5},
    ),
    *(
        {"type": "integer"},
        {"type": ["null", "number"]},
        {"type": "integer", "multipleOf": 5},
        {"type": "boolean"},
    ),
    *({"type": "integer", "enum": [1, 5]}, {"type": "number", "const": 1}, {"type": ["boolean", "null"]}),
    *(
        {"type": "array", "items": {"type": kind}}
        for kind in ("string", "integer", "number", ["integer", "null"])
    ),
    *({"type": "array", "items": {"type": "integer"}, name: 1} for name in ("minItems", "maxItems")),
    *(
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        {"type": "array"},
        {"type": "object"},
        {},
    ),
    *(
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        {"not": {"type": "null"}, "type": "string"},
        True,
    ),
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    *({"enum": ["a", "EWR", None]}, {"const": "a"}, {"const": 1}, {"enum": [1, 5]}, {"enum": [0.1, 1]}),
    *({"type": ["integer", "number"]}, {"type": ["string", "integer"], "enum": ["a"]}),
    {"allOf": [{"type": ["string", "integer"]}, {"type": "string"}]},
]
EXTRA = [
    {},
    {"additionalProperties": False},
    {"additionalProperties": True},
    {"minProperties": 1},
    {"x-pulse-note": "n"},
    {"allOf": [{"properties": {"a": {"type": "integer"}}}]},
    {"anyOf": [{"properties": {"b": {"type": "string"}}}, {"required": ["a"]}]},
]
NAMES = ["a", "b", "class", "timestamp", "a-b"]


def text(value: Any) -> str:
    return json.dumps(value)


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], list[bytes]]:
    """A schema and events, as their bytes."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    schema = {"type": "object", "properties": {name: draw(st.sampled_from(PROPERTIES)) for name in names}}
    schema["required"] = draw(st.lists(st.sampled_from([*names, "z"]), max_size=2, unique=True))
    schema |= draw(st.sampled_from(EXTRA))
    keys = st.sampled_from(
        [*map(text, names), *map(text, names), '"\\u0061"', '"undeclared"', '"z"', '"_a"', '"_id"']
    )
    members = st.lists(st.tuples(keys, st.sampled_from(TOKENS)), max_size=4)
    return schema, [draw(events(members)) for _ in range(draw(st.integers(1, 6)))]


@st.composite
def events(draw: st.DrawFn, members: st.SearchStrategy[list[tuple[str, str]]]) -> bytes:
    def object_of(pairs: Sequence[tuple[str, str]]) -> str:
        return "{" + ",".join(f"{key}:{value}" for key, value in pairs) + "}"

    pairs = [
        ('"event_id"', '"e"'),
        ('"dataset"', '"orders"'),
        ('"timestamp"', '"2026-11-19T10:00:00Z"'),
        ('"data"', object_of(draw(members))),
    ]
    rare = st.sampled_from(
        [
            *[None] * 10,
            *(('"context"', token) for token in TOKENS),
            *(('"trace_id"', token) for token in ("null", '"t"', "1")),
            *(('"tenant"', token) for token in ("null", '"acme"', '"other"', f'"{TENANT.tenant_id}"')),
            *(('"schema_version"', token) for token in ("null", "3", "2", "3.0", "true")),
            *(
                ('"event_id"', token)
                for token in ('""', "1", f'"{"x" * 512}"', f'"{"x" * 513}"', f'"{"ä" * 300}"')
            ),
            *(('"dataset"', token) for token in ('"free"', '"nobody"', "null")),
            *(('"timestamp"', token) for token in ("1", '"2026"', '"0000-01-01T00:00:00Z"')),
            *(('"unknown"', token) for token in TOKENS),
            *(('"deleted"', token) for token in ("null", "true", "false", "1", '"true"')),
        ]
    )
    for pair in draw(st.lists(rare, max_size=2)):
        if pair is not None:
            pairs.insert(draw(st.integers(0, len(pairs))), pair)
    around = draw(st.sampled_from([("", "")] * 8 + [(" ", "\n"), ("\ufeff", ""), ("", " x"), ("[", "]")]))
    payload = around[0] + object_of(pairs) + around[1]
    return payload.encode(errors="surrogatepass") + draw(st.sampled_from([b""] * 9 + [b"\xff"]))


@dataclass(frozen=True)
class Ways:
    """A conformer with the decoder, and one without."""

    quickly: TopicConformer
    slowly: TopicConformer

    @classmethod
    def of(cls, schema: dict[str, Any], kind: DatasetKind = DatasetKind.EVENTS) -> Self:
        scope = Scope(TENANT, (dataset(schema, kind=kind), dataset({"type": "object"}, "free", kind)))
        ways = cls(*(TopicConformer(scope, "batch", UNLIMITED) for _ in range(2)))
        ways.slowly._validator.__dict__["quick"] = None
        return ways

    def differ(self, payloads: list[bytes]) -> bool:
        return conformed(self.quickly, payloads) != conformed(self.slowly, payloads)


def conformed(conformer: TopicConformer, payloads: list[bytes]) -> tuple[Any, ...]:
    """Everything that becomes of events, to be compared byte by byte."""
    chunk = conformer.chunk(messages(payloads))
    tables = {slug: [repr(row) for row in table.to_pylist()] for slug, table in chunk.tables.items()}
    return tables, sorted(map(repr, chunk.dead_letters))


def refused(schema: dict[str, Any]) -> bool:
    from pulse_resources.errors import UserError

    try:
        dataset(schema)
    except (UserError, ValueError):
        return True
    return False


@times(6)
@given(cases())
def test_rows_and_verdicts_are_those_of_the_validator(case: tuple[dict[str, Any], list[bytes]]) -> None:
    schema, payloads = case
    if not refused(schema):
        for kind in DatasetKind:
            ways = Ways.of(schema, kind)
            assert conformed(ways.quickly, payloads) == conformed(ways.slowly, payloads)


# Each bound of each type by one or two of its four names; the others are slow cases.
FEW_OF_BOUNDED = [
    pytest.param(kind, marks=pytest.mark.slow) if kind in BOUNDED and BOUNDED.index(kind) % 3 else kind
    for kind in PROPERTIES
]


@pytest.mark.long
@pytest.mark.parametrize("fragment", FEW_OF_BOUNDED, ids=text)
def test_every_token_of_every_kind_of_property(fragment: Any) -> None:
    schema = {"type": "object", "properties": {"a": fragment}}
    if not refused(schema):
        assert different(schema) == []
        assert not Ways.of(schema, DatasetKind.ENTITIES).differ([single(token) for token in TOKENS])


def different(schema: dict[str, Any], kind: DatasetKind = DatasetKind.EVENTS) -> list[str]:
    """Tokens of which the decoder makes something else than the validator."""
    ways = Ways.of(schema, kind)
    return [token for token in TOKENS if ways.differ([single(token)])]


def single(token: str) -> bytes:
    head = '{"event_id":"e","dataset":"orders","timestamp":"2026-11-19T10:00:00Z","data":{"a":'
    return f"{head}{token}}}}}".encode(errors="surrogatepass")


def test_numbers_that_a_float_rounds_are_left_to_the_validator(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "number"}}}
    monkeypatch.setattr(quick, "FLOATS", {"gt": -(2.0**63), "lt": 2.0**63})
    for kind in DatasetKind:
        assert "9007199254740993" in different(schema, kind)


def test_a_property_that_is_absent_is_not_null() -> None:
    schema = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}}
    ways = Ways.of(schema, DatasetKind.ENTITIES)
    absent = single("null").replace(b'"a":null', b"")
    deleted = absent.replace(b'"data":{}', b'"data":{"a":1},"deleted":true')
    payloads = [absent, single("null"), deleted, deleted.replace(b"true", b"false")]
    chunk = ways.quickly.chunk(messages(payloads))
    hashes = chunk.tables["orders"].column("_hash").to_pylist()
    assert None not in hashes[:2]
    assert hashes[0] != hashes[1]
    assert hashes[2] is None
    assert len(chunk.dead_letters) == 1  # no deletion, and a number
    assert not ways.differ(payloads)


PLANTED = {
    "a bound that is forgotten": ("_BOUNDS", {}, {"type": "integer", "minimum": 5}),
    "a length that is forgotten": ("_LENGTHS", {}, {"type": "string", "maxLength": 1}),
    "a bound beyond the exact integers": ("EXACT", 2**70, {"type": "number", "maximum": 2**53}),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_difference_is_noticed(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, value, fragment = PLANTED[planted]
    monkeypatch.setattr(quick, name, value)
    if name in ("_BOUNDS", "_LENGTHS"):
        monkeypatch.setattr(quick, "_ANNOTATIONS", quick._ANNOTATIONS | fragment.keys())
    assert different({"type": "object", "properties": {"a": fragment}}) != []


def test_the_comparison_notices_a_pattern_with_a_wrong_end_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "END", "$")
    assert different(
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[A-Z]{3}$"}}}
    ) == ['"ABC\\n"']


PLAIN = {
    "type": "object",
    "required": ["a", "class"],
    "additionalProperties": False,
    "properties": {
        "a": {"type": "string", "maxLength": 5, "pattern": "^[A-Z]{3}$"},
        "n": {"type": ["integer", "null"], "minimum": 0},
        "x": {"type": "number", "exclusiveMaximum": 1.5},
        "e": {"type": ["string", "null"], "enum": ["a", None]},
        "at": {"type": "string", "format": "date-time"},
        "class": {"type": "boolean", "description": "a word of Python's"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
    },
}
"""All that a decoder is there for."""


def test_a_plain_schema_has_a_decoder_that_takes_its_events() -> None:
    decoder = quick.decoder([dataset(PLAIN)], ["acme"])
    assert decoder is not None
    data = {"a": "EWR", "n": 1, "x": 1, "e": None, "at": "2026", "class": True, "tags": ["a"]}
    event = {"event_id": "e", "dataset": "orders", "timestamp": "t", "data": data, "context": {"b": [1]}}
    decoded = decoder.one(json.dumps(event).encode())
    assert {name: decoder.column(dataset(PLAIN), name, [decoded.data])[0] for name in data} == data
    assert decoded.context == {"b": [1]}


WHOLE = b'{"event_id":"e","dataset":"orders","timestamp":"t","data":{"a":"EWR","class":true}}'
PIECES = [
    *(
        WHOLE,
        WHOLE.replace(b'"e"', b'"f"'),
        WHOLE + b" ",
        b"\n" + WHOLE,
        WHOLE + b"\n",
        WHOLE.replace(b",", b",\n"),
    ),
    *(b"", b" ", b"\n", WHOLE + b"\n" + WHOLE, WHOLE + WHOLE, WHOLE + b"\n" + WHOLE + b"\n" + WHOLE[:-2]),
    *(
        WHOLE[:20],
        WHOLE[20:],
        WHOLE[-2:],
        WHOLE[:-2],
        WHOLE[:-1],
        b"}",
        b"{",
        b"{}",
        b'{"a":"}',
        b'{"}',
        b"\xff",
    ),
    WHOLE.replace(b'"e"', b'"\\u0000"'),
]
"""Whole events and parts of them, which may make an event or two together."""


@example([WHOLE[:-1], b',"context":null}', WHOLE + WHOLE])
@example([WHOLE[: WHOLE.index(b'{"a"')], WHOLE[WHOLE.index(b'{"a"') :], WHOLE + WHOLE])
@example([WHOLE + b"\n" + WHOLE + b"\n" + WHOLE[:15], b"", WHOLE[15:]])
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=5))
def test_events_that_are_decoded_in_one_call_are_those_of_their_payloads(payloads: list[bytes]) -> None:
    decoder = quick.decoder([dataset(PLAIN)], ["acme"])
    assert decoder is not None
    alone = [decoder.one(payload) for payload in payloads]
    together = decoder.all(b"\n".join(payloads), len(payloads))
    assert together is None or [*map(repr, together)] == [*map(repr, alone)]
    assert decoder.all(b"\n".join([WHOLE] * 3), 3) is not None


def test_a_dataset_that_is_not_plain_does_not_take_the_decoder_of_others() -> None:
    nested = {
        "type": "object",
        "properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}},
    }
    decoder = quick.decoder([dataset(nested, "nested"), dataset(PLAIN)], ["acme"])
    assert decoder is not None
    assert [*decoder.slugs.values()] == ["orders"]
    assert quick.decoder([dataset(nested, "nested")], ["acme"]) is None


def test_rows_stand_in_the_order_in_which_they_came() -> None:
    plain, other = '{"a":"EWR","class":true}', '{"a":"EWR","class":true,"n":1.0}'
    payloads = [
        f'{{"event_id":"{n}","dataset":"orders","timestamp":"2026-11-19T10:00:00Z","data":{data}}}'.encode()
        for n, data in enumerate([plain, other, plain, other, other, plain])
    ]
    ways = Ways.of(PLAIN)
    tables, letters = conformed(ways.quickly, payloads)
    assert (tables, letters) == conformed(ways.slowly, payloads)
    assert len(tables["orders"]) == 6
