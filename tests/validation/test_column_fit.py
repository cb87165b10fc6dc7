"""What the door accepts lands: its verdict on an event is the one that a batch gives, typing columns."""

import json
from dataclasses import replace
from typing import Any

import pytest
from support.conform import SCHEMA, TENANT, dataset, messages

from pulse_api.http.collect.split import Item
from pulse_api.http.collect.verdicts import Validation
from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.dataset import Dataset, DatasetKind
from pulse_pipelines.domain.event_limits import UNLIMITED
from pulse_pipelines.ingest.conform import TopicConformer
from pulse_pipelines.tables import arrow_columns
from pulse_pipelines.tables.column_fit import ColumnFit
from pulse_pipelines.validation.validator import Validator

DATES = ['"19.11.2026"', '"2026-11-19"', '"2026-02-30"', '"20261119"', '"0000-01-01"', '""']
MOMENTS = [
    *('"2026-11-19T10:00:00Z"', '"2026-11-19 10:00:00.1234567+01:00"', '"2026-11-19T10:00:00+25:00"'),
    *(
        '"2026-11-19T10:00:00"',
        '"9999-12-31T23:59:60Z"',
        '"0001-01-01T00:00:00+01:00"',
        '"2026-13-01T00:00:00Z"',
    ),
]
NUMBERS = ["1", "1.0", "1.5", "1e19", "-1e300", "9223372036854775807", "9223372036854775808", "0.1"]
DIGITS = ["9007199254740993.0", "9007199254740993.5", "1.0000000000000000001", "1e-400", "-0.0", "1.5e1"]
NESTED = [
    "[]",
    "[1, null]",
    "[1.0, 1e19]",
    "[1, 9007199254740993.5]",
    '{"zip": 9007199254740993.0}',
    '[["a"]]',
    '{"zip": 1e19}',
    '{"zip": 1, "more": 2}',
    '{"n": [1e19]}',
]
TOKENS = [*DATES, *MOMENTS, *NUMBERS, *DIGITS, *NESTED, "null", "true", '"a"']
TYPES: list[Any] = [
    *({"type": "string", "format": form} for form in ("date", "date-time")),
    *({"type": [kind, "null"]} for kind in ("string", "integer", "number", "boolean")),
    *({"type": "array", "items": {"type": kind}} for kind in ("integer", ["integer", "null"], "number")),
    {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    {"type": "object", "properties": {"zip": {"type": "integer"}}},
    {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "integer"}}}},
    {},
]


def event(data: str, version: int | None = None) -> bytes:
    head = '{"event_id": "e", "dataset": "orders", "timestamp": "2026-11-19T10:00:00Z"'
    return f'{head}, "schema_version": {json.dumps(version)}, "data": {data}}}'.encode()


def at_the_door(follows: Dataset, payloads: list[bytes]) -> list[tuple[int, str, str | None, str]]:
    judge = Validator(Scope(TENANT, (follows,)), UNLIMITED)
    validation = Validation([Item(payload) for payload in payloads])
    while not validation.done:
        validation.go_on(judge)
    notable = validation.verdicts().notable
    return [
        (rejection["index"], rejection["reason"], rejection["pointer"], rejection["detail"])
        for rejection in notable
    ]


def test_a_member_that_no_column_has_is_accepted_and_named() -> None:
    follows = dataset({"type": "object", "properties": {"a": {"type": "string"}}})
    sent = json.loads(event('{"a": "x"}'))
    own = sent | {"contxt": {"ip": "1"}, "shema_version": 1, "fleet": "north"}
    everything = sent | {"context": 1, "trace_id": "t", "tenant": TENANT.slug}
    many = sent | {f"m{number:02}{'x' * 200}": number for number in range(30)}
    refused = own | {"data": {"a": 1}}
    assert unknown_members(follows, sent, everything, refused) == []
    members = unknown_members(follows, own, sent, own | {"deleted": True})
    assert [(member["member"], member["events"], member["fix"]) for member in members] == [
        ("contxt", 2, "Did you mean context?"),
        ("deleted", 1, "Put what is to be stored into context or data"),
        ("fleet", 2, "Put what is to be stored into context or data"),
        ("shema_version", 2, "Did you mean schema_version?"),
    ]
    assert members[0]["detail"] == "contxt is not a member of an event: no column has it"
    assert [len(member["member"]) for member in unknown_members(follows, many)] == [100] * 20
    assert unknown_members(replace(follows, kind=DatasetKind.ENTITIES), sent | {"deleted": True}) == []


def unknown_members(follows: Dataset, *events: dict[str, Any]) -> Any:
    judge = Validator(Scope(TENANT, (follows,)), UNLIMITED)
    validation = Validation([Item(json.dumps(document).encode()) for document in events])
    while not validation.done:
        validation.go_on(judge)
    return json.loads(validation.verdicts().document()).get("ignored", [])


def in_a_batch(follows: Dataset, payloads: list[bytes]) -> list[tuple[int, str, str | None, str]]:
    conformer = TopicConformer(Scope(TENANT, (follows,)), "batch", UNLIMITED)
    rejections = []
    for place, payload in enumerate(payloads):
        for letter in conformer.chunk(messages([payload])).dead_letters:
            rejected = letter.rejected
            rejections.append((place, rejected.reason.value, rejected.pointer, rejected.detail))
    return rejections


@pytest.mark.parametrize("version", [None, 1], ids=["its own version", "an earlier one"])
@pytest.mark.parametrize("kind", TYPES, ids=json.dumps)
def test_the_door_and_the_batch_give_one_verdict(kind: Any, version: int | None) -> None:
    schema = {"type": "object", "properties": {"a": kind, "b": {"type": "string", "format": "date"}}}
    follows = replace(dataset(schema), earlier=((1, '{"type": "object"}'),))
    payloads = [event(f'{{"a": {token}, "b": "2026-11-19"}}', version) for token in TOKENS]
    rejections = at_the_door(follows, payloads)
    assert rejections == in_a_batch(follows, payloads)
    assert 0 < len(rejections) < len(TOKENS) or (
        kind == {} and {rejection[1] for rejection in rejections} <= {"integer_out_of_range"}
    )


def test_columns_of_a_choice_are_typed_at_the_door() -> None:
    """An event may follow a branch that leaves the property open."""
    branches = [{"required": ["b"], "properties": {"b": {}}}, {"properties": {"a": {"type": "integer"}}}]
    follows = dataset({"type": "object", "anyOf": branches})
    payloads = [event(f'{{"a": {token}, "b": 1}}') for token in TOKENS]
    assert at_the_door(follows, payloads) == in_a_batch(follows, payloads)


def test_an_invalid_date_is_refused_with_its_pointer() -> None:
    ((index, reason, pointer, detail),) = at_the_door(
        dataset(SCHEMA), [event('{"country": "DE"}'), event('{"country": "DE", "signup_at": "19.11.2026"}')]
    )
    assert (index, reason, pointer) == (1, "unrepresentable", "/data/signup_at")
    assert detail == "not an RFC 3339 timestamp with a zone offset"


def test_an_ordinary_event_never_reaches_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """One value at a time it takes Arrow as long as all the rest takes."""

    def refuse(*_: Any) -> None:
        raise AssertionError("Arrow was asked")

    columns = dataset(SCHEMA).columns
    data = {
        "country": "DE",
        "amount": 1,
        "count": 5,
        "signup_at": "2026-11-19T10:00:00Z",
        "born": "2026-11-19",
    }
    monkeypatch.setattr(arrow_columns, "array", refuse)
    for as_declared in (True, False):
        assert ColumnFit(columns).misfit(data | {"lines": [{"n": 1}]}, b"{}", as_declared=as_declared) is None


@pytest.mark.parametrize(
    ("token", "integer"),
    [
        ("9007199254740993.0", 2**53 + 1),
        ("-9007199254740993e0", -(2**53) - 1),
        ("9223372036854775807.0", 2**63 - 1),
        ("123456789012345678e1", 1234567890123456780),
        ("1.5e1", 15),
        ("-0.0", 0),
        ("9223372036854775808.0", None),
        ("1e19", None),
        ("9007199254740993.5", None),
        ("1.0000000000000000001", None),
        ("1e-400", None),
        ("1e-99999999999999999999", None),
    ],
)
def test_an_integer_has_its_exact_value_or_is_refused(token: str, integer: int | None) -> None:
    integers = {"type": "array", "items": {"type": "integer"}}
    follows = dataset({"type": "object", "properties": {"a": {"type": "integer"}, "b": integers}})
    for name, written in (("a", token), ("b", f"[1, {token}]")):
        payload = event(f'{{"{name}": {written}}}')
        letters = in_a_batch(follows, [payload])
        assert at_the_door(follows, [payload]) == letters
        chunk = TopicConformer(Scope(TENANT, (follows,)), "batch", UNLIMITED).chunk(messages([payload]))
        if integer is None:
            detail = f"{token} is not a whole number from -9223372036854775808 to 9223372036854775807"
            assert letters == [(0, "unrepresentable", f"/data/{name}", detail)]
        else:
            assert letters == []
            assert chunk.tables["orders"][name].to_pylist() == [integer if name == "a" else [1, integer]]
