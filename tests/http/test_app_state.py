"""What a request may cost, in this process and without services: who asks is known before a body is read."""

import asyncio
import base64
import codecs
import gc
import gzip
import json
import tracemalloc
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import orjson
import pytest
import zstandard
from hypothesis import given, strategies as st
from starlette.types import ASGIApp, Message

from pulse_api.http.app import create_app
from pulse_api.http.collect import body as bodies, values
from pulse_api.http.collect.entities import as_events
from pulse_api.http.collect.split import CLOUDEVENT, CLOUDEVENTS, JSON, Item, split
from pulse_api.http.problems import ProblemError
from pulse_resources.settings.api_settings import ApiSettings


@dataclass
class Exchange:
    """A request as the server hands it to the app, and what came of it."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    chunks: Iterable[bytes] = ()
    read: int = 0
    """Chunks of the body that were asked for."""
    status: int = 0
    body: bytes = b""

    def run(self, app: ASGIApp) -> "Exchange":
        chunks = iter(self.chunks)

        async def receive() -> Message:
            self.read += 1
            chunk = next(chunks, None)
            return {"type": "http.request", "body": chunk or b"", "more_body": chunk is not None}

        async def send(message: Message) -> None:
            self.status = message.get("status", self.status)
            self.body += message.get("body", b"")

        scope = {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "headers": [(name.lower().encode(), value.encode()) for name, value in self.headers.items()],
            "query_string": b"",
        }
        asyncio.run(app(scope, receive, send))
        return self

    @property
    def kind(self) -> str:
        """Of the problem that it ended with."""
        return str(orjson.loads(self.body)["type"].rpartition(":")[2])


DOCUMENT = create_app().openapi()["paths"]
WITH_A_BODY = sorted(
    (method.upper(), path)
    for path, methods in DOCUMENT.items()
    for method, operation in methods.items()
    if "requestBody" in operation
)


@pytest.mark.parametrize(("method", "template"), WITH_A_BODY)
def test_without_a_key_no_byte_of_a_body_is_read(method: str, template: str) -> None:
    path = template.replace("{key_id}", "0" * 12).replace("{slug}", "orders").replace("{tenant}", "acme")
    headers = {"content-type": "application/json"}
    exchange = Exchange(method, path, headers, [b"["] * 3).run(create_app())
    assert (exchange.status, exchange.kind, exchange.read) == (401, "unauthorized", 0)


LIMITS = ApiSettings()
BODY = LIMITS.max_body_bytes


def events_of(body: bytes, media_type: str = JSON) -> list[Item]:
    limits = {
        "max_events": LIMITS.max_events,
        "max_values": LIMITS.max_values,
        "max_depth": 64,
        "max_bytes": 262_144,
    }
    return split(body, {"content-type": media_type}, **limits)


def filled(piece: bytes, start: bytes = b"[", end: bytes = b"0]") -> bytes:
    """As much of a piece as a body may hold."""
    return start + piece * ((BODY - len(start) - len(end)) // len(piece)) + end


MANY = {
    "empty lists": (filled(b"[],"), JSON),
    "as many as are decoded": (b"[" + b"[]," * (LIMITS.max_values // 2 - 9) + b"0]", JSON),
    "objects": (filled(b'{"a":1},'), JSON),
    "empty strings": (filled(b'"",'), JSON),
    "strings with escapes": (filled(b'"\\\\\\"","[",'), JSON),
    "numbers": (filled(b"1,"), JSON),
    "one event": (filled(b"[],", b'{"a":[', b"0]}"), JSON),
    "lines": (filled(b"{}\n", b"", b""), "application/x-ndjson"),
    "blank lines": (filled(b"\n", b"", b""), "application/x-ndjson"),
    "CloudEvents": (filled(b"[],"), CLOUDEVENTS),
    "hidden in base64": (
        b'{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"'
        + base64.b64encode(filled(b"[],")[: BODY // 2]) + b'"}',
        CLOUDEVENT,
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", MANY)
@pytest.mark.sample(4)
def test_a_body_of_too_many_objects_is_refused_before_decoding(name: str) -> None:
    body, media_type = MANY[name]
    gc.collect()
    tracemalloc.start()
    try:
        with pytest.raises(ProblemError) as refused:
            events_of(body, media_type)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.status == 413
    assert refused.value.fix
    assert peak < 16 * BODY, "the decoder alone reserves 13 bytes for one"


def test_marks_inside_strings_are_not_counted_as_values() -> None:
    """Commas, brackets, quotes and backslashes, also where one block of bytes ends and the next begins."""
    text = r",[{\"\\" * 5
    events = [{"event_id": str(n), "text": text * 30} for n in range(9_000)]
    body = orjson.dumps(events)
    assert body.count(b",") + body.count(b"[") + body.count(b"{") > 2 * LIMITS.max_values
    assert [item.event for item in events_of(body)] == events
    for shift in range(4):
        moved = b" " * shift + body
        assert values._outside_strings(moved, BODY) == 1 + 3 * len(events) - 1


TEXT = st.text(alphabet='a"\\[]{},: \n\u20ac', max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
SPACE = st.sampled_from(["", " ", "\n\t "])


@given(st.lists(st.tuples(SPACE, VALUES, SPACE), max_size=6), SPACE, st.integers(3, 40))
def test_elements_of_an_array_are_those_that_a_decoder_finds(
    spaced_values: list[tuple[str, Any, str]], around: str, block: int
) -> None:
    parts = (f"{before}{json.dumps(value)}{after}" for before, value, after in spaced_values)
    body = f"{around}[{','.join(parts)}]{around}".encode()
    with mock.patch.object(values, "_BLOCK", block):
        elements = values.elements(body, 10)
        assert elements is not None
        assert [json.loads(element) for element in elements] == [value for _, value, _ in spaced_values]


@given(st.text(alphabet='[]{},:"\\1 ', max_size=12))
def test_only_an_array_has_elements(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        expected = None
    if isinstance(expected, list):
        elements = values.elements(text.encode(), 20)
        assert elements is not None
        assert [json.loads(element) for element in elements] == expected
    else:
        elements = values.elements(text.encode(), 20)
        if elements is not None:
            with pytest.raises(json.JSONDecodeError):
                [json.loads(element) for element in elements]


def test_a_large_array_is_read_element_by_element() -> None:
    events = [{"event_id": str(n), "text": "x" * 1_000} for n in range(600)]
    assert [item.event for item in events_of(b" " + orjson.dumps(events) + b"\n")] == events
    large = b'{"event_id": "large", "text": "' + b"x" * 300_000 + b'"}'
    items = events_of(b"[" + orjson.dumps(events[0]) + b"," + large + b"]")
    assert [item.event for item in items] == [events[0], None]
    assert items[1].payload == large
    assert events_of(b" " * 300_000 + b"[{}, {1}]")[1] == Item(b"{1}"), "the validator refuses it"
    with pytest.raises(ProblemError, match="element 1 is empty"):
        events_of(b" " * 300_000 + b"[{}, ]")
    at_the_limit = b"{" + b" " * 262_142 + b"}"
    spaced = events_of(b"[  " + at_the_limit + b" ,\n" + at_the_limit + b" ]")
    assert [item.event for item in spaced] == [{}, {}], "what surrounds an event is none of its size"
    for odd in (b"\x0c", b"\x0b"):
        with pytest.raises(ProblemError, match="not JSON"):
            events_of(odd + b" " * 300_000 + b"[{}]" + odd)
    surplus = b"[{}, {}}, " + b"{" + b'"a":1,' * 50_000 + b'"b":2}]'
    with pytest.raises(ProblemError, match="not JSON"):
        events_of(surplus)
    for broken in (b"[{}", b"{}]", b"[{}][{}]", b"[{}]]"):
        with pytest.raises(ProblemError, match="not JSON"):
            events_of(broken + b" " * 300_000)
    assert events_of(b" " * 300_000 + b"[{}, 18446744073709551616]")[1].payload == b"18446744073709551616"


@pytest.mark.parametrize("digits", ["0.12345678901234567890", "1.10", "1E5"])
def test_numbers_keep_their_text_when_events_are_serialized_again(digits: str) -> None:
    one = f'{{"event_id":"a","data":{{"n":[{digits}]}}}}'
    cloud = '{"specversion":"1.0","id":"a","source":"s","type":"t"'
    hidden = base64.b64encode(f'{{"n":{digits}}}'.encode()).decode()
    items = [
        *events_of(f"[{one}, {one}]".encode()),
        *events_of(f"[{one}{' ' * 300_000}]".encode()),
        *events_of(f'{cloud},"data":{{"n":{digits}}}}}'.encode(), CLOUDEVENT),
        *events_of(f'[{cloud},"data_base64":"{hidden}"}}]'.encode(), CLOUDEVENTS),
        *as_events(events_of(f'{{"_id":"a","n":{digits}}}'.encode()), "things", max_bytes=999, max_depth=9),
        *as_events(events_of(f'[{{"_id":"a","n":{digits}}}]'.encode()), "things", max_bytes=999, max_depth=9),
    ]
    assert len(items) == 7
    assert all(digits.encode() in item.payload and item.event is None for item in items)


@pytest.mark.parametrize("ending", [b"", b"[" * 9])
def test_a_string_without_an_end_is_for_the_decoder_to_refuse(ending: bytes) -> None:
    with pytest.raises(ProblemError) as refused:
        events_of(b'["' + b"," * (2 * LIMITS.max_values) + ending)
    assert refused.value.status == 400


def test_the_number_of_members_of_a_gzip_body_is_bounded() -> None:
    empty = gzip.compress(b"")
    with pytest.raises(ProblemError) as refused:
        bodies.decompress(empty * (4 * 1024 * 1024 // len(empty)), "gzip", LIMITS)
    assert (refused.value.status, "members" in refused.value.detail) == (413, True)
    lines = [b'{"event_id":"%d"}\n' % number for number in range(LIMITS.max_events)]
    assert bodies.decompress(b"".join(map(gzip.compress, lines)), "gzip", LIMITS) == b"".join(lines)
    stored = gzip.compress(b"\0" * 100_000, compresslevel=0)
    assert bodies.decompress(stored * 3, "gzip", LIMITS) == b"\0" * 300_000


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_body_is_not_decompressed_beyond_a_plausible_ratio(encoding: str) -> None:
    compress = gzip.compress if encoding == "gzip" else zstandard.compress
    with pytest.raises(ProblemError) as refused:
        bodies.decompress(compress(b" " * (BODY - 1)), encoding, LIMITS)
    assert (refused.value.status, "compressed" in refused.value.detail) == (413, True)
    same = orjson.dumps({"event_id": "1", "dataset": "orders", "data": {"country": "DE"}}) * 10_000
    assert bodies.decompress(compress(same), encoding, LIMITS) == same


@pytest.mark.parametrize("media_type", [JSON, "application/x-ndjson"])
def test_a_byte_order_mark_is_not_part_of_the_first_event(media_type: str) -> None:
    assert [item.payload for item in events_of(codecs.BOM_UTF8 + b'{"a": 1}', media_type)] == [b'{"a": 1}']
