"""Planning against a real broker: what is due, what is new, and what must never be skipped silently."""

import time
from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

import dagster as dg
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions
from support.ingest import Owner, event, ingest, plan_batch

from chaos.surroundings import superuser, with_settings
from chaos.waiting import PATIENCE_S
from pulse_pipelines.defs.ingest.sensor import LagCursor, ingest_lag
from pulse_pipelines.domain.batch import plan as choose_ranges
from pulse_pipelines.ingest import attempts, plan as planning
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_resources import kafka


def alarms_of(owner: Owner) -> list[str]:
    return [alarm.problem for alarm in planning.ingest_status().alarms if alarm.tenant == owner.tenant]


def backlog_of(owner: Owner) -> int:
    return sum(b.weight for b in planning.ingest_status().backlogs if b.tenant_id == owner.tenant.tenant_id)


def test_the_backlog_is_empty_while_a_tenant_has_an_open_batch(owner: Owner) -> None:
    owner.send(event("a"), event("b"))
    assert backlog_of(owner) == 2
    plan_batch([owner])
    owner.send(event("c"))
    assert backlog_of(owner) == 0, "a tenant has one open batch at a time"


def test_events_wait_from_when_they_came_even_while_a_batch_is_open(owner: Owner) -> None:
    def since(last: LagCursor | None) -> float | None:
        with dg.DagsterInstance.ephemeral() as instance:
            cursor = last and last.cursor()
            result = ingest_lag(dg.build_sensor_context(instance=instance, cursor=cursor))
        assert isinstance(result, dg.SensorResult)
        next_cursor = LagCursor.of(result.cursor, time.time())
        assert next_cursor.evaluated_at == pytest.approx(time.time(), abs=10)
        return next_cursor.waiting.get(owner.tenant.tenant_id)

    with with_settings(INGEST__FLUSH_SECONDS=10_000):
        owner.send(event("a"))
        plan_batch([owner])
        assert since(None) is None, "what a batch has taken does not wait"
        owner.send(event("b"))
        assert since(None) == pytest.approx(time.time(), abs=10), "the first look of all"
        before = time.time() - 60
        assert since(LagCursor(before, {})) == before, "it may have come right after the last look"
        assert since(LagCursor(before, {owner.tenant.tenant_id: 17.0})) == 17.0


def test_the_cursor_of_lag_is_read_again_and_never_lies_in_the_future() -> None:
    tenant = uuid4()
    assert LagCursor.of(LagCursor(5.0, {tenant: 3.0}).cursor(), 10.0) == LagCursor(5.0, {tenant: 3.0})
    assert LagCursor.of(LagCursor(5.0, {tenant: 3.0}).cursor(), 2.0) == LagCursor(2.0, {tenant: 2.0})
    assert LagCursor.of(None, 10.0) == LagCursor(10.0, {})


def test_two_planners_cannot_take_the_same_offsets(owner: Owner) -> None:
    owner.send(event("a"))
    status = planning.ingest_status()
    backlogs = [b for b in status.backlogs if b.tenant_id == owner.tenant.tenant_id]
    ranges = choose_ranges(backlogs, 10)
    owner.send(event("b"))
    assert planning.plan_batch(ranges, status) is not None
    longer = planning.ingest_status()
    assert not [b for b in longer.backlogs if b.tenant_id == owner.tenant.tenant_id]
    late = [type(r)(r.tenant_id, r.partition, r.start, r.end + 1) for r in ranges]
    assert planning.plan_batch(late, status) is None


def test_retention_that_overtook_the_position_is_an_alarm_and_stops_that_tenant_only(
    new_owner: Callable[[], Owner],
) -> None:
    behind, other = new_owner(), new_owner()
    behind.send(event("a"), event("b"), event("c"))
    other.send(event("a"))
    start = TopicPartition(behind.tenant.topic, 0, 2)
    for future in kafka.admin().delete_records([start]).values():
        future.result(PATIENCE_S)
    (problem,) = alarms_of(behind)
    assert "retention removed the offsets 0 to 2" in problem
    assert (backlog_of(behind), backlog_of(other)) == (0, 1)


@pytest.mark.parametrize("events", [1, 3], ids=["shorter", "longer"])
def test_a_recreated_topic_is_an_alarm_also_when_it_is_longer_than_before(owner: Owner, events: int) -> None:
    owner.send(event("a"), event("b"))
    ingest(owner)
    for future in kafka.admin().delete_topics([owner.tenant.topic]).values():
        future.result(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while owner.tenant.topic in kafka.partition_counts() and time.monotonic() < deadline:
        time.sleep(0.2)
    kafka.create_topics([owner.tenant.topic])
    owner.send(*(event(f"new{n}") for n in range(events)))
    problems = alarms_of(owner)
    assert any("recreated" in problem for problem in problems), problems
    assert backlog_of(owner) == 0


def test_partitions_that_an_operator_adds_are_ingested(owner: Owner) -> None:
    owner.send(event("a"))
    ingest(owner)
    added = NewPartitions(owner.tenant.topic, 4)
    for future in kafka.admin().create_partitions([added]).values():
        future.result(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while kafka.partition_counts()[owner.tenant.topic] < 4 and time.monotonic() < deadline:
        time.sleep(0.2)
    producer = kafka.producer()  # whose view of the topic is fresh
    producer.produce(owner.tenant.topic, event("b"), partition=3)
    assert producer.flush(PATIENCE_S) == 0
    ingest(owner)
    assert [(row["id"], row["_kafka_partition"]) for row in owner.rows()] == [("a", 0), ("b", 3)]
    assert reconcile_tenant(owner.tenant).balanced


def test_a_tenant_whose_ledger_is_ahead_is_an_alarm_and_the_others_are_planned(
    new_owner: Callable[[], Owner],
) -> None:
    ahead, other = new_owner(), new_owner()
    ahead.send(event("a"))
    ingest(ahead)
    for sender in (ahead, other):
        sender.send(event("b"))
    status = planning.ingest_status()
    both = [b for b in status.backlogs if b.tenant_id in (ahead.tenant.tenant_id, other.tenant.tenant_id)]
    with superuser() as connection:
        rewind = "UPDATE ingest_positions SET settled_offset = 0, planned_offset = 0 WHERE tenant_id = %s"
        connection.execute(rewind, [ahead.tenant.tenant_id])
    stale = [replace(r, start=0) for b in both for r in b.ranges if b.tenant_id == ahead.tenant.tenant_id]
    fresh = [r for b in both for r in b.ranges if b.tenant_id == other.tenant.tenant_id]
    batch = planning.plan_batch([*stale, *fresh], status)
    assert batch is not None
    assert attempts.waiting_in(batch) == {other.tenant.slug: 1}
    assert alarms_of(ahead) == ["the ledger has a range at 0, and the position is 0"]
    assert backlog_of(ahead) == 0


def test_a_batch_is_planned_without_a_tenant_whose_position_moved(new_owner: Callable[[], Owner]) -> None:
    moved, other = new_owner(), new_owner()
    for sender in (moved, other):
        sender.send(event("a"))
    status = planning.ingest_status()
    ranges = [r for b in status.backlogs for r in b.ranges]
    mine = [r for r in ranges if r.tenant_id in (moved.tenant.tenant_id, other.tenant.tenant_id)]
    first = planning.plan_batch([r for r in mine if r.tenant_id == moved.tenant.tenant_id], status)
    second = planning.plan_batch(mine, status)
    assert first is not None
    assert second is not None
    assert attempts.waiting_in(first) == {moved.tenant.slug: 1}
    assert attempts.waiting_in(second) == {other.tenant.slug: 1}


def test_a_status_of_some_tenants_is_that_of_all_without_the_others(new_owner: Callable[[], Owner]) -> None:
    one, other = new_owner(), new_owner()
    for owner in (one, other):
        owner.send(event("a"))
    everything, status = planning.ingest_status(), planning.ingest_status([one.tenant.tenant_id])
    assert status.backlogs == tuple(b for b in everything.backlogs if b.tenant_id == one.tenant.tenant_id)
    assert status.lag == {one.tenant.tenant_id: 1}
    assert status.tenants == {one.tenant.tenant_id: one.tenant}
    assert planning.ingest_status([]).backlogs == ()
