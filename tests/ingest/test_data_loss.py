"""A loss that an operator accepts: recorded, never silent, and what follows lands exactly once."""

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from support.ingest import Owner, event, ingest, plan_batch, run_batch, start_attempt
from support.topics import accept, delete_topic, recreate
from typer.testing import CliRunner

from chaos.surroundings import with_settings
from chaos.waiting import PATIENCE_S
from pulse_api.cli import app
from pulse_pipelines.ingest import attempts, data_loss, plan as planning
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_resources import kafka, postgres
from pulse_resources.errors import Conflict, Transient

LOG = "SELECT partition, position, lost FROM accepted_losses ORDER BY accepted_at, partition"


def remove_before(owner: Owner, offset: int) -> None:
    """What retention does."""
    start = TopicPartition(owner.tenant.topic, 0, offset)
    for future in kafka.admin().delete_records([start]).values():
        future.result(PATIENCE_S)


def ids(owner: Owner) -> list[str]:
    return [row["id"] for row in owner.rows()]


def log(owner: Owner) -> list[tuple[int, int, int | None]]:
    with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
        return connection.execute(LOG).fetchall()


def problems(owner: Owner) -> list[str]:
    return [a.problem for a in planning.ingest_status().alarms if a.tenant == owner.tenant]


def assert_goes_on(owner: Owner, *expected: str) -> None:
    """What waits lands, and every position is accounted for."""
    assert problems(owner) == []
    ingest(owner)
    assert ids(owner) == list(expected)
    assert reconcile_tenant(owner.tenant).problems == []


def test_nothing_is_accepted_where_nothing_is_lost(owner: Owner) -> None:
    owner.send(event("a"))
    with pytest.raises(Conflict, match="nothing is lost"):
        accept(owner)
    assert_goes_on(owner, "a")


def test_events_that_retention_removed_are_accepted_as_lost(owner: Owner) -> None:
    owner.send(event("a"))
    ingest(owner)
    owner.send(event("b"), event("c"), event("d"))
    remove_before(owner, 3)
    (loss,) = data_loss.find_losses(owner.tenant)
    assert (loss.position, loss.lost) == (1, 2)
    accept(owner)
    assert log(owner) == [(0, 1, 2)]
    assert_goes_on(owner, "a", "d")
    owner.send(event("b"))
    assert_goes_on(owner, "a", "d", "b")


@pytest.mark.parametrize("waiting", [1, 4], ids=["shorter", "longer"])
@pytest.mark.sample(1)
def test_offsets_of_a_recreated_topic_continue_those_of_the_old_topic(owner: Owner, waiting: int) -> None:
    owner.send(event("a"), event("b"), b"not JSON")
    ingest(owner)
    recreate(owner)
    owner.send(event("a"), *(event(f"new {n}") for n in range(waiting)))
    accept(owner)
    expected = ["a", "b", *(f"new {n}" for n in range(waiting))]
    assert_goes_on(owner, *expected)
    assert [row["_offset"] for row in owner.rows()] == [0, 1, *range(4, 4 + waiting)]
    report = reconcile_tenant(owner.tenant)
    assert (report.drained, report.duplicates, report.dead_letters) == (4 + waiting, 1, 1)
    recreate(owner)
    owner.send(event("again"))
    accept(owner)
    assert_goes_on(owner, *expected, "again")
    assert log(owner) == [(0, 3, None), (0, 4 + waiting, None)]


def test_an_accepted_loss_recreates_a_deleted_topic(owner: Owner) -> None:
    owner.send(event("a"))
    ingest(owner)
    delete_topic(owner)
    assert {loss.problem for loss in data_loss.find_losses(owner.tenant)} == {"the topic is gone"}
    accept(owner)
    owner.send(event("b"))
    assert_goes_on(owner, "a", "b")


def test_a_topic_recreated_under_a_planned_batch_is_noticed_by_the_drain(
    new_owner: Callable[[], Owner],
) -> None:
    """The new topic is longer: its messages must not be taken for those that were planned."""
    owner, other = new_owner(), new_owner()
    owner.send(event("a"), event("b"))
    other.send(event("a"))
    batch = plan_batch([owner, other])
    recreate(owner)
    owner.send(*(event(f"new {n}") for n in range(5)))
    assert not run_batch(batch, raise_on_error=False)
    assert (ids(owner), ids(other)) == ([], ["a"])
    (still,) = [b for b in attempts.open_batches() if b.batch_id == batch]
    assert "the topic was recreated" in (still.last_error or "")
    accept(owner)
    assert batch not in {b.batch_id for b in attempts.open_batches()}
    assert_goes_on(owner, *(f"new {n}" for n in range(5)))


def test_events_with_ids_of_lost_events_land(owner: Owner) -> None:
    """An attempt had them at the gate and died; then the topic was recreated."""
    owner.send(event("a"), event("b"))
    batch = plan_batch([owner])
    start_attempt(batch, PULSE_FAIL_POINT="after.dedup_gate").killed()
    recreate(owner)
    owner.send(event("x"), event("a"), event("b"))
    accept(owner)
    assert owner.claims() == 0
    assert_goes_on(owner, "x", "a", "b")


def test_a_batch_that_a_run_owns_is_left_alone(owner: Owner) -> None:
    owner.send(event("a"), event("b"))
    batch = plan_batch([owner])
    remove_before(owner, 1)
    with attempts.hold_attempt(batch, 1), pytest.raises(Transient, match="a run works on a batch"):
        accept(owner)
    accept(owner)
    assert_goes_on(owner, "b")


def test_the_command_asks_for_confirmation_and_names_the_lost_offsets(owner: Owner) -> None:
    runner, words = CliRunner(), ["tenant", "accept-loss", owner.tenant.slug]
    assert "Nothing is lost" in runner.invoke(app, words).output
    owner.send(event("a"), event("b"))
    remove_before(owner, 1)
    preview = runner.invoke(app, [*words, "--dry-run"])
    assert preview.exit_code == 0
    assert "retention removed the offsets 0 to 1" in preview.output
    assert runner.invoke(app, words).exit_code == 2
    assert log(owner) == []
    assert runner.invoke(app, [*words, "--yes"]).exit_code == 0
    assert log(owner) == [(0, 0, 1)]
    assert runner.invoke(app, words).exit_code == 0
    assert_goes_on(owner, "b")


def test_a_batch_that_settles_after_the_search_is_not_undone(owner: Owner) -> None:
    owner.send(event("a"), event("b"))
    running = start_attempt(plan_batch([owner]), PULSE_FAIL_POINT="stop:after.land")
    running.stopped()
    recreate(owner)
    losses = data_loss.find_losses(owner.tenant)
    running.goes_on()
    assert ids(owner) == ["a", "b"]
    with pytest.raises(Conflict, match="meanwhile"):
        data_loss.accept(owner.tenant, losses)
    assert log(owner) == []
    accept(owner)
    owner.send(event("a"), event("c"))
    assert_goes_on(owner, "a", "b", "c")


def test_a_topic_that_comes_back_with_fewer_partitions(owner: Owner) -> None:
    producer = kafka.shared_producer()
    for partition in (0, 1):
        producer.produce(owner.tenant.topic, event(f"old {partition}"), partition=partition)
    assert producer.flush(PATIENCE_S) == 0
    ingest(owner)
    delete_topic(owner)
    with with_settings(KAFKA__PARTITIONS_PER_TOPIC=1):
        kafka.create_topics([owner.tenant.topic])
    owner.send(event("new"))
    assert any("1 partition" in problem for problem in problems(owner))
    accept(owner)
    assert kafka.partition_counts()[owner.tenant.topic] == 2
    producer.produce(owner.tenant.topic, event("second"), partition=1)
    assert producer.flush(PATIENCE_S) == 0
    assert_goes_on(owner, "old 0", "new", "old 1", "second")


def test_the_same_ranges_are_planned_again_after_a_loss_beside_them(owner: Owner) -> None:
    """A batch is named by its ranges: one that was taken apart must not stand in the way of its like."""
    owner.send(event("a"))
    batch = plan_batch([owner])
    producer = kafka.shared_producer()
    producer.produce(owner.tenant.topic, event("gone"), partition=1)
    assert producer.flush(PATIENCE_S) == 0
    for future in kafka.admin().delete_records([TopicPartition(owner.tenant.topic, 1, 1)]).values():
        future.result(PATIENCE_S)
    accept(owner)
    assert plan_batch([owner]) == batch
    (again,) = [b for b in attempts.open_batches() if b.batch_id == batch]
    assert again.attempt == 2
    run_batch(batch, 2)
    assert ids(owner) == ["a"]
    assert reconcile_tenant(owner.tenant).problems == []


def test_an_error_of_the_kafka_client_is_shown_without_its_code() -> None:
    error = KafkaError(KafkaError._NOENT, "No leaders found")
    assert kafka.error_text(KafkaException(error)) == kafka.error_text(error) == "No leaders found"
    assert kafka.error_text("time-out") == "time-out"
