"""One batch with every kind of bad event among good ones: what becomes of each, wherever it is kept."""

import base64
import gzip
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow.fs as pafs
import pytest
from confluent_kafka import Message, Producer
from support.ingest import Owner, event, ingest, make_owner
from support.topics import limited

from chaos.sent import messages
from chaos.waiting import PATIENCE_S
from pulse_pipelines import dead_letters
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest import dead_letter_topic
from pulse_pipelines.ingest.dead_letter_topic import publish_tenant
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.tables import raw_zone
from pulse_resources import kafka, object_store, postgres
from pulse_resources.kafka import MAX_MESSAGE_BYTES
from pulse_resources.settings import Settings, load_settings

NUL_SET = event("nul set", dataset="nope\0")
BAD: list[tuple[bytes | None, Reason, str | None]] = [
    (None, Reason.UNDECODABLE, None),  # a tombstone
    (b"", Reason.UNDECODABLE, None),
    (b'{"event_id": "\xff\xfe', Reason.UNDECODABLE, None),
    (event("cut")[:-2], Reason.UNDECODABLE, None),
    (event("large", other="x" * 262_144), Reason.OVERSIZE, None),
    (b"[" * 100_000 + b"]" * 100_000, Reason.TOO_DEEP, None),
    (event("nul", country="a\0b"), Reason.NUL_CHARACTER, "/data/country"),
    (event("nul key", **{"\0": 1}), Reason.NUL_CHARACTER, "/data"),
    (event("nul\0id"), Reason.NUL_CHARACTER, "/event_id"),
    (event("large int", count=2**63), Reason.INTEGER_OUT_OF_RANGE, "/data/count"),
    (event("larger int", other=[-(2**64)]), Reason.INTEGER_OUT_OF_RANGE, "/data/other/0"),
    (b'["not an object"]', Reason.INVALID_ENVELOPE, ""),
    (event(""), Reason.INVALID_ENVELOPE, "/event_id"),
    (event("tenant").replace(b"{", b'{"tenant": "umbrella", ', 1), Reason.WRONG_TENANT, "/tenant"),
    (event("no dataset").replace(b'"dataset"', b'"set"'), Reason.MISSING_DATASET, "/dataset"),
    (event("unknown", dataset="nope"), Reason.UNKNOWN_DATASET, "/dataset"),
    (NUL_SET, Reason.NUL_CHARACTER, "/dataset"),
    (
        event("version").replace(b"{", b'{"schema_version": 9, ', 1),
        Reason.UNKNOWN_SCHEMA_VERSION,
        "/schema_version",
    ),
    (event("no zone").replace(b"10:00:00Z", b"10:00:00"), Reason.INVALID_TIMESTAMP, "/timestamp"),
    (event("year 0").replace(b"2026-", b"0000-"), Reason.TIMESTAMP_OUT_OF_RANGE, "/timestamp"),
    (event("type", count="three"), Reason.SCHEMA_VIOLATION, "/data/count"),
    (event("pretty", count=[]).replace(b", ", b",\r\n  "), Reason.SCHEMA_VIOLATION, "/data/count"),
    (event("soon", signup_at="soon"), Reason.UNREPRESENTABLE, "/data/signup_at"),
]
GOOD_IDS = [
    "plain",
    'quo"te',
    "comma,",
    "back\\slash",
    "\\.",
    "new\nline",
    "\r\n",
    " space ",
    "é\u2028😀",
    "\\N",
]
GOOD = [event(event_id, count=n, context=event_id) for n, event_id in enumerate(GOOD_IDS)]
GOOD += [event("lookalike", country="\\u0000"), event("lines").replace(b", ", b",\n\t")]
COPY = GOOD[0]


@dataclass(frozen=True)
class Sent:
    owner: Owner
    batch: str
    payloads: list[bytes | None]
    """By offset."""
    bad: dict[int, tuple[Reason, str | None]]


def _interleaved() -> Iterator[tuple[bytes | None, tuple[Reason, str | None] | None]]:
    for index in range(max(len(BAD), len(GOOD))):
        if index < len(GOOD):
            yield GOOD[index], None
        if index < len(BAD):
            payload, *verdict = BAD[index]
            yield payload, tuple(verdict)
    yield COPY, None


@pytest.fixture(scope="module")
def sent(stack: Settings) -> Sent:
    owner = make_owner()
    payloads, bad = [], {}
    producer = kafka.shared_producer()
    for offset, (payload, verdict) in enumerate(_interleaved()):
        producer.produce(owner.tenant.topic, payload, partition=0)
        payloads.append(payload)
        if verdict:
            bad[offset] = verdict
    assert producer.flush(PATIENCE_S) == 0
    return Sent(owner, ingest(owner), payloads, bad)


def published(owner: Owner) -> list[Message]:
    """Everything on the tenant's dead-letter topic."""
    return [message for _, message in messages(owner.tenant.dead_letter_topic)]


def test_every_reason_is_covered() -> None:
    covered = {reason for _, reason, _ in BAD}
    elsewhere = {
        Reason.LANDING_FAILED: "test_ingest",
        Reason.OVER_QUOTA: "test_quota",
        Reason.TOO_EXPENSIVE: "test_collect",
        Reason.PROCESSING_FAILED: "test_poison",
    }
    assert covered | set(elsewhere) == set(Reason)


def test_each_bad_event_is_a_dead_letter_with_its_reason_and_its_bytes(sent: Sent) -> None:
    letters = sent.owner.dead_letters()
    assert [
        (letter["event_offset"], letter["reason"], letter["pointer"], bytes(letter["payload"]))
        for letter in letters
    ] == [
        (offset, reason.value, pointer, sent.payloads[offset] or b"")
        for offset, (reason, pointer) in sent.bad.items()
    ]
    assert all(letter["detail"] and letter["published_at"] for letter in letters)


def test_each_dead_letter_is_on_the_topic_once_with_its_origin_as_key(sent: Sent) -> None:
    messages = published(sent.owner)
    topic = sent.owner.tenant.topic
    by_key = {message.key(): message for message in messages}
    assert len(messages) == len(by_key) == len(sent.bad)
    for letter in sent.owner.dead_letters():
        message = by_key[f"{topic}/0/{letter['event_offset']}".encode()]
        assert (message.value() or b"") == bytes(letter["payload"])
        headers = {name: value.decode() for name, value in message.headers()}
        assert headers.pop("pulse.received-at").startswith("20")
        assert headers.pop("pulse.batch-id") == sent.batch
        headers.pop("pulse.event-id", None)
        expected = {f"pulse.{name}": letter[name] for name in ("reason", "detail", "pointer", "dataset")}
        assert headers == {name: value for name, value in expected.items() if value is not None}


def test_the_identity_of_a_dead_letter_travels_with_it(sent: Sent) -> None:
    ids = {
        dict(message.headers()).get("pulse.event-id", b"").decode(): dict(message.headers())
        for message in published(sent.owner)
    }
    assert {"unknown", "type", "soon", "large int"} <= set(ids)
    assert ids["unknown"]["pulse.dataset"] == b"nope"
    assert "pulse.dataset" not in ids["nul set"], "a name that cannot be stored is left out"
    assert not any("\0" in event_id for event_id in ids)


def test_valid_events_around_the_dead_letters_landed(sent: Sent) -> None:
    rows = sent.owner.rows()
    good = [offset for offset in range(len(sent.payloads) - 1) if offset not in sent.bad]
    assert [row["_offset"] for row in rows] == good
    assert [row["id"] for row in rows] == [*GOOD_IDS, "lookalike", "lines"]
    assert [row["count"] for row in rows] == [*range(len(GOOD_IDS)), None, None]
    assert [orjson.loads(row["_extra"])["context"] for row in rows[: len(GOOD_IDS)]] == GOOD_IDS
    assert {row["_batch"] for row in rows} == {sent.batch}


def test_every_event_is_accounted_for(sent: Sent) -> None:
    report = reconcile_tenant(sent.owner.tenant)
    counts = (report.drained, report.landed, report.duplicates, report.dead_letters, report.problems)
    assert counts == (len(sent.payloads), len(GOOD), 1, len(BAD), [])
    assert sent.owner.claims() == len(GOOD)


def test_a_letter_that_is_too_large_for_the_topic_is_published_without_bytes(owner: Owner) -> None:
    """Too large for the broker, and for the client; what comes after them is published, too."""
    largest = MAX_MESSAGE_BYTES - 200  # of an event: its headers make it too large as a dead letter
    payloads = [os.urandom(300_000), b"y" * largest, b"not JSON", event("a")]  # lz4 makes nothing of y
    owner.send(*payloads)
    with limited(owner.tenant.dead_letter_topic, 200_000):
        ingest(owner)
    letters = [(m.value(), dict(m.headers() or ())) for m in published(owner)]
    actual = [(payload, headers.get("pulse.withheld-bytes")) for payload, headers in letters]
    assert sorted(actual, key=str) == sorted(
        [(None, b"300000"), (None, str(largest).encode()), (b"not JSON", None)], key=str
    )
    assert {headers["pulse.reason"] for _, headers in letters} == {b"oversize", b"undecodable"}
    for offset in (0, 1):
        assert dead_letters.find_dead_letter(owner.tenant, f"0-{offset}").payload == payloads[offset]
    assert reconcile_tenant(owner.tenant).problems == []


def test_pages_are_bound_by_bytes(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[int] = []
    publish = dead_letter_topic._publish

    def noting(producer: Producer, tenant: Tenant, letters: Sequence[Any]) -> None:
        pages.append(len(letters))
        publish(producer, tenant, letters)

    monkeypatch.setattr(dead_letter_topic, "PAGE_BYTES", 1_500)
    monkeypatch.setattr(dead_letter_topic, "_publish", noting)
    owner.send(*(b"x" * 1_000 for _ in range(3)), b"x" * 9_000)
    ingest(owner)
    assert [count for count in pages if count] == [2, 2]
    assert len(published(owner)) == 4


def test_publishing_again_publishes_nothing(sent: Sent) -> None:
    before = len(published(sent.owner))
    assert publish_tenant(kafka.shared_producer(), sent.owner.tenant) == 0
    assert len(published(sent.owner)) == before


def test_the_raw_zone_holds_every_event_that_was_received(sent: Sent) -> None:
    lines = list(_raw_lines(sent.owner))
    assert sorted(line["offset"] for _, _, line in lines) == list(range(len(sent.payloads)))
    for _, raw, line in lines:
        payload = sent.payloads[line["offset"]] or b""
        assert (line["partition"], line["received_ms"] > 0) == (0, True)
        if "bytes" in line:
            assert base64.b64decode(line["bytes"]) == payload
        elif b"\n" in payload:
            assert line["event"] == orjson.loads(payload)
        else:
            assert raw.endswith(b'"event":' + payload + b"}"), "kept to the byte"


def test_raw_objects_are_where_their_event_belongs(sent: Sent) -> None:
    slugs = {line["offset"]: path.split("/")[3] for path, _, line in _raw_lines(sent.owner)}
    for offset in range(len(sent.payloads)):
        reason, _ = sent.bad.get(offset, (None, None))
        unresolved = (
            Reason.UNDECODABLE,
            Reason.TOO_DEEP,
            Reason.MISSING_DATASET,
            Reason.UNKNOWN_DATASET,
        )
        lost = reason in unresolved or sent.payloads[offset] in (b'["not an object"]', NUL_SET)
        assert slugs[offset] == ("_unresolved" if lost else "orders"), sent.payloads[offset]


def _raw_lines(owner: Owner) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Path, line and decoded line of the tenant's raw zone, once the ledger names exactly its objects."""
    bucket = load_settings().object_store.bucket
    with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
        ledger = connection.execute("SELECT path, events, start, bytes, slug FROM raw_objects").fetchall()
    selector = pafs.FileSelector(f"{bucket}/raw/{owner.tenant.tenant_id.hex}", recursive=True)
    actual = {f.path: f.size for f in object_store.file_system().get_file_info(selector) if f.is_file}
    sizes: dict[str, int] = defaultdict(int)
    for path, _, _, size, _ in ledger:
        sizes[object_store.key(path)] += size
    assert actual == sizes
    for path, events, start, size, slug in ledger:
        key = object_store.key(path)
        assert re.search(rf"/{slug}/dt=\d{{4}}-\d\d-\d\d/hr=\d\d/[^/]+\.jsonl\.gz$", key)
        content = gzip.decompress(raw_zone.part(path, start, size))
        lines = content.splitlines()
        assert (len(lines), content[-1:]) == (events, b"\n")
        for line in lines:
            yield key, line, orjson.loads(line)
