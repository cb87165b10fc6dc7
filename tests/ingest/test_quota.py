"""The quota of a month, whoever sent the events: what has no place is set aside, and released once there is.

Direct producers write to the topic by themselves (`Owner.send`); the front door is the API, or what it asks.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from typing import Any

import orjson
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from support.backfill import balanced, rebuilt
from support.faults import AtPoint
from support.http import Caller, sample
from support.ingest import (
    Owner,
    event,
    ingest,
    make_owner,
    plan_batch,
    run_batch,
    start_attempt,
)
from support.lake import spark
from support.topics import accept, recreate

from chaos.sent import messages
from chaos.surroundings import with_settings
from chaos.waiting import PATIENCE_S
from pulse_pipelines import dead_letters, registry
from pulse_pipelines.dead_letters import DeadLetterOutcome, Filter
from pulse_pipelines.domain.quota import COUNTED
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.requests import LetterState
from pulse_pipelines.ingest import attempts, dedup, drain, staging
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.registry import intake, quotas
from pulse_pipelines.registry.intake import Rows
from pulse_resources import kafka, postgres

pytestmark = pytest.mark.usefixtures("stack")
OVER = Filter(reason=Reason.OVER_QUOTA)


def limit(owner: Owner, records: int) -> None:
    quotas.set_limits(owner.tenant, max_records_per_month=records)


def send(owner: Owner, ids: str) -> None:
    """Events that have one letter as id, each."""
    owner.send(*(event(letter) for letter in ids))


def send_counted(owner: Owner, *payloads: bytes) -> None:
    """As the front door does, which has reserved their places; or as who says so."""
    producer = kafka.shared_producer()
    for payload in payloads:
        producer.produce(owner.tenant.topic, payload, partition=0, headers=[(COUNTED, b"")])
    assert producer.flush(PATIENCE_S) == 0


def landed(owner: Owner) -> str:
    return "".join(row["id"] for row in owner.rows())


def aside(owner: Owner) -> list[str]:
    """Event ids that wait for room, by position."""
    page = dead_letters.list_dead_letters(owner.tenant, OVER, state=LetterState.OPEN)
    return [str(letter.event_id) for letter in reversed(page.letters)]


def replay(owner: Owner, **how: Any) -> dict[str, int]:
    counts = dead_letters.replay(owner.tenant, OVER, **how).counts
    return {outcome.value: count for outcome, count in counts.items()}


def used(owner: Owner) -> int:
    return quotas.find_usage(owner.tenant).accepted_this_month


def reserve(owner: Owner, ids: str, maximum: int) -> bool:
    """What the front door does before it publishes."""
    (reserved,) = intake.reserve(owner.tenant, [[letter.encode() for letter in ids]], maximum)
    return reserved is not None


def hold(owner: Owner, batch: str, count: int, maximum: int) -> int:
    """What the gate does for a batch."""
    with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
        month = intake.this_month(connection)
        requested = {month: Rows(0, count)}
        return intake.hold(connection, owner.tenant.tenant_id, batch, requested, maximum)[month].others


def holds(owner: Owner) -> list[tuple[str, int]]:
    with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
        return connection.execute("SELECT batch_id, records FROM intake_holds").fetchall()


# what exceeds ------------------------------------------------------------------------------------


def test_events_over_the_quota_are_set_aside_and_released_in_order(owner: Owner) -> None:
    limit(owner, 3)
    send(owner, "abcaded")
    ingest(owner)
    assert (landed(owner), aside(owner)) == ("abc", ["d", "e"])
    assert balanced(owner) == (3, 2, 2), "a copy needs no place"
    assert reconcile_tenant(owner.tenant, raw=True).balanced, "the letter of d stands for its copy"
    letter = owner.dead_letters()[0]
    assert letter["payload"] == event("d")
    assert f"{datetime.now(UTC):%Y-%m} has no place left" in letter["detail"]
    assert letter["published_at"] is not None, "consumers of the topic of dead letters see it, too"
    usage = quotas.find_usage(owner.tenant)
    assert (usage.accepted_this_month, usage.months[0].accepted, usage.over_quota) == (3, 3, 2)
    assert usage.over_quota_since is not None

    assert replay(owner) == {"rejected": 2}, "there is no room yet"
    limit(owner, 4)
    assert replay(owner, dry_run=True) == {"would_land": 1, "rejected": 1}
    assert replay(owner) == {"published": 1, "rejected": 1}
    assert replay(owner) == {"rejected": 1}, "its place is taken before it lands"
    assert not reserve(owner, "z", 4)
    ingest(owner)
    assert (landed(owner), aside(owner)) == ("abcd", ["e"]), "the first one was released first"
    limit(owner, -1)
    assert replay(owner) == {"published": 1}
    assert replay(owner) == {}
    ingest(owner)
    assert (landed(owner), aside(owner)) == ("abcde", [])
    assert balanced(owner) == (5, 2, 2)


def test_the_default_quota_of_the_installation_counts_landed_events(owner: Owner) -> None:
    send(owner, "abc")
    ingest(owner)
    with with_settings(LIMITS__MAX_RECORDS_PER_MONTH=4):
        send(owner, "def")
        ingest(owner)
    assert (landed(owner), aside(owner)) == ("abcd", ["e", "f"])


def test_only_events_over_the_quota_are_removed_from_large_files(owner: Owner) -> None:
    limit(owner, 280)
    owner.send(*(event(f"e{n % 290}", count=n) for n in range(300)))
    neighbour = make_owner()
    send(neighbour, "abc")
    ingest(owner, neighbour)
    assert [row["count"] for row in owner.rows()] == list(range(280))
    assert balanced(owner) == (280, 10, 10)
    assert landed(neighbour) == "abc"
    with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
        query = "SELECT rows, duplicates FROM landings WHERE tenant_id = %s"
        landings = connection.execute(query, [owner.tenant.tenant_id]).fetchall()
    assert landings == [(280, 10)]


def test_a_backfill_lands_nothing_that_is_over_the_quota(owner: Owner) -> None:
    limit(owner, 2)
    owner.send(*(event(letter) for letter in "abc"), event("d", count="x"))
    ingest(owner)
    rebuilt(owner)
    assert (landed(owner), aside(owner)) == ("ab", ["c"])
    assert balanced(owner) == (2, 0, 2)


# both ways at once -------------------------------------------------------------------------------


def test_an_event_counts_once_whichever_way_it_came(caller: Caller) -> None:
    """Those of a direct producer that looks like the front door in all that Kafka keeps, too."""
    owner = caller.owner
    limit(owner, 5)
    assert caller.collect([sample(letter) for letter in "abc"]).status_code == 202
    producer = kafka.shared_producer()
    for _, message in list(messages(owner.tenant.topic)):
        assert message.headers() == [(COUNTED, b"")]
        for new in "12":
            forged = orjson.loads(message.value() or b"")
            forged["event_id"] += new
            producer.produce(
                owner.tenant.topic, orjson.dumps(forged), message.key(), headers=message.headers()
            )
    send(owner, "abc")
    assert producer.flush(PATIENCE_S) == 0
    ingest(owner)
    assert (len(owner.rows()), len(aside(owner))) == (5, 4)
    assert balanced(owner) == (5, 3, 4)
    usage = caller.http.get("/v1/usage").json()
    assert (usage["remaining_records"], usage["months"][0]["accepted"], usage["over_quota"]) == (0, 5, 4)
    assert caller.collect(sample("z")).status_code == 429
    limit(owner, 9)
    body = {"filter": {"reason": "over_quota"}}
    assert caller.http.post("/v1/dead-letters/replay", json=body).json()["counts"] == {"published": 4}
    ingest(owner)
    assert balanced(owner) == (9, 3, 4)
    assert used(owner) == 9


def test_direct_events_take_no_place_of_one_that_the_door_accepted(owner: Owner) -> None:
    """Neither when they come in its batch, before it, nor when they land while it is on its way."""
    limit(owner, 7)
    assert reserve(owner, "abcd", 7)
    send(owner, "uvw")
    send_counted(owner, *map(event, "ab"))
    send(owner, "xyz")
    ingest(owner)
    assert (landed(owner), aside(owner)) == ("uvwab", ["x", "y", "z"])
    assert used(owner) == 7
    assert not reserve(owner, "e", 7)
    send_counted(owner, *map(event, "cd"))
    ingest(owner)
    assert (landed(owner), used(owner)) == ("uvwabcd", 7)
    balanced(owner)


def test_a_forged_header_of_the_door_reserves_no_place_in_the_quota(owner: Owner) -> None:
    limit(owner, 5)
    send_counted(owner, *map(event, "abcdefg"))
    ingest(owner)
    assert (landed(owner), aside(owner), used(owner)) == ("abcde", ["f", "g"], 5)
    limit(owner, 8)
    assert reserve(owner, "xy", 8)
    send_counted(owner, *map(event, "hijx"))
    ingest(owner)
    assert (len(landed(owner)), used(owner)) == (8, 8), "only the tenant's own event went without"


def test_a_dead_letter_that_was_counted_at_the_door_is_not_counted_again(owner: Owner) -> None:
    limit(owner, 2)
    assert reserve(owner, "ab", 2)
    send_counted(owner, event("a"), event("b", dataset="late"))
    ingest(owner)
    registry.create_dataset(owner.tenant, "late", f"pulse://{owner.tenant.slug}/orders/1")
    assert dead_letters.replay(owner.tenant, Filter()).counts == {DeadLetterOutcome.PUBLISHED: 1}
    ingest(owner)
    assert [row["id"] for row in owner.rows("late")] == ["b"]
    assert (used(owner), aside(owner)) == (2, [])


def test_events_accepted_at_the_door_land_despite_a_lowered_quota(owner: Owner) -> None:
    assert reserve(owner, "abc", 10)
    limit(owner, 1)
    send(owner, "d")
    send_counted(owner, *map(event, "abc"))
    ingest(owner)
    assert (landed(owner), aside(owner)) == ("abc", ["d"])


def test_the_door_has_no_place_that_a_batch_holds(owner: Owner, at: AtPoint) -> None:
    limit(owner, 5)
    send(owner, "abcd")
    tried = at("gate.after_hold", lambda: [reserve(owner, "yz", 5), reserve(owner, "z", 5)])
    ingest(owner)
    assert tried == [[False, True]]
    assert (landed(owner), used(owner)) == ("abcd", 5)


def test_gates_and_doors_at_once_fill_the_month_to_the_last_record(owner: Owner) -> None:
    """Two batches of one tenant, and the front door, all at the edge of the quota."""
    together = threading.Barrier(6)

    def at_once(number: int) -> int:
        together.wait()
        if number % 2:
            return sum(reserve(owner, letter, 20) for letter in f"{number}abcde")
        return hold(owner, f"batch-{number}", 9, 20)

    with ThreadPoolExecutor(6) as threads:
        places = sum(threads.map(at_once, range(6)))
    assert (places, used(owner)) == (20, 20)


# faults ------------------------------------------------------------------------------------------


def test_a_run_that_dies_with_places_leaves_them_to_its_batch(owner: Owner) -> None:
    limit(owner, 3)
    send(owner, "abcde")
    batch = plan_batch([owner])
    dying = start_attempt(batch, PULSE_FAIL_POINT="settle.before_commit")
    dying.killed()
    assert holds(owner) == [(batch, 3)]
    assert not reserve(owner, "z", 3), "nobody takes them meanwhile"
    attempts.next_attempt(batch, 1, "it died")
    limit(owner, 4)
    run_batch(batch, 2)
    assert (landed(owner), aside(owner), holds(owner)) == ("abcd", ["e"], [])
    assert balanced(owner) == (4, 0, 1)
    assert used(owner) == 4


def test_a_gate_of_a_former_attempt_takes_no_places(owner: Owner) -> None:
    limit(owner, 3)
    send(owner, "ab")
    batch = plan_batch([owner])
    with attempts.hold_attempt(batch, 1) as plan, staging.tables(plan):
        drained = drain.drain(spark(), plan, 2)
        attempts.next_attempt(batch, 1, "it does not answer")
        (failure,) = dedup.gate(drained).failures
    assert "newer attempt" in failure.error
    assert holds(owner) == []


def test_places_of_a_batch_that_lost_its_events_are_given_back(owner: Owner) -> None:
    limit(owner, 3)
    send(owner, "ab")
    batch = plan_batch([owner])
    with attempts.hold_attempt(batch, 1) as plan, staging.tables(plan):
        dedup.gate(drain.drain(spark(), plan, 2))
    attempts.next_attempt(batch, 1, "for the test")
    assert used(owner) == 2
    recreate(owner)
    accept(owner)
    assert used(owner) == 0


# releases ----------------------------------------------------------------------------------------


def set_aside(owner: Owner, records: int, ids: str) -> None:
    limit(owner, records)
    send(owner, ids)
    ingest(owner)


@pytest.mark.slow
def test_releases_at_once_publish_each_event_once(owner: Owner) -> None:
    set_aside(owner, 2, "abcdef")
    limit(owner, 5)
    with ThreadPoolExecutor(3) as threads:
        results = list(threads.map(lambda _: replay(owner), range(3)))
    assert sum(result.get("published", 0) for result in results) == 3
    ingest(owner)
    assert (len(landed(owner)), len(aside(owner))) == (5, 1), "no more than there is room for land"
    balanced(owner)


@pytest.mark.slow
def test_a_release_beside_a_running_batch_takes_no_place_of_it(owner: Owner, at: AtPoint) -> None:
    set_aside(owner, 3, "abcde")
    limit(owner, 6)
    send(owner, "fg")
    released = at("settle.before_claim", lambda: replay(owner))
    ingest(owner)
    assert released == [{"published": 1, "rejected": 1}]
    assert landed(owner) == "abcfg"
    ingest(owner)
    assert (sorted(landed(owner)), aside(owner)) == ([*"abcdfg"], ["e"])
    balanced(owner)


@pytest.mark.slow
def test_an_event_that_was_sent_again_meanwhile_is_released_without_another_row(owner: Owner) -> None:
    set_aside(owner, 1, "abc")
    limit(owner, 3)
    send(owner, "b")
    ingest(owner)
    assert replay(owner) == {"duplicate": 1, "published": 1}
    ingest(owner)
    assert (sorted(landed(owner)), aside(owner), used(owner)) == ([*"abc"], [], 3)
    balanced(owner)


# the turn of a month -----------------------------------------------------------------------------


def send_at(owner: Owner, moment: datetime, ids: str) -> None:
    """As if the broker had got them then."""
    producer = kafka.shared_producer()
    for letter in ids:
        ms = int(moment.timestamp() * 1000)
        payload = event(letter).replace(b"2026-11-19", f"{moment:%Y-%m-%d}".encode())
        producer.produce(owner.tenant.topic, payload, partition=0, timestamp=ms)
    assert producer.flush(PATIENCE_S) == 0


@pytest.fixture
def clocks(owner: Owner) -> Iterator[None]:
    """The topic has the times of its producers, as long as the test lasts."""
    _timestamps(owner, "CreateTime")
    yield
    _timestamps(owner, "LogAppendTime")


def _timestamps(owner: Owner, kind: str) -> None:
    entry = ConfigEntry("message.timestamp.type", kind, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, owner.tenant.topic, incremental_configs=[entry])
    for future in kafka.admin().incremental_alter_configs([resource]).values():
        future.result(PATIENCE_S)


@pytest.mark.usefixtures("clocks")
def test_an_event_counts_in_the_month_in_which_the_broker_got_it(owner: Owner) -> None:
    now = datetime.now(UTC)
    begins = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    limit(owner, 2)
    send_at(owner, begins - timedelta(seconds=1), "abc")
    send_at(owner, now, "def")
    ingest(owner)
    assert (landed(owner), aside(owner)) == ("abde", ["c", "f"])
    (detail,) = {letter["detail"] for letter in owner.dead_letters()}
    before = date.fromordinal(begins.toordinal() - 1)
    assert detail.startswith(f"{before:%Y-%m} and {now:%Y-%m} has")
    usage = quotas.find_usage(owner.tenant)
    assert usage.accepted_this_month == 2
    assert [month.accepted for month in usage.months] == [2, 2]
    send_at(owner, begins - timedelta(seconds=1), "g")
    ingest(owner)
    assert aside(owner) == ["c", "f", "g"], "that month stays full"
    assert balanced(owner) == (4, 0, 3)


def test_events_set_aside_are_released_in_the_next_month(owner: Owner) -> None:
    set_aside(owner, 2, "abcd")
    back = "UPDATE {} SET month = (month - interval '1 month')::date"
    with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
        for table in ("usage", "intake"):
            connection.execute(back.format(table))
    assert replay(owner) == {"published": 2}
    ingest(owner)
    assert (sorted(landed(owner)), aside(owner), used(owner)) == ([*"abcd"], [], 2)
