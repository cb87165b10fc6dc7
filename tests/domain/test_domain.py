"""Plain decisions: batches, schemas and their columns, names. No services."""

import json
import random
from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from psycopg.types.range import Range

from pulse_pipelines.domain.batch import (
    Backlog,
    OffsetRange,
    batch_id,
    divide,
    due,
    plan,
    share_out,
    spread,
)
from pulse_pipelines.domain.schemas.columns import MAX_FIELDS, PHYSICAL, FieldType, Kind, columns
from pulse_pipelines.domain.schemas.schema import MAX_BYTES, MAX_DEPTH, SchemaUri, check_document, validator
from pulse_pipelines.domain.tenant import Tenant, check_slug
from pulse_pipelines.tables.ledger import runs
from pulse_resources.errors import UserError

# Batches


def backlog(number: int, *lengths: int, start: int = 100) -> Backlog:
    tenant = UUID(int=number)
    ranges = (OffsetRange(tenant, p, start, start + length) for p, length in enumerate(lengths))
    return Backlog(tenant, tuple(ranges))


def events_by_tenant(ranges: list[OffsetRange]) -> dict[int, int]:
    """Planned events by tenant."""
    sums: Counter[int] = Counter()
    for r in ranges:
        sums[r.tenant_id.int] += r.length
    return dict(sums)


def test_due_backlogs_are_shared_out_over_batches_of_about_equal_size() -> None:
    backlogs = [backlog(n, size) for n, size in enumerate((50, 10, 40, 30, 20), 1)]
    groups = share_out(backlogs, 2, worth=75)
    assert sorted(sum(b.weight for b in group) for group in groups) == [70, 80]
    assert sorted(b.tenant_id for group in groups for b in group) == [b.tenant_id for b in backlogs]
    assert [len(group) for group in share_out(backlogs, 2, worth=76)] == [5], "not worth a second run"
    assert [len(group) for group in share_out([backlog(1, 500)], 2, worth=75)] == [1]
    assert share_out([], 2, worth=75) == []


def test_a_batch_has_a_bound_for_the_schemas_of_all_its_tenants() -> None:
    group = [backlog(n, 1) for n in range(1, 8)]
    sizes = {b.tenant_id: size for b, size in zip(group, (19, 1, 19, 2, 19, 100), strict=False)}
    batches = divide(group, sizes, 40)
    assert [[b.tenant_id.int for b in batch] for batch in batches] == [[7, 2, 4, 1], [3, 5], [6]]
    assert divide([], sizes, 40) == []


def test_a_topic_is_due_when_it_is_large_or_has_waited() -> None:
    large, old, young, unseen, empty = (backlog(n, size) for n, size in enumerate((100, 1, 99, 99, 0), 1))
    since = {old.tenant_id: 70.0, young.tenant_id: 85.1, empty.tenant_id: 0.0}
    limits = {"flush_rows": 100, "flush_seconds": 30.0}
    backlogs = [large, old, young, unseen, empty]
    assert due(backlogs, since, 100.0, **limits) == ([old], [large])
    assert due(backlogs, since, 99.9, **limits) == ([], [large])


def test_a_topic_that_has_waited_half_as_long_goes_along() -> None:
    old, half, young = (backlog(n, 1) for n in (1, 2, 3))
    since = {old.tenant_id: 70.0, half.tenant_id: 85.0, young.tenant_id: 85.1}
    assert due([young, half, old], since, 100.0, flush_rows=100, flush_seconds=30.0) == ([half, old], [])
    assert due([young, half], since, 100.0, flush_rows=100, flush_seconds=30.0) == ([], [])


def test_large_topics_and_small_ones_are_in_different_lanes() -> None:
    backlogs = [backlog(n, size) for n, size in enumerate((100, 99, 5_000, 1), 1)]
    since = {b.tenant_id: 0.0 for b in backlogs}
    quick, bulk = due(backlogs, since, 30.0, flush_rows=100, flush_seconds=30.0)
    assert [b.weight for b in quick] == [99, 1]
    assert [b.weight for b in bulk] == [100, 5_000]


@pytest.mark.parametrize(
    ("event_bytes", "weight"), [(0, 10), (4_095, 10), (8_191, 10), (8_192, 20), (1_000_000, 2_440)]
)
def test_large_events_count_as_several(event_bytes: int, weight: int) -> None:
    large = Backlog(UUID(int=1), (OffsetRange(UUID(int=1), 0, 5, 15),), event_bytes)
    assert large.weight == weight
    assert large.is_bulk(weight)
    assert not large.is_bulk(weight + 1)
    length = sum(r.length for r in plan([large], 60))
    assert length == min(10, -(-60 // (weight // 10))), "a batch is bounded by bytes, and takes at least one"


def test_weight_counts_all_partitions() -> None:
    _, (planned,) = due([backlog(1, 60, 40)], {}, 0.0, flush_rows=100, flush_seconds=30.0)
    assert planned.weight == 100


def test_a_plan_takes_everything_that_fits() -> None:
    backlogs = [backlog(1, 5, 0), backlog(2, 7, 3)]
    assert sorted(plan(backlogs, 15)) == sorted(r for b in backlogs for r in b.ranges if r.length)


def test_a_plan_shares_fairly_and_gives_unused_room_to_large_backlogs() -> None:
    assert events_by_tenant(plan([backlog(1, 10_000), backlog(2, 10), backlog(3, 400)], 1_000)) == {
        2: 10,
        3: 400,
        1: 590,
    }
    assert events_by_tenant(plan([backlog(1, 10_000), backlog(2, 10_000)], 1_000)) == {1: 500, 2: 500}
    assert events_by_tenant(plan([backlog(1, 600, 600), backlog(2, 1)], 1_001)) == {2: 1, 1: 1_000}


def test_a_plan_with_less_room_than_topics_takes_one_of_each_until_it_is_full() -> None:
    assert events_by_tenant(plan([backlog(n, 5) for n in range(1, 6)], 3)) == {1: 1, 2: 1, 3: 1}
    assert plan([], 10) == []
    assert plan([backlog(1, 0, 0)], 10) == []


@pytest.mark.parametrize("seed", range(20))
def test_plans_are_prefixes_within_the_limit_that_leave_no_room(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    sizes = (0, 1, 10, 1_000)
    backlogs = [
        backlog(n, *(chance.choice(sizes) for _ in range(3)), start=chance.randrange(99)) for n in range(1, 9)
    ]
    limit = chance.choice((1, 7, 100, 5_000, 100_000))
    planned = plan(backlogs, limit)
    waiting = {(r.tenant_id, r.partition): r for b in backlogs for r in b.ranges}
    assert len({(r.tenant_id, r.partition) for r in planned}) == len(planned)
    for r in planned:
        whole = waiting[r.tenant_id, r.partition]
        assert r.start == whole.start < r.end <= whole.end
    assert sum(r.length for r in planned) == min(limit, sum(b.weight for b in backlogs))
    if limit >= len(backlogs):
        share = limit // len(backlogs)
        weights = events_by_tenant(planned)
        assert all(weights.get(b.tenant_id.int, 0) >= min(b.weight, share) for b in backlogs)


@pytest.mark.parametrize("seed", range(20))
def test_spread_cuts_evenly_and_covers_exactly(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    ranges = [
        r
        for n in range(chance.randrange(6))
        for r in backlog(n, *(chance.choice((1, 9, 500)) for _ in range(2))).ranges
    ]
    tasks = chance.choice((1, 2, 3, 16))
    groups = spread(ranges, tasks)
    pieces = [r for group in groups for r in group]
    assert pieces == sorted(pieces), "in topic order, so that neighbours stay together"
    assert len(groups) <= tasks
    assert all(group and all(r.length > 0 for r in group) for group in groups)
    offsets = [(r.tenant_id, r.partition, o) for r in pieces for o in range(r.start, r.end)]
    assert offsets == [(r.tenant_id, r.partition, o) for r in sorted(ranges) for o in range(r.start, r.end)]
    sizes = [sum(r.length for r in group) for group in groups]
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_a_batch_is_named_for_its_ranges_in_any_order() -> None:
    ranges = [*backlog(1, 5, 7).ranges, *backlog(2, 3).ranges]
    name = batch_id(ranges)
    assert batch_id(reversed(ranges)) == name == batch_id(iter(ranges))
    changed = [OffsetRange(r.tenant_id, r.partition, r.start, r.end + 1) for r in ranges]
    changed_ids = {batch_id([*ranges[:i], changed[i], *ranges[i + 1 :]]) for i in range(3)}
    assert len(changed_ids | {name, batch_id(ranges[:2])}) == 5
    assert len(name) == 20


@pytest.mark.parametrize(
    ("offsets", "spans"),
    [
        ([], []),
        ([5], [(5, 6)]),
        ([5, 6, 7], [(5, 8)]),
        ([0, 2, 3, 9], [(0, 1), (2, 4), (9, 10)]),
    ],
)
def test_offsets_become_half_openruns(offsets: list[int], spans: list[tuple[int, int]]) -> None:
    assert list(runs(offsets)) == [Range(*span) for span in spans]


# Schemas


def document(**changes: Any) -> str:
    return json.dumps({"type": "object"} | changes)


def nested(levels: int) -> bytes:
    start, end = b'{"type":"object","properties":{"a":', b"}}"
    return start * levels + b'{"type":"string"}' + end * levels


def chained(count: int, copies: int) -> str:
    """Small, but each level refers to the next one `copies` times."""
    defs: dict[str, Any] = {f"a{count}": {"type": "string"}}
    for n in range(count):
        members = {f"x{copy}": {"$ref": f"#/$defs/a{n + 1}"} for copy in range(copies)}
        defs[f"a{n}"] = {"type": "object", "properties": members}
    return document(properties={"root": {"$ref": "#/$defs/a0"}}, **{"$defs": defs})


OF_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
DEEP = json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)
REFUSED: list[tuple[str, str | bytes, str]] = [
    ("no json", "nope", "not JSON"),
    ("empty", b"", "not JSON"),
    ("invalid utf-8", b'{"type":"object","title":"\xff"}', "not JSON"),
    ("lone surrogate", '{"type":"object","title":"\ud800"}', "not JSON"),
    ("a list", "[]", "not a JSON object"),
    ("true", "true", "not a JSON object"),
    ("no type", "{}", "must describe an object"),
    ("type array", document(type="array"), "must accept objects"),
    ("no object", document(type=["string", "null"]), "must accept objects"),
    ("nothing of objects", "{}", "must describe an object"),
    ("unknown draft", document(**{"$schema": "https://example.com/own"}), "unknown draft"),
    ("draft is null", document(**{"$schema": None}), "unknown draft"),
    ("draft is a number", document(**{"$schema": 5}), "unknown draft"),
    ("draft is an object", document(**{"$schema": {}}), "unknown draft"),
    ("draft 3", document(**{"$schema": "http://json-schema.org/draft-03/schema#"}), "unknown draft"),
    (
        "no such type",
        document(properties={"a": {"properties": {"b/c": {"type": "strng"}}}}),
        'not a valid JSON Schema: at #/properties/a/properties/b~1c/type: "strng" is not a type: a type is '
        "one of array, boolean, integer, null, number, object, string, or an array of some of them. "
        "Did you mean string?",
    ),
    (
        "no such type in an array",
        document(properties={"a": {"type": ["string", "nul"]}}),
        'at #/properties/a/type: ["string","nul"] is not a type',
    ),
    (
        "no such type in draft 4",
        document(**OF_4, properties={"a": {"type": "text"}}),
        "at #/properties/a/type: ",
    ),
    (
        "a column named type",
        document(properties={"type": 5}),
        'not a valid JSON Schema: at #/properties/type: 5 is not of types "boolean", "object"',
    ),
    (
        "a length below zero",
        document(properties={"a": {"minLength": -1}}),
        "not a valid JSON Schema: at #/properties/a/minLength: -1 is less than the minimum of 0",
    ),
    (
        "properties is a list",
        document(properties=[]),
        'not a valid JSON Schema: at #/properties: [] is not of type "object"',
    ),
    ("required is a string", document(required="a"), "not a valid JSON Schema: at #/required: "),
    ("format is a list", document(properties={"a": {"type": "string", "format": []}}), "not a valid"),
    ("bad pattern", document(properties={"a": {"pattern": "("}}), "'(' at #/properties/a is not a regular"),
    ("remote", document(properties={"a": {"$ref": "https://example.com/a.json"}}), "example.com/a.json"),
    ("local file", document(properties={"a": {"$ref": "file:///etc/passwd"}}), "file:///etc/passwd"),
    ("remote by base", document(**{"$id": "https://example.com/x/", "$ref": "y"}), "may not refer to y"),
    ("remote dynamic", document(**{"$dynamicRef": "https://example.com/y"}), "$dynamicRef"),
    ("reference to nothing", document(properties={"a": {"$ref": "#/$defs/a"}}), "/$defs/a"),
    ("its own column", document(properties={"a": {"$ref": "#/properties/a"}}), "refers to itself"),
    ("same column in two cases", document(properties={"a": True, "A": True}), "share the column 'A'"),
    ("same column by prefix", document(properties={"id": {}, "data_ID": {}}), "share the column"),
    ("same column by prefix, turned", document(properties={"data_id": {}, "Id": {}}), "share the column"),
    ("too large", document(title="x" * MAX_BYTES), "the limit is 524,288"),
    (
        "too large in bytes",
        document().replace("}", ',"title":"' + "é" * (MAX_BYTES // 2) + '"}'),
        "the limit",
    ),
    (
        "deeper than may be",
        nested(MAX_DEPTH // 2 + 1),
        "nested deeper than 64 levels at #/properties/a/properties/",
    ),
    (
        "deep beside what is not",
        document(title=[1], allOf=DEEP),
        "nested deeper than 64 levels at #/allOf/0/0/0/",
    ),
    ("500 levels", nested(500), "nested deeper than"),
    ("5,000 levels", nested(5_000), "nested deeper than"),
    ("100,000 arrays", b"[" * 100_000 + b"]" * 100_000, "nested deeper than"),
    (
        "too many columns",
        document(properties={f"c{n}": {} for n in range(MAX_FIELDS + 1)}),
        "more than 2,000",
    ),
]


@pytest.mark.parametrize(("text", "words"), [pytest.param(*r[1:], id=r[0]) for r in REFUSED])
def test_a_schema_that_cannot_be_used_is_the_users_error(text: str | bytes, words: str) -> None:
    with pytest.raises(UserError) as caught:
        check_document(text)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 1_000


USABLE: list[tuple[str, str | bytes]] = [
    ("nothing declared", document()),
    ("draft 4", document(**{"$schema": "http://json-schema.org/draft-04/schema#"})),
    ("draft 7", document(**{"$schema": "http://json-schema.org/draft-07/schema#"})),
    ("draft 2019-09", document(**{"$schema": "https://json-schema.org/draft/2019-09/schema"})),
    ("refers to itself", document(properties={"a": {"$ref": "#"}})),
    ("a pattern that Python does not know", document(properties={"a": {"pattern": r"^\p{L}+$"}})),
    ("as deep as may be", nested(MAX_DEPTH // 2 - 1)),
    ("a long chain of references", chained(200, 1)),
    ("references that multiply", chained(25, 2)),
    ("object or null", document(type=["object", "null"])),
    ("a remote reference where no event gets", document(**{"$defs": {"a": {"$ref": "http://x.org"}}})),
]


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in USABLE])
def test_a_schema_that_can_be_used(text: str | bytes) -> None:
    checked = check_document(text)
    assert checked["$schema"]
    assert validator(checked).is_valid({})


def test_the_default_draft_is_2020_12() -> None:
    assert check_document(document())["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_a_pattern_is_checked_with_the_syntax_of_json_schema() -> None:
    checked = check_document(document(properties={"a": {"pattern": r"^\p{L}+$"}}))
    assert validator(checked).is_valid({"a": "Zoë"})
    assert not validator(checked).is_valid({"a": "R2"})


# Columns

STRING, LONG, DOUBLE, BOOLEAN, JSON = (
    FieldType(k) for k in (Kind.STRING, Kind.LONG, Kind.DOUBLE, Kind.BOOLEAN, Kind.JSON)
)


def struct(**members: FieldType) -> FieldType:
    return FieldType(Kind.STRUCT, fields=tuple(members.items()))


def items(item: FieldType) -> FieldType:
    return FieldType(Kind.LIST, item=item)


DEFS = {
    "money": {"type": "object", "properties": {"amount": {"type": "number"}, "unit": {"type": "string"}}},
    "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}},
    "a/b~c": {"type": "boolean"},
}
MONEY = struct(amount=DOUBLE, unit=STRING)
NULL = {"type": "null"}
TYPES: list[tuple[Any, FieldType]] = [
    ({"type": "string"}, STRING),
    ({"type": "integer"}, LONG),
    ({"type": "number"}, DOUBLE),
    ({"type": "boolean"}, BOOLEAN),
    ({"type": "string", "format": "date-time"}, FieldType(Kind.TIMESTAMP)),
    ({"type": "string", "format": "date"}, FieldType(Kind.DATE)),
    ({"type": "string", "format": "email"}, STRING),
    ({"type": "integer", "format": "date"}, LONG),
    ({"type": ["string", "null"], "format": "date"}, FieldType(Kind.DATE)),
    ({"type": ["null", "integer"]}, LONG),
    ({"type": ["integer", "number"]}, FieldType(Kind.DOUBLE)),
    ({"type": ["string", "integer", "null"]}, JSON),
    (NULL, JSON),
    ({"type": ["null"]}, JSON),
    (True, JSON),
    (False, JSON),
    ({}, JSON),
    ({"enum": ["a", 1]}, JSON),
    ({"const": "a"}, FieldType(Kind.STRING)),
    ({"anyOf": [{"type": "integer"}, NULL]}, LONG),
    ({"oneOf": [NULL, {"$ref": "#/$defs/money"}]}, MONEY),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, JSON),
    ({"anyOf": [True, NULL]}, JSON),
    ({"$ref": "#/$defs/money"}, MONEY),
    ({"$ref": "#/$defs/a~1b~0c"}, BOOLEAN),
    ({"$ref": "#/$defs/node"}, JSON),
    ({"$ref": "#"}, JSON),
    ({"type": "object"}, JSON),
    ({"type": "object", "properties": {}}, JSON),
    ({"type": "object", "properties": {"n": {"type": "integer"}}}, struct(n=LONG)),
    ({"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}}}, struct(at=STRING)),
    ({"type": "object", "properties": {"n": {"type": "integer"}, "x": {}}}, JSON),
    ({"type": "object", "properties": {"n": {"type": "integer"}, "N": {"type": "integer"}}}, JSON),
    ({"type": "object", "properties": {"a b": {"type": "integer"}}}, JSON),
    ({"properties": {"n": {"type": "integer"}}}, JSON),
    ({"type": "array"}, JSON),
    ({"type": "array", "items": True}, JSON),
    ({"type": "array", "items": {}}, JSON),
    ({"type": "array", "items": {"type": "string", "format": "date"}}, items(STRING)),
    ({"type": "array", "items": {"type": ["number", "null"]}}, items(DOUBLE)),
    ({"type": "array", "items": {"$ref": "#/$defs/money"}}, items(MONEY)),
    ({"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}}, items(items(BOOLEAN))),
    ({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, JSON),
]


@pytest.mark.parametrize(("fragment", "expected"), TYPES, ids=lambda v: str(v)[:60])
def test_the_type_of_a_column(fragment: Any, expected: FieldType) -> None:
    checked = check_document(document(properties={"x": fragment}, **{"$defs": DEFS}))
    (column,) = columns(checked)
    assert (column.field, column.name, column.type) == ("x", "x", expected)


def test_a_column_that_is_too_deep_for_a_type_is_json() -> None:
    (column,) = columns(check_document(chained(200, 1)))
    assert column.type == JSON


def test_columns_are_in_declared_order_and_never_a_reserved_one() -> None:
    reserved = (*PHYSICAL, "_file", "_POS", "_deleted", "_spec_id", "_row_id", "timestamp_day", "_Partition")
    properties = {name: {"type": "string"} for name in ("zeta", *reserved, "TENANT_ID_2", "alpha")}
    declared = columns(check_document(document(properties=properties)))
    assert [c.field for c in declared] == list(properties)
    assert [c.name for c in declared] == [
        "zeta",
        *(f"data_{name}" for name in reserved),
        "TENANT_ID_2",
        "alpha",
    ]


def test_names_that_would_share_a_column_are_refused() -> None:
    for names in (("timestamp_day", "data_timestamp_day"), ("Timestamp_Day", "timestamp_day"), ("a", "A")):
        with pytest.raises(UserError, match="two properties would share"):
            columns(check_document(document(properties={name: {"type": "string"} for name in names})))


@pytest.mark.parametrize("name", ["", "1st", "a-b", "a b", "é", "a.b", "x" * 128, "a\n", '"'])
def test_a_property_that_no_engine_takes_as_a_name_gets_no_column(name: str) -> None:
    assert columns(check_document(document(properties={name: {"type": "string"}}))) == ()


# Names


def test_a_schema_address_is_read_and_written_alike() -> None:
    uri = SchemaUri("acme", "orders_v", 12)
    assert str(uri) == "pulse://acme/orders_v/12"
    assert SchemaUri.parse(str(uri)) == uri


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pulse://acme/orders",
        "pulse://acme/orders/0",
        "pulse://acme/orders/01",
        "pulse://acme/orders/-1",
        "pulse://acme/orders/1/",
        "pulse://acme/orders/1\n",
        "pulse://acme/orders/1\u0661",
        "pulse://acme/orders/1234567890",
        "pulse://Acme/orders/1",
        "pulse:///orders/1",
        "http://acme/orders/1",
        " pulse://acme/orders/1",
    ],
)
def test_an_invalid_schema_address_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a schema address"):
        SchemaUri.parse(text)


@pytest.mark.parametrize("slug", ["a", "acme", "a_1", "x" * 63])
def test_a_slug(slug: str) -> None:
    assert check_slug("tenant", slug) == slug


@pytest.mark.parametrize(
    "slug", ["", "x" * 64, "1a", "_a", "Acme", "a-b", "a.b", "a|b", "a/b", "a b", "a\n", "é", ".."]
)
def test_an_invalid_slug_is_refused(slug: str) -> None:
    with pytest.raises(UserError, match="not a valid tenant slug"):
        check_slug("tenant", slug)


def test_everything_of_a_tenant_is_named_by_its_id() -> None:
    tenant = Tenant(UUID(int=1), "acme")
    assert tenant.topic == f"pulse.{'0' * 31}1.events"
    assert tenant.dead_letter_topic == f"{tenant.topic}.dlq"
    assert tenant.namespace == f"pulse_{'0' * 31}1"
    location = f"s3://b/iceberg/{tenant.namespace}/orders/000000000000"
    assert tenant.table_location("b", "orders", UUID(int=2)) == location
    assert tenant.raw_prefix("b", "orders") == f"s3://b/raw/{'0' * 31}1/orders"
