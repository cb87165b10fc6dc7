"""The raw zone by arrival: one object of many days, each of which is read, rebuilt and erased by itself."""

import gzip
import json
import re
from collections import Counter
from datetime import UTC, date, datetime
from itertools import groupby
from typing import Any

import pytest
from support.here import ingest_here as ingest
from support.ingest import Owner, event, make_owner
from support.lake import spark, superuser

from pulse_pipelines import registry
from pulse_pipelines.backfill.run import backfill
from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.event_limits import UNLIMITED
from pulse_pipelines.erasure import run as erasure
from pulse_pipelines.ingest.batch_files import BatchFiles
from pulse_pipelines.ingest.conform import TopicConformer
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.tables import raw_zone
from pulse_pipelines.tables.raw_zone import Message
from pulse_resources import object_store
from pulse_resources.settings import Settings, load_settings

DAYS = [date(2026, 11, day) for day in (17, 18, 19)]
PARTS = """
SELECT path, day, events, start, bytes FROM raw_objects
WHERE tenant_id = %s AND removed_at IS NULL ORDER BY path, start
"""


def of_day(event_id: str, day: date, **data: Any) -> bytes:
    return json.dumps(json.loads(event(event_id, **data)) | {"timestamp": f"{day}T10:00:00Z"}).encode()


def parts(owner: Owner) -> list[tuple[str, date, int, int, int]]:
    with superuser() as connection:
        return connection.execute(PARTS, [owner.tenant.tenant_id]).fetchall()


def ids(packed: bytes) -> list[str]:
    return [json.loads(message.payload)["event_id"] for message in raw_zone.messages(packed)]


@pytest.fixture
def owner(owner: Owner) -> Owner:
    return with_days(owner)


@pytest.fixture(scope="module")
def dated_owner(stack: Settings) -> Owner:
    """Tests only look at it."""
    return with_days(make_owner())


def with_days(owner: Owner) -> Owner:
    """A batch of two events of each of three days, in turns, one of them ADA's, and a dead letter."""
    payloads = [of_day(f"{day.day}-{n}", day) for n in range(2) for day in DAYS]
    owner.send(*payloads, of_day("ada", DAYS[1], country="ADA"), event("bad", country=7))
    ingest(owner)
    return owner


def test_an_object_has_the_events_of_an_hour_by_their_days(dated_owner: Owner) -> None:
    """Of what one task got of it: there may be two."""
    events: Counter[date] = Counter()
    for path, of_path in groupby(parts(dated_owner), key=lambda part: part[0]):
        assert re.search(r"/orders/dt=\d{4}-\d\d-\d\d/hr=\d\d/[^/]+\.jsonl\.gz$", path)
        content, end = raw_zone.content(path), 0
        for _, day, count, start, size in of_path:
            assert start == end
            end += size
            events[day] += count
            lines = gzip.decompress(content[start:end]).splitlines()
            assert len(lines) == count
            if day in DAYS:
                assert all(f'"timestamp": "{day}T'.encode() in line for line in lines)
        assert end == len(content)
        assert len(gzip.decompress(content).splitlines()), "the object is one valid .gz"
    assert events == {DAYS[0]: 2, DAYS[1]: 3, DAYS[2]: 2, datetime.now(UTC).date(): 1}


def test_a_day_is_rebuilt_from_its_part_alone(owner: Owner) -> None:
    """Everything else in the object is overwritten: nobody looks at it."""
    before = owner.rows()
    of_object = {path: bytearray(b"x" * len(raw_zone.content(path))) for path, *_ in parts(owner)}
    for path, day, _, start, size in parts(owner):
        if day == DAYS[1]:
            of_object[path][start : start + size] = raw_zone.part(path, start, size)
    for path, damaged in of_object.items():
        object_store.put(path, bytes(damaged))
    done = backfill(spark(), owner.tenant, "orders", DAYS[1], parallelism=2)
    assert done.rows == 3
    assert owner.rows() == before


def members(owner: Owner) -> list[tuple[date, bytes]]:
    return sorted((day, raw_zone.part(path, start, size)) for path, day, _, start, size in parts(owner))


def test_an_erasure_keeps_the_other_days_as_they_were(owner: Owner) -> None:
    before = members(owner)
    erasure.erase(owner.tenant, "orders", "country=ADA")
    after = members(owner)
    assert sorted(event_id for day, packed in after if day == DAYS[1] for event_id in ids(packed)) == [
        "18-0",
        "18-1",
    ]
    assert [m for m in after if m[0] != DAYS[1]] == [m for m in before if m[0] != DAYS[1]]
    assert reconcile_tenant(owner.tenant).balanced
    for day in DAYS:
        backfill(spark(), owner.tenant, "orders", day, parallelism=2)
    assert len(owner.rows()) == 6


def test_a_member_without_an_event_left_is_not_kept(owner: Owner) -> None:
    before = members(owner)
    owner.send(*(of_day(f"only {n}", DAYS[0], country="EVE") for n in range(2)), of_day("other", DAYS[2]))
    ingest(owner)
    erasure.erase(owner.tenant, "orders", "country=EVE")
    ((day, packed),) = [member for member in members(owner) if member not in before]
    assert (day, ids(packed)) == (DAYS[2], ["other"])
    assert all(events for _, _, events, _, _ in parts(owner))


def test_each_hour_of_arrival_has_its_object(dated_owner: Owner) -> None:
    """And each day of the events in it a member, whatever order they came in."""
    dataset = registry.find_dataset(dated_owner.tenant, "orders")
    conformer = TopicConformer(Scope(dated_owner.tenant, (dataset,)), "batch", UNLIMITED)
    first, second = (datetime(2026, 11, 19, hour, 59, 59, tzinfo=UTC) for hour in (9, 10))
    arrivals = [(DAYS[0], first), (DAYS[1], second), (DAYS[0], second), (DAYS[1], first), (DAYS[0], first)]
    messages = [
        Message(0, n, round(at.timestamp() * 1000), of_day(f"e{n}", day))
        for n, (day, at) in enumerate(arrivals)
    ]
    bucket = load_settings().object_store.bucket
    with BatchFiles(dated_owner.tenant, bucket, "batch-1", drop_copies=True, pause=lambda: None) as lake:
        lake.add(dataset, conformer.chunk(messages).tables["orders"])
        lake.add_raw("orders", messages[0].received_ms, b'{"not": "an event"}\n')
    contents = {
        (part.path.split("/")[-2], part.day): ids(raw_zone.part(part.path, part.start, part.bytes))
        for part in lake.raw
        if part.day in DAYS[:2]
    }
    assert contents == {
        ("hr=09", DAYS[0]): ["e0", "e4"],
        ("hr=09", DAYS[1]): ["e3"],
        ("hr=10", DAYS[0]): ["e2"],
        ("hr=10", DAYS[1]): ["e1"],
    }
    assert len({part.path for part in lake.raw}) == 2
    assert [(part.day, part.events) for part in lake.raw if part.day not in DAYS[:2]] == [(DAYS[2], 1)]
