"""POST /v1/collect: what is accepted lands, what is refused is said, and nothing is in between."""

import asyncio
import base64
import ctypes
import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import httpx
import orjson
import pytest
import zstandard
from support.entities import SLUG, make_entities
from support.here import ingest_here as ingest
from support.http import Api, Caller, sample, served
from support.ingest import Owner
from support.pauses import paused

from chaos.surroundings import TLS
from chaos.waiting import PATIENCE_S
from pulse_api.http.collect import publisher
from pulse_api.http.collect.publisher import Outgoing
from pulse_api.http.collect.running import SHORT_BYTES
from pulse_api.http.process_metrics import IN_FLIGHT
from pulse_client.encoding import cloudevent_id
from pulse_pipelines import registry
from pulse_pipelines.domain.dataset import OnInvalid
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.registry import quotas
from pulse_resources import kafka
from pulse_resources.settings import load_settings


def waiting(owner: Owner) -> int:
    """Events on the tenant's topic."""
    partitions = [(owner.tenant.topic, p) for p in range(load_settings().kafka.partitions_per_topic)]
    return sum(int(end) for end in kafka.offsets(partitions, "latest").values())


def counts(answer: httpx.Response) -> tuple[int, int, int]:
    body = answer.json()
    return body["accepted"], body["dead_lettered"], body["refused"]


def test_one_event_is_accepted_and_lands(caller: Caller) -> None:
    answer = caller.collect(sample("o-1", amount=12.5))
    assert answer.status_code == 202
    assert counts(answer) == (1, 0, 0)
    assert caller.collect(sample("o-1", amount=12.5)).status_code == 202, "sent again"
    ingest(caller.owner)
    (row,) = caller.owner.rows()
    assert (row["id"], row["amount"], row["country"]) == ("o-1", 12.5, "DE")
    assert reconcile_tenant(caller.owner.tenant).balanced


LINES = b"\n".join(json.dumps(sample(f"n-{n}")).encode() for n in range(3))
ARRAY = json.dumps([sample(f"a-{n}") for n in range(3)]).encode()


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (ARRAY, {}),
        (LINES, {"content-type": "application/x-ndjson"}),
        (LINES + b"\r\n\n", {"content-type": "application/jsonl; charset=utf-8"}),
        (gzip.compress(ARRAY), {"content-encoding": "gzip"}),
        (gzip.compress(ARRAY[:50]) + gzip.compress(ARRAY[50:]), {"content-encoding": "gzip"}),
        (zstandard.compress(ARRAY), {"content-encoding": "zstd"}),
        (gzip.compress(LINES), {"content-encoding": "gzip", "content-type": "application/x-ndjson"}),
    ],
    ids=["array", "lines", "lines with blanks", "gzip", "gzip in members", "zstd", "lines in gzip"],
)
def test_many_events_in_one_request(caller: Caller, body: bytes, headers: dict[str, str]) -> None:
    answer = caller.collect(body, **headers)
    assert answer.status_code == 202, answer.text
    assert counts(answer) == (3, 0, 0)
    assert waiting(caller.owner) == 3


def test_a_refused_event_does_not_keep_the_others_out(caller: Caller) -> None:
    bad = sample("bad") | {"data": {"country": 7}}
    answer = caller.collect([sample("a"), bad, sample("b"), {"dataset": "nope"}])
    assert answer.status_code == 207
    assert counts(answer) == (2, 0, 2)
    first, second = answer.json()["verdicts"]
    assert (first["index"], first["event_id"], first["status"]) == (1, "bad", "refused")
    assert (first["reason"], first["pointer"]) == ("schema_violation", "/data/country")
    assert (second["index"], second["reason"]) == (3, "unknown_dataset")
    assert waiting(caller.owner) == 2


def many() -> list[dict[str, Any]]:
    """More than is judged in the event loop, and than an array may have that is decoded at once."""
    events = [sample(f"{n:05}") | {"context": "x" * 200} for n in range(1_500)]
    for n in range(0, 1_500, 300):
        events[n] |= {"data": {"country": 7}}
    return events


@pytest.mark.parametrize("form", ["array", "lines", "gzip", "short gzip", "cloudevents"])
def test_a_large_request_is_judged_aside_as_a_small_one_is_here(caller: Caller, form: str) -> None:
    events = many()[: 150 if form == "short gzip" else None]
    array, lines = orjson.dumps(events), b"\n".join(map(orjson.dumps, events))
    cloudy = [
        cloud(id=event["event_id"], dataset="orders", data=event["data"], more=event["context"])
        for event in events
    ]
    body, headers = {
        "array": (array, {}),
        "lines": (lines, {"content-type": "application/x-ndjson"}),
        "gzip": (gzip.compress(array, 0), {"content-encoding": "gzip"}),
        "short gzip": (gzip.compress(array), {"content-encoding": "gzip"}),
        "cloudevents": (orjson.dumps(cloudy), {"content-type": "application/cloudevents-batch+json"}),
    }[form]
    assert (len(body) > SHORT_BYTES) == (form != "short gzip")
    answer = caller.collect(body, **headers)
    bad = list(range(0, len(events), 300))
    assert answer.status_code == 207, answer.text
    assert counts(answer) == (len(events) - len(bad), 0, len(bad))
    assert [verdict["index"] for verdict in answer.json()["verdicts"]] == bad
    assert {verdict["pointer"] for verdict in answer.json()["verdicts"]} == {"/data/country"}
    assert waiting(caller.owner) == len(events) - len(bad)


def test_a_large_request_is_refused_as_a_small_one(caller: Caller) -> None:
    broken = orjson.dumps(many())[:-1]
    assert caller.collect(broken).json()["type"] == "urn:pulse:problem:malformed"
    quotas.set_limits(caller.owner.tenant, events_per_second=10)
    assert _soon(lambda: caller.collect(many()).status_code == 429)
    answer = caller.collect(many())
    assert (answer.status_code, answer.json()["type"]) == (429, "urn:pulse:problem:rate-exceeded")


def test_the_decompressed_size_of_a_large_request_counts_as_held(caller: Caller) -> None:
    array = orjson.dumps(many())
    body = gzip.compress(array)
    assert SHORT_BYTES / 8 < len(body) < 100_000 < len(array)
    with served_with(max_held_bytes_per_tenant=100_000) as small, small.client(caller.key.text) as client:
        answer = client.post("/v1/collect", content=body, headers={"content-encoding": "gzip"})
    assert (answer.status_code, answer.json()["type"]) == (429, "urn:pulse:problem:busy")
    assert waiting(caller.owner) == 0


def test_a_request_without_accepted_events_is_answered_with_a_problem(caller: Caller) -> None:
    answer = caller.collect([{"dataset": "orders"}])
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["verdicts"][0]["reason"] == "invalid_envelope"
    assert waiting(caller.owner) == 0


def test_a_dataset_may_take_invalid_events_as_dead_letters(caller: Caller) -> None:
    tenant = caller.owner.tenant
    registry.create_dataset(
        tenant, "lenient", f"pulse://{tenant.slug}/orders/1", on_invalid=OnInvalid.DEAD_LETTER
    )
    payload = b'{"event_id": "x",  "dataset":"lenient","timestamp":"2026-11-19T10:00:00Z","data":{}}'
    answer = caller.collect(payload)
    assert answer.status_code == 202
    assert counts(answer) == (0, 1, 0)
    foreign = json.loads(payload) | {"tenant": "somebody_else"}
    assert caller.collect(foreign).status_code == 422, "what names another tenant is never taken"
    ingest(caller.owner)
    (letter,) = caller.owner.dead_letters()
    assert (letter["reason"], letter["payload"]) == ("schema_violation", payload)


DATED = {"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}}}


def test_a_value_that_no_column_can_hold_is_not_accepted(caller: Caller) -> None:
    tenant = caller.owner.tenant
    uri = registry.publish_schema(tenant, "dated", json.dumps(DATED)).schema_uri
    registry.create_dataset(tenant, "dated", uri)
    registry.create_dataset(tenant, "lenient", uri, on_invalid=OnInvalid.DEAD_LETTER)
    german = {"event_id": "x", "timestamp": "2026-11-19T10:00:00Z", "data": {"at": "19.11.2026"}}
    answer = caller.collect([german | {"dataset": "dated"}, german | {"dataset": "lenient"}])
    assert (answer.status_code, counts(answer)) == (207, (0, 1, 1))
    verdicts = [(verdict["status"], verdict["reason"]) for verdict in answer.json()["verdicts"]]
    assert verdicts == [("refused", "unrepresentable"), ("dead_lettered", "unrepresentable")]
    ingest(caller.owner)
    (letter,) = caller.owner.dead_letters()
    assert (letter["reason"], letter["pointer"]) == ("unrepresentable", "/data/at")
    assert reconcile_tenant(tenant).balanced


DEAR = {"type": "object", "properties": {"a": {"items": {"not": {"enum": [n + 0.5 for n in range(11)]}}}}}
"""Numbers with large exponents are compared with its floats for microseconds each."""


def test_on_invalid_of_the_dataset_decides_on_an_event_that_costs_too_much(caller: Caller) -> None:
    tenant = caller.owner.tenant
    uri = registry.publish_schema(tenant, "dear", json.dumps(DEAR)).schema_uri
    registry.create_dataset(tenant, "dear", uri)
    registry.create_dataset(tenant, "lenient", uri, on_invalid=OnInvalid.DEAD_LETTER)
    dear = {"event_id": "x", "timestamp": "2026-11-19T10:00:00Z", "data": {"a": [1e-300] * 30_000}}
    events = [sample("o-1"), dear | {"dataset": "dear"}, dear | {"dataset": "lenient"}, sample("o-2")]
    answer = caller.collect(events)
    assert (answer.status_code, counts(answer)) == (207, (2, 1, 1))
    verdicts = [(verdict["status"], verdict["reason"]) for verdict in answer.json()["verdicts"]]
    assert verdicts == [("refused", "too_expensive"), ("dead_lettered", "too_expensive")]
    ingest(caller.owner)
    (letter,) = caller.owner.dead_letters()
    assert (letter["reason"], letter["pointer"], letter["dataset"]) == ("too_expensive", "/data", "lenient")
    assert {row["id"] for row in caller.owner.rows()} == {"o-1", "o-2"}
    assert reconcile_tenant(tenant).balanced


def test_a_schema_by_which_events_could_cost_too_much_is_refused(caller: Caller) -> None:
    dear = {"type": "object", "properties": {"a": {"items": {"enum": [n + 0.5 for n in range(100)]}}}}
    answer = caller.http.post("/v1/schemas", json={"name": "dear", "schema": dear})
    assert answer.status_code == 422
    assert "#/properties/a/items/enum costs most" in answer.json()["detail"]


def test_a_new_dataset_and_a_new_version_need_no_restart(caller: Caller) -> None:
    event = sample() | {"dataset": "fresh"}
    assert caller.collect(event).status_code == 422
    body = {"slug": "fresh", "schema_uri": f"pulse://{caller.owner.tenant.slug}/orders/1"}
    assert caller.http.post("/v1/datasets", json=body).status_code == 201
    assert _soon(lambda: caller.collect(event).status_code == 202)


def _soon(holds: Callable[[], bool]) -> bool:
    """Whether it holds in the end: announcements take a moment."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


NESTED = b'{"a":' * 2_000 + b"1" + b"}" * 2_000
TRAPS: dict[str, tuple[bytes, int, str]] = {
    # body: status, and a reason or the kind of the problem
    "not JSON": (b"{", 400, "malformed"),
    "empty": (b"", 400, "malformed"),
    "an empty array": (b"[]", 400, "malformed"),
    "NaN": (b'{"data":NaN}', 400, "malformed"),
    "Infinity": (b'{"data":-Infinity}', 400, "malformed"),
    "one element is not JSON": (b'[{"data":-Infinity}]', 422, "undecodable"),
    "a comma at the end": (b'[{"data":1},]', 400, "malformed"),
    "a bracket too many": (b'[{"data":1}]]', 400, "malformed"),
    "invalid UTF-8": (b'{"event_id":"\xff"}', 400, "malformed"),
    "lone surrogate": (b'{"event_id":"\\ud800"}', 400, "malformed"),
    "beyond every float": (b'{"data":1e999}', 400, "malformed"),
    "deep array": (b"[" * 50_000 + b"]" * 50_000, 422, "too_deep"),
    "deep object": (NESTED, 422, "too_deep"),
    "not an object": (b'"event"', 422, "invalid_envelope"),
    "byte order mark": (b"\xef\xbb\xbf{}", 422, "missing_dataset"),
    "two byte order marks": (b"\xef\xbb\xbf" * 2 + b"{}", 400, "malformed"),
    "two documents": (b"{}{}", 400, "malformed"),
}


@pytest.mark.parametrize("name", TRAPS)
def test_json_traps(caller: Caller, name: str) -> None:
    body, status, kind = TRAPS[name]
    answer = caller.collect(body)
    assert answer.status_code == status, answer.text
    document = answer.json()
    actual = document["verdicts"][0]["reason"] if status == 422 else document["type"].rpartition(":")[2]
    assert actual == kind
    assert waiting(caller.owner) == 0


def with_data(text: str) -> bytes:
    return json.dumps(sample()).encode().replace(b'{"country": "DE"}', text.encode())


def nested(levels: int) -> str:
    return '{"country":"DE","x":' + "[" * levels + "]" * levels + "}"


EVENT_TRAPS = {
    "NUL": ('{"country":"D\\u0000E"}', "nul_character"),
    "NUL in a key": ('{"country":"DE","a\\u0000":1}', "nul_character"),
    "2^64": ('{"country":"DE","count":18446744073709551616}', "integer_out_of_range"),
    "huge integer": ('{"country":"DE","x":' + "9" * 300 + "}", "integer_out_of_range"),
    "deep": (nested(100), "too_deep"),
    "deeper than orjson writes": (nested(300), "too_deep"),
    "deeper than Python recurses": (nested(1_000), "too_deep"),
    "deeper than orjson reads": (nested(2_000), "too_deep"),
    "deep, with many digits": (nested(100).replace("DE", "9" * 30), "too_deep"),
    "1 MB key": ('{"country":"DE","' + "k" * 1_000_000 + '":1}', "oversize"),
}
NOT_JSON = {
    "NaN": b'{"country":"DE","x":NaN}',
    "1e400": b'{"country":"DE","x":1e400}',
    "lone surrogate": b'{"country":"\\ud800"}',
    "lone surrogate in a key": b'{"country":"DE","\\udc00":1}',
    "no UTF-8": b'{"country":"D\xff"}',
    "surrogate as UTF-8": b'{"country":"\xed\xa0\x80"}',
    "raw control character": b'{"country":"D\tE"}',
    "single quotes": b"{'country':'DE'}",
    "comma at the end": b'{"country":"DE",}',
    "5,000 digits": b'{"country":"DE","x":' + b"9" * 5_000 + b"}",
}


MIXED = ("array", "large array", "line", "cloudevents", "entities", "lines of entities")
"""Requests of which one event has a trap, between two that have none."""


def in_shape(shape: str, data: bytes) -> tuple[str, bytes, dict[str, str]]:
    """Path, body and headers of a request with an event of these data."""
    headers, path, form = {"content-type": "application/json"}, "/v1/collect", sample()
    if shape.startswith("cloudevent"):
        kind = "cloudevents-batch" if shape == "cloudevents" else "cloudevents"
        headers, form = {"content-type": f"application/{kind}+json"}, cloud()
    if "entities" in shape:
        path, form = f"/v1/datasets/{SLUG}/entities", {"_id": "e", "data": {"country": "DE"}}
    good = json.dumps(form).encode()
    bad = good.replace(b'{"country": "DE"}', data)
    if shape.startswith("line"):
        return path, good + b"\n" + bad + b"\n" + good, {"content-type": "application/x-ndjson"}
    if shape not in MIXED:
        return path, bad, headers
    space = b" " * 300_000 if shape == "large array" else b""
    return path, b"[" + good + b"," + bad + b"," + space + good + b"]", headers


@pytest.mark.parametrize("shape", ["one", "cloudevent", *MIXED])
def test_an_event_with_a_trap_is_refused_in_every_shape(caller: Caller, shape: str) -> None:
    if "entities" in shape:
        make_entities(caller.owner)
    mixed = shape in MIXED
    for name, (text, reason) in EVENT_TRAPS.items():
        path, body, headers = in_shape(shape, text.encode())
        answer = caller.http.post(path, content=body, headers=headers)
        assert answer.status_code == (207 if mixed else 422), (name, answer.text[:500])
        (verdict,) = answer.json()["verdicts"]
        assert (verdict["index"], verdict["reason"]) == (1 if mixed else 0, reason), name
    assert waiting(caller.owner) == (2 * len(EVENT_TRAPS) if mixed else 0)


@pytest.mark.parametrize("shape", MIXED)
def test_only_the_event_that_is_not_json_is_refused(caller: Caller, shape: str) -> None:
    if "entities" in shape:
        make_entities(caller.owner)
    for name, data in NOT_JSON.items():
        path, body, headers = in_shape(shape, data)
        answer = caller.http.post(path, content=body, headers=headers)
        assert (answer.status_code, counts(answer)) == (207, (2, 0, 1)), (name, answer.text[:500])
        (verdict,) = answer.json()["verdicts"]
        assert (verdict["index"], verdict["reason"]) == (1, "undecodable"), name
    assert waiting(caller.owner) == 2 * len(NOT_JSON)


def test_only_invalid_cloudevents_of_a_batch_are_refused(caller: Caller) -> None:
    hidden = {
        "no base64": "\xe9",
        "no JSON": base64.b64encode(b"{").decode(),
        "too deep": base64.b64encode(nested(1_010).replace("DE", "9" * 30).encode()).decode(),
        "too many": base64.b64encode(b"[" + b"[]," * load_settings().api.max_values + b"0]").decode(),
    }
    odd = [
        *([7], "text", {}, cloud(specversion="0.3"), cloud(id=""), cloud(source=None), cloud(type=7)),
        *(cloud(id=name, data=None, data_base64=text) for name, text in hidden.items()),
    ]
    headers = {"content_type": "application/cloudevents-batch+json"}
    answer = caller.collect(json.dumps([cloud(), *odd, cloud(id="last")]).encode(), **headers)
    assert (answer.status_code, counts(answer)) == (207, (2, 0, len(odd))), answer.text[:500]
    reasons = {verdict["index"]: verdict["reason"] for verdict in answer.json()["verdicts"]}
    expected = ["invalid_envelope"] * (len(odd) - 2) + ["too_deep", "oversize"]
    assert reasons == dict(enumerate(expected, 1))
    named = {verdict["event_id"] for verdict in answer.json()["verdicts"]}
    assert named == {None, "/shop#c-1", "/shop#no base64", "/shop#no JSON"}


@pytest.mark.parametrize("shape", ["array", "cloudevent", "base64"])
def test_an_event_that_is_too_deep_is_refused(caller: Caller, shape: str) -> None:
    body, headers = b"[" + with_data(nested(1_010)) + b"]", {}
    if shape != "array":
        body = json.dumps(cloud()).encode().replace(b'{"country": "DE"}', nested(1_010).encode())
        headers = {"content-type": "application/cloudevents+json"}
    if shape == "base64":
        suspicious = nested(1_010).replace("DE", "9" * 30)
        body = json.dumps(
            cloud(data=None, data_base64=base64.b64encode(suspicious.encode()).decode())
        ).encode()
    answer = caller.collect(body, **headers)
    assert answer.status_code == 422, answer.text[:500]
    assert [verdict["reason"] for verdict in answer.json()["verdicts"]] == ["too_deep"]
    assert waiting(caller.owner) == 0


def test_the_last_of_two_equal_keys_counts(caller: Caller) -> None:
    """At the door as in the table: both decode with the same rule."""
    assert caller.collect(with_data('{"country":7,"country":"FR"}')).status_code == 202
    assert caller.collect(with_data('{"country":"FR","country":7}')).status_code == 422
    ingest(caller.owner)
    assert [row["country"] for row in caller.owner.rows()] == ["FR"]


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_is_stopped_at_the_limit(caller: Caller, encoding: str) -> None:
    content = b" " * (load_settings().api.max_body_bytes + 1)
    packed = gzip.compress(content) if encoding == "gzip" else zstandard.compress(content)
    assert len(packed) < 20_000
    answer = caller.collect(packed, content_encoding=encoding)
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:pulse:problem:too-large")


def wide() -> bytes:
    """Compressed so that a decoder must be ready to keep 64 MiB."""
    parameters = zstandard.ZstdCompressionParameters(window_log=26)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return writer.compress(ARRAY) + writer.flush()


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (b"no gzip", "gzip", 400),
        (gzip.compress(ARRAY)[:-9], "gzip", 400),
        (gzip.compress(ARRAY) + b"more", "gzip", 400),
        (zstandard.compress(ARRAY)[:-9], "zstd", 400),
        (b"no zstd", "zstd", 400),
        (wide(), "zstd", 400),
        (ARRAY, "br", 415),
        (ARRAY, "gzip, gzip", 415),
    ],
)
def test_a_broken_encoding_is_named(caller: Caller, body: bytes, encoding: str, status: int) -> None:
    answer = caller.collect(body, content_encoding=encoding)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


def in_blocks(*, ended: bool = True) -> bytes:
    """Lines of whole events, each flushed by the compressor; without its end every block is still whole."""
    writer = zstandard.ZstdCompressor().compressobj()
    lines = [orjson.dumps(sample()) + b"\n" for _ in range(3)]
    blocks = [writer.compress(line) + writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for line in lines]
    return b"".join(blocks) + (writer.flush() if ended else b"")


@pytest.mark.parametrize(
    "body",
    [
        in_blocks(ended=False),
        in_blocks() + in_blocks(ended=False),
        zstandard.ZstdCompressor(write_checksum=True).compress(orjson.dumps(sample()) + b"\n")[:-4],
    ],
    ids=["between two blocks", "in the second frame", "before the checksum"],
)
def test_a_body_without_its_end_is_refused_whole(caller: Caller, body: bytes) -> None:
    lines = {"content_encoding": "zstd", "content_type": "application/x-ndjson"}
    assert caller.collect(in_blocks() + in_blocks(), **lines).json()["accepted"] == 6
    answer = caller.collect(body, **lines)
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:pulse:problem:malformed")
    assert (
        "it ends too early" in answer.json()["detail"] or "zstd decompress error" in answer.json()["detail"]
    )


def test_a_body_beyond_the_limit_is_not_read(caller: Caller) -> None:
    answer = caller.collect(b" " * (load_settings().api.max_body_bytes + 1))
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:pulse:problem:too-large")
    many = [sample()] * (load_settings().api.max_events + 1)
    assert caller.collect(many).status_code == 413


def test_another_media_type_is_not_taken(caller: Caller) -> None:
    assert caller.collect(b"a=b", content_type="application/x-www-form-urlencoded").status_code == 415


@pytest.mark.parametrize("form", ["application/json", "application/x-ndjson", "application/cloudevents+json"])
def test_another_charset_is_not_taken(caller: Caller, form: str) -> None:
    for charset in ("iso-8859-1", '"UTF-16"', "windows-1252"):
        answer = caller.collect(b"{}", content_type=f"{form}; charset={charset}")
        assert (answer.status_code, answer.json()["title"]) == (415, "Unsupported media type")
        assert f"the charset '{charset.strip(chr(34)).lower()}' is not" in answer.json()["detail"]
    other = {"content-type": f"{form}; charset=latin1"}
    assert caller.http.post("/v1/datasets", content=b"{}", headers=other).status_code == 415


def test_data_of_a_cloudevent_in_another_charset_are_not_taken(caller: Caller) -> None:
    packed = cloud(data_base64=base64.b64encode(b'{"country": "DE"}').decode())
    del packed["data"]
    for charset, status in (("latin1", 400), ("utf-8", 202)):
        body = json.dumps(packed | {"datacontenttype": f"application/json; charset={charset}"}).encode()
        answer = caller.collect(body, content_type="application/cloudevents+json")
        assert answer.status_code == status, answer.text


def cloud(**changes: Any) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": "c-1",
        "source": "/shop",
        "type": "com.example.orders",
        "time": "2026-11-19T10:00:00Z",
        "datacontenttype": "application/json",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "subject": "cart",
        "data": {"country": "DE"},
    } | changes


def test_cloudevents_land_in_every_mode(caller: Caller) -> None:
    structured = caller.collect(
        json.dumps(cloud(id="s")).encode(), content_type="application/cloudevents+json; charset=utf-8"
    )
    packed = cloud(id="p", data_base64=base64.b64encode(b'{"country": "DE"}').decode())
    del packed["data"]
    batch = [cloud(id="b", type="anything", dataset="orders"), packed]
    batched = caller.collect(json.dumps(batch).encode(), content_type="application/cloudevents-batch+json")
    attributes = {
        f"ce-{name}": str(value)
        for name, value in cloud(id="h", subject="caf%C3%A9").items()
        if name not in ("data", "datacontenttype")
    }
    binary = caller.http.post("/v1/collect", json={"country": "DE"}, headers=attributes)
    for answer in (structured, batched, binary):
        assert answer.status_code == 202, answer.text
    ingest(caller.owner)
    rows = {row["id"]: row for row in caller.owner.rows()}
    assert rows.keys() == {f"/shop#{name}" for name in "sbph"}
    assert {row["trace_id"] for row in rows.values()} == {"4bf92f3577b34da6a3ce929d0e0e4736"}
    assert json.loads(rows["/shop#s"]["context"])["source"] == "/shop"
    assert json.loads(rows["/shop#h"]["context"])["subject"] == "café"


def binary(caller: Caller, **headers: str | bytes) -> httpx.Response:
    attributes = {"specversion": "1.0", "source": "/shop", "type": "orders", "id": "1"} | headers
    ce_headers = {f"ce-{name}": value for name, value in attributes.items()}
    return caller.http.post("/v1/collect", json={"country": "DE"}, headers=ce_headers)  # type: ignore[arg-type]


def test_the_media_type_decides_over_headers_that_proxies_add(caller: Caller) -> None:
    added = {"ce-specversion": "1.0", "ce-id": "other", "ce-source": "/other", "ce-type": "other"}
    for form, body in (("", cloud(id="s")), ("-batch", [cloud(id="b")])):
        headers = added | {"content-type": f"Application/CloudEvents{form}+JSON; charset=utf-8"}
        answer = caller.http.post("/v1/collect", content=json.dumps(body).encode(), headers=headers)
        assert answer.status_code == 202, answer.text
    ingest(caller.owner)
    assert {row["id"] for row in caller.owner.rows()} == {"/shop#s", "/shop#b"}
    other = added | {"content-type": "application/cloudevents+avro"}
    assert caller.http.post("/v1/collect", content=b"{}", headers=other).status_code == 415


def test_a_header_is_read_according_to_the_http_binding(caller: Caller) -> None:
    same = ["q-1", '"q-1"', '"q\\-1"', "q%2D1", '"q%2D1"']
    for value in same:
        assert binary(caller, id=value, type='"com.example.orders"').status_code == 202, value
    texts = {
        b"caf%C3%A9": "café",
        "café".encode(): "café",
        b"100%": "100%",
        b'"a \\"b\\\\"': 'a "b\\',
        b"a%2520": "a%20",
    }
    for number, value in enumerate(texts):
        assert binary(caller, id=f"t-{number}", subject=value).status_code == 202, value
    ingest(caller.owner)
    rows = {row["id"]: json.loads(row["context"]) for row in caller.owner.rows()}
    assert rows.keys() == {"/shop#q-1", *(f"/shop#t-{number}" for number in range(len(texts)))}
    assert [rows[f"/shop#t-{number}"]["subject"] for number in range(len(texts))] == list(texts.values())


@pytest.mark.parametrize("value", [b"caf%E9", b"caf\xe9", b"%ED%A0%80", b'"open', b'"a"b"', b'"a\\"'])
def test_a_header_that_is_not_text_is_refused(caller: Caller, value: bytes) -> None:
    for name in ("id", "source", "subject"):
        answer = binary(caller, **{name: value})
        assert (answer.status_code, f"ce-{name}" in answer.json()["detail"]) == (400, True), answer.text


def test_a_header_that_no_event_can_hold_is_refused_at_the_door(caller: Caller) -> None:
    cases = (("id", "a%00"), ("subject", "%00"), ("time", ""), ("dataset", ""))
    reasons = [binary(caller, **{name: value}).json()["verdicts"][0]["reason"] for name, value in cases]
    assert reasons == ["nul_character", "nul_character", "invalid_timestamp", "missing_dataset"]


def test_data_in_a_header_are_refused(caller: Caller) -> None:
    for name in ("data", "data_base64"):
        answer = binary(caller, **{name: b"e30="})
        assert (answer.status_code, f"ce-{name}" in answer.json()["detail"]) == (400, True), answer.text


def test_a_header_with_two_values_is_refused(caller: Caller) -> None:
    headers = [
        ("ce-specversion", "1.0"),
        ("ce-source", "/shop"),
        ("ce-type", "orders"),
        ("ce-id", "a"),
        ("ce-id", "b"),
    ]
    answer = caller.http.post("/v1/collect", json={"country": "DE"}, headers=headers)
    assert (answer.status_code, "ce-id" in answer.json()["detail"]) == (400, True), answer.text


def test_each_source_and_id_of_cloudevents_is_another_event(caller: Caller) -> None:
    """A source may have a fragment, and an id any character: `/a#b` + `c` is not `/a` + `b#c`."""
    names = ("b#c", "b%23c", "b%2523c", "b%20c")
    pairs = [("/a#b", "c"), *(("/a", name) for name in names)]
    batch = json.dumps([cloud(source=source, id=name) for source, name in pairs]).encode()
    assert caller.collect(batch, content_type="application/cloudevents-batch+json").json()["accepted"] == len(
        pairs
    )
    ingest(caller.owner)
    ids = {cloudevent_id(*pair) for pair in pairs}
    assert {row["id"] for row in caller.owner.rows()} == ids
    assert ids == {"/a#b#c", "/a#b%23c", "/a#b%2523c", "/a#b%252523c", "/a#b%20c"}


def test_a_cloudevent_with_data_twice_is_refused(caller: Caller) -> None:
    both = cloud(data_base64=base64.b64encode(b'{"country": "FR"}').decode())
    for changes, status in (
        ({}, 400),
        ({"data": {}}, 400),
        ({"data": None}, 202),
        ({"data_base64": None}, 202),
    ):
        body = json.dumps(both | changes).encode()
        answer = caller.collect(body, content_type="application/cloudevents+json")
        assert answer.status_code == status, answer.text
        assert status == 202 or "this has both" in answer.json()["detail"]


@pytest.mark.parametrize(
    "change",
    [{"specversion": "0.3"}, {"id": ""}, {"source": None}, {"type": 7}, {"data": None, "data_base64": "é"}],
)
def test_the_refusal_of_a_cloudevent_names_its_fault(caller: Caller, change: dict[str, Any]) -> None:
    body = json.dumps(cloud(**change)).encode()
    assert caller.collect(body, content_type="application/cloudevents+json").status_code == 400


# quotas and rates ---------------------------------------------------------------------------------


def test_the_quota_of_a_month_is_exact_under_concurrency(new_caller: Callable[..., Caller]) -> None:
    """Requests of one to three events from many threads, and from two processes' worth of servers."""
    caller = new_caller()
    quotas.set_limits(caller.owner.tenant, max_records_per_month=100)
    statuses: list[tuple[int, int]] = []

    def send(url: str, size: int) -> None:
        headers = {"Authorization": f"Bearer {caller.key.text}"}
        with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S, verify=TLS) as client:
            for _ in range(15):
                answer = client.post("/v1/collect", json=[sample() for _ in range(size)])
                statuses.append((answer.status_code, size))

    with served() as other:
        urls = [str(caller.http.base_url), other.url]
        threads = [threading.Thread(target=send, args=(urls[n % 2], 1 + n % 3)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {status for status, _ in statuses} == {202, 429}
    accepted = sum(size for status, size in statuses if status == 202)
    assert accepted == 100, "the month was filled to the last record, and not beyond"
    assert waiting(caller.owner) == 100
    usage = caller.http.get("/v1/usage").json()
    assert (usage["remaining_records"], usage["months"][0]["accepted"]) == (0, 100)
    problem = caller.collect(sample()).json()
    assert problem["type"] == "urn:pulse:problem:quota-exceeded"
    quotas.set_limits(caller.owner.tenant, max_records_per_month=-1)
    assert _soon(lambda: caller.collect(sample()).status_code == 202)


def test_a_rate_is_answered_with_when_to_come_back(caller: Caller) -> None:
    quotas.set_limits(caller.owner.tenant, events_per_second=10)
    while (answer := caller.collect([sample() for _ in range(30)])).status_code != 429:
        time.sleep(0.02)  # announcements take a moment
    assert 1 <= int(answer.headers["retry-after"]) <= 10, "of its part: others serve beside this one"
    assert answer.json()["type"] == "urn:pulse:problem:rate-exceeded"
    quotas.set_limits(caller.owner.tenant, requests_per_second=1)
    assert _soon(lambda: [caller.http.get("/v1/usage").status_code for _ in range(3)][-1] == 429)


# the broker ---------------------------------------------------------------------------------------


def test_an_event_without_an_acknowledgement_is_answered_with_503(
    new_caller: Callable[..., Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is paused: 503 after the time-out, and what was acknowledged before is there."""
    caller = new_caller()
    quotas.set_limits(caller.owner.tenant, max_records_per_month=1_000)
    monkeypatch.setenv("PULSE_API__DELIVERY_TIMEOUT_SECONDS", "2")
    load_settings.cache_clear()
    try:
        with served() as impatient, impatient.client(caller.key.text) as client:
            assert _soon(lambda: client.post("/v1/collect", json=sample("before")).status_code == 202)
            with paused("kafka"):
                answer = client.post("/v1/collect", json=sample("during"))
                assert answer.status_code == 503, answer.text
                assert int(answer.headers["retry-after"]) >= 1
                assert client.get("/healthz").status_code == 200
            assert _soon(lambda: client.post("/v1/collect", json=sample("after")).status_code == 202)
            assert _soon(lambda: client.post("/v1/collect", json=sample("during")).status_code == 202)
    finally:
        monkeypatch.undo()
        load_settings.cache_clear()
    ingest(caller.owner)
    assert {row["id"] for row in caller.owner.rows()} == {"before", "during", "after"}
    assert reconcile_tenant(caller.owner.tenant).balanced


def test_a_quota_holds_while_the_broker_does_not_acknowledge(
    new_caller: Callable[..., Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may have been written stays reserved, and the same events are not reserved twice."""
    caller, hold = new_caller(), threading.Event()
    wait_for_outcome = publisher._Delivery.wait

    async def wait_for_broker(delivery: publisher._Delivery) -> None:
        """The events stay in flight for as long as the test holds them."""
        await wait_for_outcome(delivery)
        while hold.is_set():
            await asyncio.sleep(0.01)

    monkeypatch.setattr(publisher._Delivery, "wait", wait_for_broker)
    quotas.set_limits(caller.owner.tenant, max_records_per_month=12)
    nine, probes = [sample(f"nine-{n}") for n in range(9)], []
    with served_with(delivery_timeout_seconds=2) as impatient, impatient.client(caller.key.text) as client:

        def send(body: Any) -> httpx.Response:
            return client.post("/v1/collect", json=body)

        def accepted() -> int:
            return client.get("/v1/usage").json()["months"][0]["accepted"]

        assert _soon(lambda: send(sample("first")).status_code == 202)
        with paused("kafka"):
            assert send(nine).status_code == 503
            assert accepted() == 10, "all nine may have been written"
            probe = threading.Thread(target=lambda: probes.append(send(sample("probe")).status_code))
            hold.set()
            probe.start()
            assert _soon(lambda: IN_FLIGHT._value.get() == 1)
            refused = send(sample("refused"))
            assert (refused.status_code, "nothing was sent" in refused.text) == (503, True)
            assert accepted() == 11, "what was never sent is given back"
            hold.clear()
            probe.join(PATIENCE_S)
        answer = send([sample() for _ in range(9)])
        assert (answer.status_code, answer.json()["type"]) == (429, "urn:pulse:problem:quota-exceeded")
        assert _soon(lambda: send(nine).status_code == 202)
        assert accepted() == 11, "the same events have their place already"
        assert send(nine).status_code == 429, "they had been accepted"
    ingest(caller.owner)
    landed = {row["id"] for row in caller.owner.rows()}
    assert landed - {"probe"} == {"first", *(event["event_id"] for event in nine)}


def test_a_producer_that_failed_for_good_is_replaced(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with events under way: each of their requests is answered."""
    producers: list[confluent_kafka.Producer] = []
    make = kafka.producer
    monkeypatch.setattr(
        kafka, "producer", lambda **settings: producers.append(make(**settings)) or producers[-1]
    )
    answers: list[int] = []
    with served() as api, api.client(caller.key.text) as client:

        def post(name: str) -> None:
            answers.append(client.post("/v1/collect", json=sample(name)).status_code)

        post("before")
        under_way = [threading.Thread(target=post, args=(f"during-{n}",)) for n in range(5)]
        with paused("kafka"):
            for thread in under_way:
                thread.start()
            assert _soon(lambda: len(producers[0]) == 5)
            assert IN_FLIGHT._value.get() == 5
            fail_for_good(producers[0])
            assert _soon(lambda: len(producers) == 2)
        for thread in under_way:
            thread.join(PATIENCE_S)
        assert len(answers) == 6, "everyone is answered"
        assert set(answers) <= {202, 503}
        post("after")
        assert answers[-1] == 202
    assert len(producers) == 2
    assert IN_FLIGHT._value.get() == 0


def fail_for_good(producer: confluent_kafka.Producer) -> None:
    """What librdkafka calls a fatal error, by its own function for tests, which Python does not offer."""
    (library,) = Path(confluent_kafka.__file__).parent.parent.glob("confluent_kafka.libs/librdkafka*")
    handle = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__)
    fail = ctypes.CDLL(str(library)).rd_kafka_test_fatal_error
    fail.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    assert fail(handle, 45, b"as a test wants it") == 0


def test_others_have_the_event_loop_while_many_events_are_handed_over(caller: Caller) -> None:
    events = [Outgoing("orders", str(n), b"{}") for n in range(10 * publisher.AT_ONCE)]

    async def ask() -> int:
        handover, passes = publisher.Publisher(), 0
        handover.start()
        topic = caller.owner.tenant.topic
        publishing = asyncio.create_task(handover._produce(topic, events, lambda *_: None, None))
        while not publishing.done():
            await asyncio.sleep(0)
            passes += 1
        await asyncio.to_thread(handover.stop)
        assert publishing.result() == len(events)
        return passes

    assert asyncio.run(ask()) >= 10
    assert waiting(caller.owner) == len(events)


def test_too_much_in_flight_is_refused_before_it_is_sent(caller: Caller) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PULSE_API__MAX_UNACKNOWLEDGED_EVENTS", "5")
        load_settings.cache_clear()
        with served() as small, small.client(caller.key.text) as client:
            answer = client.post("/v1/collect", json=[sample() for _ in range(6)])
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert client.post("/v1/collect", json=[sample() for _ in range(5)]).status_code == 202
    load_settings.cache_clear()
    assert waiting(caller.owner) == 5


@contextmanager
def served_with(**settings: object) -> Iterator[Api]:
    """A server whose API has these settings."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(f"PULSE_API__{name.upper()}", str(value))
        load_settings.cache_clear()
        with served() as api:
            yield api
    load_settings.cache_clear()
