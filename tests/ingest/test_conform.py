"""Every verdict that conforming can give, and the rows that it makes. No services."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pyarrow as pa
import pytest
from support.conform import SCHEMA, TENANT, dataset, messages

from pulse_pipelines.domain import entities, json_values
from pulse_pipelines.domain.as_sent import event_data
from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.event import Rejected, nesting, parse_timestamp, suspicious
from pulse_pipelines.domain.event_limits import UNLIMITED, EventLimits
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.schemas.columns import columns as declared
from pulse_pipelines.ingest.batch_files import days
from pulse_pipelines.ingest.conform import Conformed, DeadLetter, TopicConformer
from pulse_pipelines.query.preview import moment
from pulse_pipelines.tables import arrow_columns
from pulse_pipelines.tables.raw_zone import LINE, Message, lines
from pulse_pipelines.validation.limits import event_limits
from pulse_resources.errors import UserError

MAX_BYTES, MAX_DEPTH = 262_144, 64


LIMITS = replace(UNLIMITED, max_bytes=MAX_BYTES, max_depth=MAX_DEPTH)


def conformer(schema: dict[str, Any] = SCHEMA, limits: EventLimits = LIMITS) -> TopicConformer:
    scope = Scope(TENANT, (dataset(schema), dataset({"type": "object"}, "free")))
    return TopicConformer(scope, "batch", limits)


def envelope(**changes: Any) -> bytes:
    """A valid event for `orders`; a change to None leaves the key out."""
    event = {"event_id": "e", "dataset": "orders", "timestamp": "2026-11-19T10:00:00Z"}
    event |= {"data": {"country": "DE"}} | changes
    return json.dumps({key: value for key, value in event.items() if value is not None}).encode()


def with_data(**data: Any) -> bytes:
    return envelope(data={"country": "DE"} | data)


def spliced(json_text: bytes, field: str = "other") -> bytes:
    """A valid event whose data has `json_text`, byte for byte, as the value of `field`."""
    return with_data(**{field: "SPLICE"}).replace(b'"SPLICE"', json_text)


def rows(conformed: Conformed, slug: str = "orders") -> list[dict[str, Any]]:
    table = conformed.tables.get(slug)
    return [] if table is None else table.drop_columns([LINE]).to_pylist()


def reject(payload: bytes, schema: dict[str, Any] = SCHEMA) -> DeadLetter:
    conformed = conformer(schema).chunk(messages([payload]))
    assert not conformed.tables
    (letter,) = conformed.dead_letters
    assert letter.message == Message(1, 0, 1_700_000_000_123, payload), "payload and origin stay as they were"
    return letter


def accept(payload: bytes, schema: dict[str, Any] = SCHEMA) -> dict[str, Any]:
    conformed = conformer(schema).chunk(messages([payload]))
    assert not conformed.dead_letters
    (row,) = rows(conformed)
    return row


R = Reason
REJECTED: list[tuple[str, bytes, Reason, str | None]] = [
    ("empty, also a tombstone", b"", R.UNDECODABLE, None),
    ("not json", b"not json", R.UNDECODABLE, None),
    ("cut short", envelope()[:-1], R.UNDECODABLE, None),
    ("two values", envelope() + envelope(), R.UNDECODABLE, None),
    ("invalid utf-8", envelope().replace(b"DE", b"\xff\xfe"), R.UNDECODABLE, None),
    ("utf-8 of a surrogate", envelope().replace(b"DE", b"\xed\xa0\x80"), R.UNDECODABLE, None),
    ("utf-16", envelope().decode().encode("utf-16"), R.UNDECODABLE, None),
    ("byte order mark", b"\xef\xbb\xbf" + envelope(), R.UNDECODABLE, None),
    ("lone high surrogate", envelope().replace(b"DE", rb"\ud800"), R.UNDECODABLE, None),
    ("lone low surrogate", envelope().replace(b"DE", rb"\udc00x"), R.UNDECODABLE, None),
    ("bare NUL", envelope().replace(b"DE", b"\0"), R.UNDECODABLE, None),
    ("NaN", spliced(b"NaN"), R.UNDECODABLE, None),
    ("beyond every float", spliced(b"1e400"), R.UNDECODABLE, None),
    ("5,000 digits", spliced(b"1" * 5000), R.UNDECODABLE, None),
    ("one byte too many", envelope() + b" " * (MAX_BYTES + 1 - len(envelope())), R.OVERSIZE, None),
    ("too large to look at", b"\xff" * (MAX_BYTES + 1), R.OVERSIZE, None),
    ("one level too deep", spliced(b"[" * 63 + b"]" * 63), R.TOO_DEEP, None),
    ("objects too deep", spliced(b'{"a":' * 63 + b"1" + b"}" * 63), R.TOO_DEEP, None),
    ("100,000 arrays", b"[" * 100_000 + b"]" * 100_000, R.TOO_DEEP, None),
    ("100,000 arrays in an event", spliced(b"[" * 100_000 + b"]" * 100_000), R.TOO_DEEP, None),
    ("arrays without end", b"[" * 100_000, R.TOO_DEEP, None),
    ("NUL in a value", with_data(country="a\0b"), R.NUL_CHARACTER, "/data/country"),
    ("NUL in a list", with_data(other=[1, {"x": ["\0"]}]), R.NUL_CHARACTER, "/data/other/1/x/0"),
    ("NUL in a key", with_data(other={"a\0": 1}), R.NUL_CHARACTER, "/data/other"),
    ("NUL in the id", envelope(event_id="a\0"), R.NUL_CHARACTER, "/event_id"),
    ("NUL in the dataset", envelope(dataset="orders\0"), R.NUL_CHARACTER, "/dataset"),
    ("NUL in the context", envelope(context={"a": "\0"}), R.NUL_CHARACTER, "/context/a"),
    ("NUL in the trace", envelope(trace_id="\0"), R.NUL_CHARACTER, "/trace_id"),
    ("NUL in an unknown key", envelope(**{"x\0": 1}), R.NUL_CHARACTER, ""),
    ("NUL after a backslash", spliced(rb'"\\\u0000"'), R.NUL_CHARACTER, "/data/other"),
    ("2^63", with_data(count=2**63), R.INTEGER_OUT_OF_RANGE, "/data/count"),
    ("-2^63-1", with_data(count=-(2**63) - 1), R.INTEGER_OUT_OF_RANGE, "/data/count"),
    ("2^64", with_data(count=2**64), R.INTEGER_OUT_OF_RANGE, "/data/count"),
    ("2^64+1 in a number", with_data(amount=2**64 + 1), R.INTEGER_OUT_OF_RANGE, "/data/amount"),
    ("-2^70 undeclared", with_data(other={"x": [-(2**70)]}), R.INTEGER_OUT_OF_RANGE, "/data/other/x/0"),
    ("10^300 in the context", envelope(context=10**300), R.INTEGER_OUT_OF_RANGE, "/context"),
    ("not an object", b"[1]", R.INVALID_ENVELOPE, ""),
    ("null", b"null", R.INVALID_ENVELOPE, ""),
    ("a string", b'"event"', R.INVALID_ENVELOPE, ""),
    ("no id", envelope(event_id=None), R.INVALID_ENVELOPE, "/event_id"),
    ("empty id", envelope(event_id=""), R.INVALID_ENVELOPE, "/event_id"),
    ("numeric id", envelope(event_id=1), R.INVALID_ENVELOPE, "/event_id"),
    ("long id", envelope(event_id="x" * 513), R.INVALID_ENVELOPE, "/event_id"),
    ("long id in bytes", envelope(event_id="é" * 257), R.INVALID_ENVELOPE, "/event_id"),
    ("no data", envelope(data=None), R.INVALID_ENVELOPE, "/data"),
    ("data is a list", envelope(data=[]), R.INVALID_ENVELOPE, "/data"),
    ("trace is a number", envelope(trace_id=5), R.INVALID_ENVELOPE, "/trace_id"),
    ("another tenant", envelope(tenant="umbrella"), R.WRONG_TENANT, "/tenant"),
    ("tenant is no string", envelope(tenant=[]), R.WRONG_TENANT, "/tenant"),
    ("empty tenant", envelope(tenant=""), R.WRONG_TENANT, "/tenant"),
    ("no dataset", envelope(dataset=None), R.MISSING_DATASET, "/dataset"),
    ("empty dataset", envelope(dataset=""), R.MISSING_DATASET, "/dataset"),
    ("dataset is a list", envelope(dataset=["orders"]), R.MISSING_DATASET, "/dataset"),
    ("unknown dataset", envelope(dataset="nope"), R.UNKNOWN_DATASET, "/dataset"),
    ("version never followed", envelope(schema_version=4), R.UNKNOWN_SCHEMA_VERSION, "/schema_version"),
    ("version is text", envelope(schema_version="3"), R.INVALID_ENVELOPE, "/schema_version"),
    ("version is a boolean", envelope(schema_version=True), R.INVALID_ENVELOPE, "/schema_version"),
    ("no timestamp", envelope(timestamp=None), R.INVALID_TIMESTAMP, "/timestamp"),
    ("epoch seconds", envelope(timestamp=1_700_000_000), R.INVALID_TIMESTAMP, "/timestamp"),
    ("no zone", envelope(timestamp="2026-11-19T10:00:00"), R.INVALID_TIMESTAMP, "/timestamp"),
    ("year 0", envelope(timestamp="0000-01-01T00:00:00Z"), R.TIMESTAMP_OUT_OF_RANGE, "/timestamp"),
    ("before 1", envelope(timestamp="0001-01-01T00:59:59+01:00"), R.TIMESTAMP_OUT_OF_RANGE, "/timestamp"),
    ("after 9999", envelope(timestamp="9999-12-31T23:00:00-01:00"), R.TIMESTAMP_OUT_OF_RANGE, "/timestamp"),
    ("required field", envelope(data={}), R.SCHEMA_VIOLATION, "/data"),
    ("wrong type", with_data(count="3"), R.SCHEMA_VIOLATION, "/data/count"),
    ("fraction for an integer", with_data(count=1.5), R.SCHEMA_VIOLATION, "/data/count"),
    ("boolean for an integer", with_data(count=True), R.SCHEMA_VIOLATION, "/data/count"),
    ("null where none may be", with_data(count=None), R.SCHEMA_VIOLATION, "/data/count"),
    ("inside a list", with_data(lines=[{}, {"n": "x"}]), R.SCHEMA_VIOLATION, "/data/lines/1/n"),
    ("pointer is escaped", with_data(**{"a/b~c": "x"}), R.SCHEMA_VIOLATION, "/data/a~1b~0c"),
    ("date-time that is none", with_data(signup_at="soon"), R.UNREPRESENTABLE, "/data/signup_at"),
    (
        "date-time without a place",
        with_data(signup_at="0001-01-01T00:00:00+01:00"),
        R.UNREPRESENTABLE,
        "/data/signup_at",
    ),
    ("date that is none", with_data(born="tomorrow"), R.UNREPRESENTABLE, "/data/born"),
    ("date with a time", with_data(born="2026-11-19T10:00:00Z"), R.UNREPRESENTABLE, "/data/born"),
    ("30 February", with_data(born="2026-02-30"), R.UNREPRESENTABLE, "/data/born"),
    ("basic date", with_data(born="20260201"), R.UNREPRESENTABLE, "/data/born"),
    ("date of one digit", with_data(born="2026-2-1"), R.UNREPRESENTABLE, "/data/born"),
    ("date in year 0", with_data(born="0000-02-01"), R.UNREPRESENTABLE, "/data/born"),
    ("integral float beyond 64 bits", spliced(b"1e19", "count"), R.UNREPRESENTABLE, "/data/count"),
    ("nested beyond 64 bits", with_data(lines=[{"n": 1e300}]), R.UNREPRESENTABLE, "/data/lines"),
]


@pytest.mark.parametrize(("payload", "reason", "pointer"), [pytest.param(*r[1:], id=r[0]) for r in REJECTED])
def test_bad_input_becomes_a_dead_letter(payload: bytes, reason: Reason, pointer: str | None) -> None:
    rejected = reject(payload).rejected
    assert (rejected.reason, rejected.pointer) == (reason, pointer)
    assert rejected.detail


def test_every_reason_that_conforming_can_give_is_tested() -> None:
    # test_ingest, test_judge_workers, test_poison
    elsewhere = {
        *(Reason.LANDING_FAILED, Reason.OVER_QUOTA, Reason.TOO_EXPENSIVE, Reason.PROCESSING_FAILED),
    }
    assert {reason for _, _, reason, _ in REJECTED} == set(Reason) - elsewhere


ACCEPTED = [
    ("as large as may be", envelope() + b" " * (MAX_BYTES - len(envelope()))),
    ("as deep as may be", spliced(b"[" * 62 + b"]" * 62)),
    ("brackets in strings are no depth", with_data(other='[{"' * 500)),
    ("many brackets side by side", with_data(other=[[] for _ in range(500)])),
    ("escaped backslash before u0000", spliced(rb'"\\u0000"')),
    ("two escaped backslashes before u0000", spliced(rb'"\\\\u0000"')),
    ("escaped backslash in a key", with_data(other={r"\u0000": r"\u0000"})),
    ("19 digits in a string", with_data(other="9" * 19)),
    ("19 digits after the point", spliced(b"0." + b"9" * 40)),
    ("19 digits before a point", spliced(b"9" * 30 + b".5")),
    ("19 digits and an exponent", spliced(b"9" * 30 + b"e3")),
    ("largest integer", with_data(count=2**63 - 1)),
    ("smallest integer", with_data(count=-(2**63))),
    ("own slug", envelope(tenant="acme")),
    ("own id", envelope(tenant=str(TENANT.tenant_id))),
    ("longest id", envelope(event_id="é" * 256)),
    ("surrogate pair", envelope().replace(b"DE", rb"\ud83d\ude00")),
    (
        "null for no tenant, context, trace",
        envelope()[:-1] + b',"tenant":null,"context":null,"trace_id":null}',
    ),
    ("first instant", envelope(timestamp="0001-01-01T00:00:00Z")),
    ("last instant", envelope(timestamp="9999-12-31T23:59:59.999999999Z")),
    ("keys that the envelope does not know", envelope(extra=1)),
]


@pytest.mark.parametrize("payload", [pytest.param(payload, id=name) for name, payload in ACCEPTED])
def test_odd_but_valid_input_lands(payload: bytes) -> None:
    accept(payload)


def test_a_dead_letter_keeps_the_identity_that_it_has() -> None:
    letter = reject(with_data(count="x"))
    assert (letter.dataset, letter.event_id) == ("orders", "e")
    letter = reject(envelope(dataset="nope\0", event_id=5))
    assert (letter.dataset, letter.event_id) == (None, None)
    assert reject(b"[1]").dataset is None


def test_a_first_reason_is_the_envelope_then_the_bytes_then_the_schema() -> None:
    assert reject(envelope(tenant="x", dataset="nope", event_id="")).rejected.reason is R.WRONG_TENANT
    assert reject(with_data(count="x", other="\0")).rejected.reason is R.NUL_CHARACTER
    assert reject(with_data(count="x", born="x")).rejected.reason is R.SCHEMA_VIOLATION
    assert reject(envelope(timestamp="x", data={"country": "", "born": "x"})).rejected.pointer == "/timestamp"
    assert reject(with_data(born="x", signup_at="x")).rejected.pointer == "/data/signup_at"


# Depth and the suspicion filter


def test_depth_is_counted_in_linear_time_whatever_the_bytes_are() -> None:
    """A string without an end must not make the counter start over at each of its quotes."""
    assert nesting(b"[" * 65 + b'"' + b'\\"' * 120_000) == 65
    assert nesting(b"[" * 65 + b'"' * 240_001) == 65
    assert nesting(b'"\\') == 0
    assert nesting(b"]]]{") <= 1


def test_depth_agrees_with_a_plain_walk() -> None:
    def walk(node: Any) -> int:
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else None
        return 0 if children is None else 1 + max(map(walk, children), default=0)

    chance = random.Random(4)  # noqa: S311
    for _ in range(300):
        value = _any_json(chance, 6)
        assert nesting(json.dumps(value).encode()) == walk(value)


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**19, -(10**18) * 10, 10**40])
def test_suspicion_never_misses_a_large_integer(number: int) -> None:
    for text in (b"%d", b"[%d]", b'{"a":1,"b":%d}', b" %d ", b"-0,%d"):
        assert suspicious(text % number)


# Timestamps: what the fast way takes, the slow way takes alike

TIMESTAMPS = [
    "2013-01-01T05:00:00Z",
    "2013-01-01T05:00:00.5Z",
    "2013-01-01T05:00:00.123456Z",
    "2013-01-01T05:00:00.123456789Z",
    "2013-01-01T05:00:00.999999999Z",
    "1969-12-31T23:59:59.999999999Z",
    "2013-01-01t05:00:00z",
    "2013-01-01 05:00:00Z",
    "2013-01-01T05:00:00+02:00",
    "2013-01-01T05:00:00-23:59",
    "2013-01-01T05:00:00-00:00",
    "2016-12-31T23:59:60Z",
    "2016-12-31T23:59:60+05:30",
    "2016-02-29T00:00:00Z",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00-01:00",
    "0099-06-01T00:00:00Z",
    "0900-06-01T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59+01:00",
]
NO_TIMESTAMPS = [
    "",
    "2013-01-01",
    "2013-01-01T05Z",
    "2013-01-01T05:00Z",
    "2013-01-01T05:00:00",
    "2013-01-01T05:00:00+0200",
    "2013-01-01T05:00:00+02",
    "2013-01-01T05:00:00+24:00",
    "2013-01-01T05:00:00+01:60",
    "2013-01-01T05:00:00.Z",
    "2013-01-01T05:00:00,5Z",
    "2013-01-01T05:00:00ZZ",
    "2013-01-01T05:00:00Z\n",
    " 2013-01-01T05:00:00Z",
    "2013-01-01T24:00:00Z",
    "2013-01-01T23:60:00Z",
    "2013-01-01T23:59:61Z",
    "2013-02-29T00:00:00Z",
    "2013-13-01T00:00:00Z",
    "2013-00-01T00:00:00Z",
    "2013-W01-1T00:00:00Z",
    "20130101T050000Z",
    "12013-01-01T05:00:00Z",
    "+2013-01-01T05:00:00Z",
    "\uff12\uff10\uff11\uff13-01-01T05:00:00Z",
    "now",
]
OUT_OF_RANGE = [
    "0000-01-01T00:00:00Z",
    "0000-12-31T23:59:59-01:00",
    "0001-01-01T00:00:00+00:01",
    "9999-12-31T23:59:59-00:01",
]


def _column(values: Sequence[Any]) -> tuple[list[Any], dict[int, Rejected]]:
    rejects: dict[int, Rejected] = {}
    return arrow_columns.timestamps(values, rejects, "/timestamp").to_pylist(), rejects


@pytest.mark.parametrize("text", [*TIMESTAMPS, *NO_TIMESTAMPS, *OUT_OF_RANGE])
def test_a_timestamp_means_the_same_alone_and_beside_one_that_takes_the_slow_way(text: str) -> None:
    alone, alone_rejects = _column([text])
    beside, beside_rejects = _column([text, "no timestamp", None])
    assert alone[0] == beside[0]
    assert alone_rejects.get(0) == beside_rejects.get(0)
    expected = parse_timestamp(text)
    if isinstance(expected, Rejected):
        out_of_range = text in OUT_OF_RANGE
        assert expected.reason is (R.TIMESTAMP_OUT_OF_RANGE if out_of_range else R.INVALID_TIMESTAMP)
        assert alone_rejects[0].reason is expected.reason
    else:
        assert text in TIMESTAMPS
        assert (alone[0], alone_rejects) == (expected, {})


@pytest.mark.parametrize(
    ("text", "of_event", "of_query"),
    [
        (
            "0001-01-01T00:00:00+23:59",
            "0001-01-01T00:00:00+23:59 is outside the years 1 to 9999 in UTC, all that tables hold: "
            "correct the sender",
            "'0001-01-01T00:00:00+23:59' is outside the years 1 to 9999 in UTC. Name a time within them",
        ),
        (
            "2026-11-19T10:00:00+24:00",
            "the zone offset +24:00 is not below 24 hours",
            "'2026-11-19T10:00:00+24:00' is not a time: the zone offset +24:00 is not below 24 hours. "
            "Write it like 2026-11-19T10:00:00Z",
        ),
        (
            "2026-13-01T00:00:00Z",
            "month must be in 1..12",
            "'2026-13-01T00:00:00Z' is not a time: month must be in 1..12. "
            "Write it like 2026-11-19T10:00:00Z",
        ),
        (
            "now",
            "not an RFC 3339 timestamp with a zone offset",
            "'now' is not a time: not an RFC 3339 timestamp with a zone offset. "
            "Write it like 2026-11-19T10:00:00Z",
        ),
        (
            {},
            "not an RFC 3339 timestamp with a zone offset",
            "'{}' is not a time: not an RFC 3339 timestamp with a zone offset. "
            "Write it like 2026-11-19T10:00:00Z",
        ),
    ],
)
def test_an_invalid_time_is_refused_for_senders_and_queries(
    text: object, of_event: str, of_query: str
) -> None:
    rejected = parse_timestamp(text)
    assert isinstance(rejected, Rejected)
    assert rejected.detail == of_event
    with pytest.raises(UserError) as refused:
        moment(text)
    assert str(refused.value) == of_query


def test_timestamps_are_utc_and_cut_to_microseconds() -> None:
    assert parse_timestamp("2013-01-01T05:00:00.1234569+02:00") == datetime(
        2013, 1, 1, 3, 0, 0, 123456, tzinfo=UTC
    )
    assert parse_timestamp("2016-12-31T23:59:60Z") == datetime(2016, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert parse_timestamp(5) == parse_timestamp(None) == parse_timestamp("x")


RECEIVED = datetime.fromtimestamp(1_700_000_000.123, UTC)
"""Of `messages`."""
DAY_AHEAD = RECEIVED + timedelta(days=1)


def _verdict(timestamp: str, limits: EventLimits) -> Rejected | None:
    """That of an event, which is the same alone and beside others, whatever these are."""
    other_payloads = [
        envelope(event_id=at, timestamp=at) for at in ("2013-01-01T00:00:00Z", "3000-01-01T00:00:00Z")
    ]
    verdicts = []
    for payloads in ([envelope(timestamp=timestamp)], [*other_payloads, envelope(timestamp=timestamp)]):
        letters = conformer(limits=limits).chunk(messages(payloads)).dead_letters
        verdicts.append(next((letter.rejected for letter in letters if letter.event_id == "e"), None))
    assert verdicts[0] == verdicts[1]
    return verdicts[0]


@pytest.mark.parametrize(
    ("timestamp", "accepted"),
    [
        ("1970-01-01T00:00:00Z", True),
        ("1969-12-31T23:59:59.999999Z", False),
        ("1970-01-01T00:00:00+00:01", False),
        (DAY_AHEAD.isoformat(), True),
        ((DAY_AHEAD + timedelta(microseconds=1)).isoformat(), False),
        ("9999-12-31T00:00:00Z", False),
        ("0001-01-01T00:00:00Z", False),
    ],
)
def test_by_default_an_event_is_of_1970_to_a_day_after_it_was_received(
    timestamp: str, accepted: bool
) -> None:
    rejected = _verdict(timestamp, event_limits())
    if accepted:
        assert rejected is None
        return
    assert rejected is not None
    assert (rejected.reason, rejected.pointer) == (R.TIMESTAMP_OUT_OF_RANGE, "/timestamp")
    moment = parse_timestamp(timestamp)
    assert isinstance(moment, datetime)
    value = moment.isoformat().replace("+00:00", "Z")
    accepted_range = f"from 1970-01-01T00:00:00Z to {DAY_AHEAD.isoformat().replace('+00:00', 'Z')}"
    assert f"{value} is outside the accepted range {accepted_range}" in rejected.detail
    assert "ingest.timestamp_ahead_seconds" in rejected.detail


def test_each_event_s_range_ends_after_its_own_receipt() -> None:
    limits = replace(UNLIMITED, ahead=timedelta(seconds=1))
    at = [0, 2_000, 999, 1_001]
    events = [
        Message(0, offset, ms, envelope(event_id=str(offset), timestamp="1970-01-01T00:00:02Z"))
        for offset, ms in enumerate(at)
    ]
    conformed = conformer(limits=limits).chunk(events)
    assert [letter.event_id for letter in conformed.dead_letters] == ["0", "2"]
    assert [row["id"] for row in rows(conformed)] == ["1", "3"]


def test_the_first_thing_that_is_wrong_with_an_event_is_its_reason() -> None:
    payloads = [envelope(timestamp="soon"), envelope(timestamp="3000-01-01T00:00:00Z", data={"country": 5})]
    letters = conformer(limits=event_limits()).chunk(messages(payloads)).dead_letters
    reasons = {letter.message.offset: letter.rejected.reason for letter in letters}
    assert reasons == {0: R.INVALID_TIMESTAMP, 1: R.SCHEMA_VIOLATION}


DATES = ["2013-01-01", "0001-01-01", "9999-12-31", "2016-02-29"]
NO_DATES = [
    "",
    "2013-02-29",
    "0000-01-01",
    "2013-1-1",
    "\uff12\uff10\uff11\uff13-01-01",
    "2013-01-01\n",
    "20130101",
]


@pytest.mark.parametrize("text", [*DATES, *NO_DATES])
def test_a_date_means_the_same_alone_and_beside_one_that_takes_the_slow_way(text: str) -> None:
    kind = declared(SCHEMA)[5].type
    one: dict[int, Rejected] = {}
    two: dict[int, Rejected] = {}
    alone = arrow_columns.array([text], kind, one, "/x").to_pylist()
    beside = arrow_columns.array([text, "no date", None], kind, two, "/x").to_pylist()
    assert (alone[0], one.get(0)) == (beside[0], two.get(0))
    assert beside[1:] == [None, None]
    assert alone == ([date.fromisoformat(text)] if text in DATES else [None])


# Rows


def test_a_row_has_the_physical_columns() -> None:
    payload = envelope(
        context={"ip": "::1", "n": [1]}, trace_id="t1", timestamp="2026-11-19T10:00:00.25+01:00"
    )
    row = accept(payload)
    assert row["id"] == "e"
    assert row["tenant_id"] == str(TENANT.tenant_id)
    assert row["dataset_id"] == str(UUID(int=8))
    assert row["timestamp"] == datetime(2026, 11, 19, 9, 0, 0, 250_000, tzinfo=UTC)
    assert row["ingested_at"] == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert row["context"] == '{"ip":"::1","n":[1]}'
    assert (row["trace_id"], row["schema_version"]) == ("t1", 3)
    assert (row["_batch"], row["_kafka_partition"], row["_offset"]) == ("batch", 1, 0)
    assert row["_extra"] is None


def test_declared_fields_are_typed() -> None:
    row = accept(
        with_data(
            amount=2,
            count=5.0,
            active=False,
            signup_at="2026-11-01T00:00:00+02:00",
            born="2001-02-03",
            address={"zip": "1", "geo": {"lat": 3}},
            lines=[{"sku": "a", "n": 2.0}, {}],
            tags=["x", None],
        )
    )
    assert (row["amount"], type(row["amount"])) == (2.0, float)
    assert (row["count"], type(row["count"])) == (5, int)
    assert row["active"] is False
    assert row["signup_at"] == datetime(2026, 10, 31, 22, tzinfo=UTC)
    assert row["born"] == date(2001, 2, 3)
    assert row["address"] == {"zip": "1", "geo": {"lat": 3.0}}
    assert row["lines"] == [{"sku": "a", "n": 2}, {"sku": None, "n": None}]
    assert row["tags"] == ["x", None]
    assert row["_extra"] is None


def test_absent_and_null_are_both_null_and_nothing_else_is() -> None:
    names = ("amount", "count", "active", "signup_at", "born", "either", "address", "lines", "tags")
    assert {accept(envelope())[name] for name in names} == {None}
    row = accept(with_data(signup_at=None, either=None, address=None, other=None))
    assert (row["signup_at"], row["either"], row["address"]) == (None, None, None)
    assert row["_extra"] == '{"other":null}', "an undeclared null is kept"
    row = accept(with_data(amount=0, active=False, either="", address={}, lines=[], tags=[]))
    assert (row["amount"], row["active"], row["either"]) == (0.0, False, '""')
    assert row["address"] == {"zip": None, "geo": None}
    assert (row["lines"], row["tags"]) == ([], [])


@pytest.mark.parametrize("number", [2**53 + 1, 2**60, 2**63 - 1, -(2**63), 1e300, 0.1, -0.0, 5e-324])
def test_a_number_is_the_nearest_double(number: float) -> None:
    assert accept(with_data(amount=number))["amount"] == float(number)
    both = conformer().chunk(messages([with_data(amount=number), with_data(amount=1.5)]))
    assert [row["amount"] for row in rows(both)] == [float(number), 1.5]


@pytest.mark.parametrize("number", [2**53 + 1, 2**63 - 1, -(2**63), 0, -0.0, 5.0, 1e3, -9.0e18])
def test_an_integer_is_exact(number: float) -> None:
    assert accept(with_data(count=number))["count"] == int(number)


def test_json_columns_hold_the_value_as_text() -> None:
    for value in ('a"b', 5, "é", 2**63 - 1):
        assert json.loads(accept(with_data(either=value))["either"]) == value


def test_undeclared_members_are_kept_in_the_extra_column() -> None:
    data = {
        "new": {"deep": [1, {"x": None}]},
        "address": {"zip": "1", "street": "s", "geo": {"lat": 1, "alt": 2}},
        "lines": [{"sku": "a"}, {"sku": "b", "colour": "red"}],
        "a/b~c": 3,
    }
    row = accept(with_data(**data))
    assert row["address"] == {"zip": "1", "geo": {"lat": 1.0}}
    assert row["lines"] == [{"sku": "a", "n": None}, {"sku": "b", "n": None}]
    assert json.loads(row["_extra"]) == {
        "new": {"deep": [1, {"x": None}]},
        "address": {"street": "s", "geo": {"alt": 2}},
        "lines": [{}, {"colour": "red"}],
        "a/b~c": 3,
    }


def test_a_field_that_is_named_like_a_physical_column_gets_a_prefix() -> None:
    properties = {name: {"type": "integer"} for name in ("id", "Timestamp", "_offset", "_extra", "tenant_id")}
    row = accept(
        envelope(data={"id": 1, "Timestamp": 2, "_offset": 3, "_extra": 4, "tenant_id": 5}),
        {"type": "object", "properties": properties},
    )
    assert (row["id"], row["_offset"], row["_extra"]) == ("e", 0, None)
    assert row["tenant_id"] == str(TENANT.tenant_id)
    fields = ("data_id", "data_Timestamp", "data__offset", "data__extra", "data_tenant_id")
    assert tuple(row[name] for name in fields) == (1, 2, 3, 4, 5)


def test_a_tuple_by_position_is_json_not_a_list_of_its_rest() -> None:
    """`items` types only what follows `prefixItems`: a typed list would cut 1.5 to 1."""
    pair = {"type": "array", "prefixItems": [{"type": "number"}], "items": {"type": "integer"}}
    row = accept(with_data(pair=[1.5, 2]), {"type": "object", "properties": {"pair": pair}})
    assert json.loads(row["pair"]) == [1.5, 2]


def test_datasets_of_one_topic_are_kept_apart_and_in_order() -> None:
    payloads = [envelope(event_id=str(n), dataset="free" if n % 2 else "orders") for n in range(6)]
    conformed = conformer().chunk(messages(payloads))
    assert [row["_offset"] for row in rows(conformed)] == [0, 2, 4]
    assert [row["_offset"] for row in rows(conformed, "free")] == [1, 3, 5]
    assert [json.loads(row["_extra"]) for row in rows(conformed, "free")] == [{"country": "DE"}] * 3


def test_days_are_utc_days_in_every_century() -> None:
    moments = {
        "0001-01-01T00:00:00Z": date(1, 1, 1),
        "1969-12-31T23:59:59.999999Z": date(1969, 12, 31),
        "1970-01-01T00:00:00+00:01": date(1969, 12, 31),
        "2026-11-19T23:30:00-01:00": date(2026, 11, 20),
        "9999-12-31T23:59:59Z": date(9999, 12, 31),
    }
    table = conformer().chunk(messages(envelope(timestamp=t) for t in moments)).tables["orders"]
    assert days(table).to_pylist() == list(moments.values())


def test_the_raw_line_is_one_line_and_the_same_event() -> None:
    event = {"event_id": "é\n\r\u2028", "data": {"x": ['a\\n"', 1.0, None]}}
    for payload in (
        json.dumps(event, indent=2).encode(),
        json.dumps(event, indent="\t", ensure_ascii=False).replace("\n", "\r\n").encode(),
        json.dumps(event).encode(),
    ):
        line = lines([Message(1, 2, 3, payload)])[0].as_py()
        assert line.endswith(b"}\n")
        assert line.splitlines(keepends=True) == [line]
        assert orjson.loads(line) == {"partition": 1, "offset": 2, "received_ms": 3, "event": event}
    compact = orjson.dumps(event)
    assert compact in lines([Message(1, 2, 3, compact)])[0].as_py(), (
        "what has no line breaks is kept to the byte"
    )


def test_rows_carry_their_own_raw_line() -> None:
    payloads = [with_data(count=1), with_data(born="x"), with_data(count=2)]
    received = messages(payloads)
    conformed = conformer().chunk(received)
    assert conformed.tables["orders"].column(LINE).to_pylist() == [
        *lines([received[0]]).to_pylist(),
        *lines([received[2]]).to_pylist(),
    ]
    assert [letter.message for letter in conformed.dead_letters] == [received[1]]


def test_a_chunk_of_nothing_but_dead_letters_has_no_table() -> None:
    conformed = conformer().chunk(messages([envelope(timestamp="x"), b"", with_data(born="x")]))
    assert conformed.tables == {}
    assert len(conformed.dead_letters) == 3
    assert conformer().chunk([]) == Conformed()


# Neighbours


def _any_json(chance: random.Random, depth: int) -> Any:
    leaves = (
        None,
        True,
        False,
        0,
        -1,
        5.0,
        1.5,
        2**53 + 1,
        2**63 - 1,
        2**63,
        1e19,
        1e300,
        "",
        "x",
        "é",
        "\0",
    )
    texts = (*TIMESTAMPS[:8], *OUT_OF_RANGE, "2013-01-01", "2013-1-1", "2013-02-30")
    roll = chance.random()
    if depth and roll < 0.15:
        return [_any_json(chance, depth - 1) for _ in range(chance.randrange(4))]
    if depth and roll < 0.3:
        names = ("zip", "geo", "lat", "sku", "n", "other")
        return {chance.choice(names): _any_json(chance, depth - 1) for _ in range(chance.randrange(4))}
    return chance.choice(leaves if roll < 0.8 else texts)


def _likely(chance: random.Random, name: str) -> Any:
    """A value that the field takes most of the time, in the forms that take different ways."""
    choices: dict[str, Sequence[Any]] = {
        "country": ("DE", "FR", ""),
        "amount": (1, 1.5, 2**53 + 1, -0.0, 2**63 - 1, 1e300),
        "count": (1, 5.0, 2**63 - 1, 1e19, -9e18, 0),
        "active": (True, False),
        "signup_at": (None, *TIMESTAMPS, *NO_TIMESTAMPS, *OUT_OF_RANGE),
        "born": ("2013-01-01", "2016-02-29", "2013-02-29", "0000-01-01", "2013-1-1"),
        "either": (None, "x", 1),
        "address": (None, {}, {"zip": "1"}, {"geo": {"lat": 2**53 + 1}}, {"geo": {"alt": 1}, "x": 1}),
        "lines": ([], [{}], [{"n": 5.0}, {"n": 1}], [{"n": 1e19}], [{"sku": "a", "x": 1}]),
        "tags": ([], ["a", None], ["é"]),
    }
    return chance.choice(choices[name])


def _any_event(chance: random.Random) -> bytes:
    names = list(SCHEMA["properties"])[:-1]
    data = {"country": "DE"}
    for name in chance.sample(names, chance.randrange(5)):
        data[name] = _likely(chance, name) if chance.random() < 0.9 else _any_json(chance, 3)
    if chance.random() < 0.2:
        data["other"] = _any_json(chance, 3)
    moment = chance.choice((*TIMESTAMPS, *TIMESTAMPS, *NO_TIMESTAMPS[:3], *OUT_OF_RANGE))
    payload = envelope(
        event_id=f"e{chance.randrange(10**6)}",
        timestamp=moment,
        data=data,
        dataset=chance.choice(("orders", "orders", "orders", "free", "nope")),
    )
    if chance.random() < 0.03:
        payload = payload[: chance.randrange(len(payload))]
    return payload


Verdict = tuple[str, Any]


def _verdicts(conformed: Conformed) -> dict[int, Verdict]:
    verdicts: dict[int, Verdict] = {}
    for slug, table in conformed.tables.items():
        table.validate(full=True)
        for row in table.to_pylist():
            verdicts[row["_offset"]] = (slug, repr(sorted(row.items())))
    for letter in conformed.dead_letters:
        assert letter.message.offset not in verdicts
        verdicts[letter.message.offset] = ("dead letter", letter)
    return verdicts


MISFITS = {
    "count": (1.5, True, "5", 1e300),
    "ratio": (True, "0.5"),
    "active": (1, "yes"),
    "name": (5, ["x"]),
    "born": (5, "tomorrow"),
    "seen": (5, "soon"),
    "place": ({"zip": 1.5}, {"zip": True}, "x", 5),
    "sizes": ([1, 2.5], ["x"], "12", {"0": 1}),
}
FITTING = {
    "count": 5.0,
    "ratio": 3,
    "active": True,
    "name": "x",
    "born": "2026-02-01",
    "seen": "2026-11-19T10:00:00Z",
    "place": {"zip": 7, "more": 1.5},
    "sizes": [1, None],
}
LATER = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "active": {"type": "boolean"},
        "name": {"type": "string"},
        "born": {"type": "string", "format": "date"},
        "seen": {"type": "string", "format": "date-time"},
        "place": {"type": "object", "properties": {"zip": {"type": "integer"}}},
        "sizes": {"type": "array", "items": {"type": ["integer", "null"]}},
    },
}


def test_a_column_declared_later_never_changes_a_value() -> None:
    """An event may name a version without a property: its column takes the value as it is, or not at all."""
    follows = replace(dataset(LATER), earlier=((1, '{"type": "object"}'),))
    wrong = [(name, value) for name, values in MISFITS.items() for value in values]
    events = [envelope(data={name: value}, schema_version=1) for name, value in wrong]
    conformed = TopicConformer(Scope(TENANT, (follows,)), "batch", LIMITS).chunk(
        messages([*events, envelope(data=FITTING, schema_version=1)])
    )
    reasons = [(letter.rejected.reason, letter.rejected.pointer) for letter in conformed.dead_letters]
    assert reasons == [(R.UNREPRESENTABLE, f"/data/{name}") for name, _ in wrong]
    (row,) = rows(conformed)
    assert (row["count"], row["ratio"], row["born"]) == (5, 3.0, date(2026, 2, 1))
    assert (row["place"], row["sizes"], row["_extra"]) == ({"zip": 7}, [1, None], '{"place":{"more":1.5}}')


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, random.SystemRandom().randrange(10**9)], ids=["1", "any"])
def test_a_verdict_never_depends_on_neighbours(seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)  # noqa: S311
    received = messages(_any_event(chance) for _ in range(700))
    judge = conformer()
    alone: dict[int, Verdict] = {}
    for message in received:
        alone |= _verdicts(judge.chunk([message]))
    assert sorted(alone) == list(range(len(received)))
    for size in (len(received), 7):
        chance.shuffle(received)
        together: dict[int, Verdict] = {}
        for start in range(0, len(received), size):
            together |= _verdicts(judge.chunk(received[start : start + size]))
        different = [offset for offset in alone if together[offset] != alone[offset]]
        assert not different, [(m.payload, alone[m.offset]) for m in received if m.offset in different][:3]
    kinds = {
        verdict if kind != "dead letter" else verdict.rejected.reason for kind, verdict in alone.values()
    }
    assert {R.UNREPRESENTABLE, R.SCHEMA_VIOLATION, R.TIMESTAMP_OUT_OF_RANGE} <= kinds


def test_the_columns_have_the_tables_types_and_field_ids() -> None:
    table = conformer().chunk(messages([with_data(count=1)])).tables["orders"].drop_columns([LINE])
    assert table.schema.equals(arrow_columns.arrow_schema(dataset(SCHEMA).table_schema), check_metadata=True)
    for field in table.schema:
        assert field.metadata[b"PARQUET:field_id"]
    struct = table.schema.field("address").type
    assert all(struct.field(index).metadata[b"PARQUET:field_id"] for index in range(struct.num_fields))
    assert table.schema.field("timestamp").type == pa.timestamp("us", "UTC")


def test_a_value_that_only_another_choice_declares_is_checked() -> None:
    """By the choice y anything is accepted as `a`; the column is the one that x declares."""
    choices = [
        {"type": "object", "required": ["kind"], "properties": {"kind": {"const": kind}} | declared}
        for kind, declared in (("x", {"a": {"type": "integer"}}), ("y", {"b": {"type": "string"}}))
    ]
    datas = [{"kind": "x", "a": 1}, {"kind": "y", "b": "s", "a": 2}, {"kind": "y", "a": 2.5}, {"kind": "y"}]
    conformed = conformer({"oneOf": choices}).chunk(messages([envelope(data=data) for data in datas]))
    landed = [(row["kind"], row["a"], row["b"], row["_extra"]) for row in rows(conformed)]
    assert landed == [("x", 1, None, None), ("y", 2, "s", None), ("y", None, None, None)]
    (letter,) = conformed.dead_letters
    assert (letter.rejected.reason, letter.rejected.pointer) == (Reason.UNREPRESENTABLE, "/data/a")


DIGITS = ["0.12345678901234567890", "1.10", "1E5", "-0.00", "3.14159265358979323846e-3", "90071992547409.935"]
HELD = ("1.10", "1E5", "-0.00")
"""Of these a double has the value, if not the text."""
AMOUNTS = {"type": "object", "properties": {"amount": {"type": "number"}, "country": {"type": "string"}}}


@pytest.mark.parametrize("digits", DIGITS)
def test_numbers_that_no_column_holds_keep_their_text(digits: str) -> None:
    text = digits.encode()
    assert accept(spliced(text))["_extra"] == f'{{"other":{digits}}}'
    anything = {"type": "object", "properties": {"either": {}, "country": {}}}
    assert accept(spliced(text, "either"), anything)["either"] == digits
    context = envelope(context="SPLICE").replace(b'"SPLICE"', b'{"a":%s}' % text)
    assert accept(context)["context"] == f'{{"a":{digits}}}'
    extra = accept(spliced(b'{"geo":{"lat":%s,"x":[%s]}}' % (text, text), "address"))["_extra"]
    assert f'"x":[{digits}]' in extra
    assert (f'"lat":{digits}' in extra) is (digits not in HELD)


@pytest.mark.parametrize("schema", [SCHEMA, AMOUNTS], ids=["validated", "decoded"])
@pytest.mark.parametrize("digits", [*DIGITS, "9007199254740993"])
def test_a_number_that_a_column_rounds_is_kept_beside_it(digits: str, schema: dict[str, Any]) -> None:
    row = accept(spliced(digits.encode(), "amount"), schema)
    assert row["amount"] == float(digits)
    assert row["_extra"] == (None if digits in HELD else f'{{"amount":{digits}}}')


def test_a_rounded_number_is_never_missed_among_others() -> None:
    plain, long = spliced(b"1.5", "amount"), spliced(b"0.12345678901234567890", "amount")
    for place in range(40):
        payloads = [plain] * 40
        payloads[place] = long[:-1] + b" " * (place % 4) + b"}"
        conformed = conformer(AMOUNTS).chunk(messages(payloads))
        assert [row["_extra"] is not None for row in rows(conformed)] == [
            index == place for index in range(40)
        ]


@pytest.mark.parametrize("number", [{}, {"type": "number"}], ids=["undeclared", "declared"])
def test_versions_that_differ_in_digits_have_other_hashes(number: dict[str, Any]) -> None:
    of = dataset({"type": "object", "properties": {"n": number}}, "things", DatasetKind.ENTITIES)
    head = b'{"event_id":"%d","dataset":"things","timestamp":"2026-11-19T10:00:00Z","data":{"n":%s}}'
    texts = [b"0.1234567890123456789", b"0.12345678901234567890", b"0.1234567890123456788"]
    texts += [b"0.12345678901234568", b"1.10", b"1.1", b"1e0", b"1"]
    payloads = [head % numbered for numbered in enumerate(texts)]
    table = TopicConformer(Scope(TENANT, (of,)), "batch", LIMITS).chunk(messages(payloads)).tables["things"]
    hashes = table.column("_hash").to_pylist()
    assert hashes[0] == hashes[1]
    assert len(set(hashes[:4])) == 3
    assert hashes[3] == entities.content_hash(b'{"n":0.12345678901234568}'), "as before"
    assert hashes[4] == hashes[5] == entities.content_hash(b'{"n":1.1}')
    assert hashes[6] == hashes[7] == entities.content_hash(b'{"n":1}')


@pytest.mark.parametrize("digits", DIGITS)
def test_an_event_is_made_again_with_its_digits(digits: str) -> None:
    of = dataset(SCHEMA)
    data = f'{{"country":"DE","other":{digits},"amount":{digits},"address":{{"geo":{{"lat":{digits}}}}}}}'
    payload = envelope(data="SPLICE").replace(b'"SPLICE"', data.encode())
    (row,) = rows(TopicConformer(Scope(TENANT, (of,)), "batch", LIMITS).chunk(messages([payload])))
    again = json_values.written(event_data(of, row, of.document))
    assert orjson.loads(again) == orjson.loads(data)
    assert again.decode().count(digits) == (1 if digits in HELD else 3)


PAGE = Path(__file__).parents[2] / "docs" / "column-types.md"
FORMATS = re.findall(
    r'^\| `("properties": .*)` \| `(.*)` \| (?:`(\w+)`|lands)', PAGE.read_text(), re.MULTILINE
)


def test_the_page_has_examples_of_formats() -> None:
    assert [reason for *_, reason in FORMATS] == ["", "unrepresentable", "schema_violation"]


@pytest.mark.parametrize(("declared", "sent", "reason"), FORMATS)
def test_formats_are_checked_as_documented(declared: str, sent: str, reason: str) -> None:
    schema = json.loads(f'{{"type": "object", {declared}}}')
    payload = envelope(data=json.loads(sent))
    if reason:
        assert reject(payload, schema).rejected.reason == reason
    else:
        assert accept(payload, schema)["order"] == json.loads(sent)["order"]


@pytest.mark.parametrize(
    ("at_fault", "fits"),
    [
        ("2018-04-25 20:42:10", "2018-04-25T20:42:10+02:00"),
        ("", "https://a.example/b"),
        ("a", "01234567-89ab-cdef-0123-456789abcdef"),
    ],
)
def test_the_documented_patterns_assert_formats(at_fault: str, fits: str) -> None:
    patterns = re.findall(r'^\| `"format": .* \| `("pattern": ".*")` \|$', PAGE.read_text(), re.MULTILINE)
    texts = {"2": patterns[0], "h": patterns[1], "0": patterns[2]}
    pattern = json.loads("{" + texts[fits[0]].replace("\\|", "|") + "}")
    schema = {"type": "object", "properties": {"of": {"properties": {"a": {"type": "string"} | pattern}}}}
    assert reject(envelope(data={"of": {"a": at_fault}}), schema).rejected.reason is R.SCHEMA_VIOLATION
    accept(envelope(data={"of": {"a": fits}}), schema)
