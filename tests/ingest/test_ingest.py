"""The path of an event, end to end, one batch at a time."""

import json
from collections.abc import Callable
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.faults import AtPoint
from support.headers import send_named
from support.ingest import Owner, event, ingest, plan_batch, run_batch
from support.lake import location, row, table, with_file

from chaos import inside
from chaos.surroundings import with_settings
from chaos.waiting import PATIENCE_S, wait
from pulse_pipelines import registry
from pulse_pipelines.dead_letters import Filter, replay
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.tables import parquet_files
from pulse_resources import iceberg, kafka, postgres
from pulse_resources.errors import Transient
from pulse_resources.settings import load_settings


def test_a_valid_event_becomes_one_typed_row(owner: Owner) -> None:
    owner.send(event("a", amount=2.5, count=3, active=True, signup_at="2026-11-01T00:00:00+02:00", other=1))
    batch = ingest(owner)
    (row,) = owner.rows()
    assert row["id"] == "a"
    assert row["tenant_id"] == str(owner.tenant.tenant_id)
    assert (row["country"], row["amount"], row["count"], row["active"]) == ("DE", 2.5, 3, True)
    assert row["signup_at"].isoformat() == "2026-10-31T22:00:00+00:00"
    assert row["_extra"] == '{"other":1}'
    assert (row["_batch"], row["_kafka_partition"], row["_offset"]) == (batch, 0, 0)


def test_header_names_that_are_not_text_do_not_stop_ingestion(owner: Owner) -> None:
    """So many that the code which reads them is hot: there Python does not check what its calls return."""
    names = [b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf0\x9f"] * 50
    send_named(owner, *((event(f"a-{n}"), name) for n, name in enumerate(names)))
    owner.send(event("b"))
    ingest(owner)
    assert len(owner.rows()) == len(names) + 1


def test_the_same_event_in_two_batches_lands_once(owner: Owner) -> None:
    owner.send(event("a", count=1))
    ingest(owner)
    owner.send(event("a", count=2), event("b"))
    ingest(owner)
    assert [(row["id"], row["count"]) for row in owner.rows()] == [("a", 1), ("b", None)]
    report = reconcile_tenant(owner.tenant)
    assert (report.landed, report.duplicates, report.balanced) == (2, 1, True)


def test_the_first_of_copies_in_one_batch_wins(owner: Owner) -> None:
    owner.send(*(event("a", count=n) for n in range(5)), event("b"))
    ingest(owner)
    assert [(row["id"], row["count"]) for row in owner.rows()] == [("a", 0), ("b", None)]
    assert reconcile_tenant(owner.tenant).duplicates == 4


def test_a_batch_of_nothing_but_copies_leaves_the_table_as_it_is(owner: Owner) -> None:
    owner.send(event("a"))
    ingest(owner)
    before = owner.rows()
    owner.send(event("a"), event("a"))
    ingest(owner)
    assert owner.rows() == before
    assert reconcile_tenant(owner.tenant).balanced


def test_the_same_event_of_two_tenants_lands_for_each(new_owner: Callable[[], Owner]) -> None:
    one, two = new_owner(), new_owner()
    one.send(event("a"))
    two.send(event("a"))
    ingest(one, two)
    assert [row["id"] for row in one.rows()] == ["a"]
    assert [row["id"] for row in two.rows()] == ["a"]


def test_order_is_gate_land_settle_publish(owner: Owner) -> None:
    owner.send(event("a"), b"not json")
    result = inside.attempt(plan_batch([owner]), 1, raise_on_error=True)
    started = [e.step_key for e in result.all_events if e.event_type_value == "STEP_START"]
    assert started == [
        *("drain_and_conform", "dedup_gate", "land", "settle"),
        *("send_deletions", "route_dead_letters", "report"),
    ]


def _all_committed(topic: str) -> bool:
    """Whether no transaction is open: the broker writes a marker after it has answered."""
    everything = {"group.id": "pulse-ingest", "isolation.level": "read_uncommitted"}
    with closing(Consumer(load_settings().kafka.client() | everything)) as client:
        _, end = client.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S)
    return kafka.offsets([(topic, 0)], "latest")[topic, 0] == end


def test_transactions_leave_offsets_without_messages_which_are_accounted_for(owner: Owner) -> None:
    producer = Producer(load_settings().kafka.client() | {"transactional.id": owner.tenant.topic})
    producer.init_transactions(PATIENCE_S)
    for name, end in (("a", producer.commit_transaction), ("b", producer.abort_transaction)) * 2:
        producer.begin_transaction()
        producer.produce(owner.tenant.topic, event(name + end.__name__), partition=0)
        end(PATIENCE_S)
        wait(lambda: _all_committed(owner.tenant.topic), "the broker does not write the marker")
    owner.send(event("last"))
    producer.begin_transaction()
    producer.produce(owner.tenant.topic, event("c"), partition=0)
    producer.commit_transaction(PATIENCE_S)  # its marker is the last offset of the topic
    wait(lambda: _all_committed(owner.tenant.topic), "the broker does not write the last marker")
    ingest(owner)
    assert [row["id"] for row in owner.rows()] == ["acommit_transaction", "last", "c"]
    report = reconcile_tenant(owner.tenant)
    assert (report.drained, report.landed, report.duplicates) == (4, 3, 1)
    assert report.balanced, report.problems


def test_events_of_a_dataset_without_a_table_become_dead_letters(
    new_owner: Callable[[], Owner],
) -> None:
    broken, healthy = new_owner(), new_owner()
    with postgres.transaction("pulse_catalog") as connection:
        connection.execute(
            "DELETE FROM iceberg_catalog.iceberg_tables WHERE table_namespace = %s",
            [broken.tenant.namespace],
        )
    payload = event("a")
    broken.send(payload, event("a"))
    healthy.send(event("a"))
    ingest(broken, healthy)
    assert [row["id"] for row in healthy.rows()] == ["a"]
    (letter,) = broken.dead_letters()
    assert (letter["reason"], bytes(letter["payload"])) == ("landing_failed", payload)
    assert letter["published_at"] is not None
    assert broken.claims() == 0, "a dead letter must be free to be replayed"
    report = reconcile_tenant(broken.tenant)
    assert (report.landed, report.duplicates, report.dead_letters, report.balanced) == (0, 1, 1, True)


@pytest.mark.parametrize(
    "rows", [parquet_files.SMALL_FILE_ROWS, parquet_files.SMALL_FILE_ROWS + 1], ids=["known", "read"]
)
@pytest.mark.sample(1)
def test_copies_of_landed_events_are_taken_out_of_small_and_large_files(owner: Owner, rows: int) -> None:
    owner.send(*(event(f"e{n}") for n in range(0, rows, 2)))
    ingest(owner)
    owner.send(*(event(f"e{n}") for n in range(rows)))
    ingest(owner)
    assert sorted(row["id"] for row in owner.rows()) == sorted(f"e{n}" for n in range(rows))
    owner.send(*(event(f"e{n}") for n in range(rows)))
    ingest(owner)
    report = reconcile_tenant(owner.tenant)
    assert (report.landed, report.duplicates) == (rows, rows + (rows + 1) // 2)
    assert report.balanced, report.problems


DEAR = {"type": "object", "properties": {"a": {"items": {"not": {"enum": [n + 0.5 for n in range(11)]}}}}}
TINY = [1e-300] * 150
"""Compared with each of the enum: some 30 ms."""


def test_expensive_events_beyond_the_budget_of_a_batch_land_by_a_replay(
    new_owner: Callable[[], Owner], at: AtPoint
) -> None:
    """Each attempt selects these events again: the selection of a failed attempt is forgotten."""

    def fail() -> None:
        raise Transient("for the test")

    at("after.land", fail)
    dear, neighbour = new_owner(), new_owner()
    schema = registry.publish_schema(dear.tenant, "dear", json.dumps(DEAR))
    registry.create_dataset(dear.tenant, "dear", schema.schema_uri)
    sent = {f"d{number:02}" for number in range(20)}
    dear.send(*(event(name, dataset="dear", a=TINY) for name in sorted(sent)), event("cheap"))
    neighbour.send(event("a"), event("b"))
    with with_settings(INGEST__JUDGE_BATCH_SECONDS=0.1):
        batch = plan_batch([dear, neighbour])
        assert not run_batch(batch, raise_on_error=False)
        run_batch(batch, 2)
    assert [row["id"] for row in neighbour.rows()] == ["a", "b"]
    assert [row["id"] for row in dear.rows()] == ["cheap"]
    landed = {row["id"] for row in dear.rows("dear")}
    letters = {json.loads(letter["payload"])["event_id"]: letter["reason"] for letter in dear.dead_letters()}
    assert landed
    assert landed | letters.keys() == sent
    assert len(landed) + len(letters) == len(sent)
    assert set(letters.values()) == {"too_expensive"}
    assert {verdict.outcome.value for verdict in replay(dear.tenant, Filter()).verdicts} == {"published"}
    ingest(dear)
    assert {row["id"] for row in dear.rows("dear")} == sent
    for owner in (dear, neighbour):
        report = reconcile_tenant(owner.tenant)
        assert report.balanced, report.problems


def test_rows_are_staged_although_old_metadata_was_removed(
    owner: Owner,
) -> None:
    """An erasure removes old metadata at once; a writer that read it before stages on the current one."""
    owner.send(event("a"))
    ingest(owner)
    staged = with_file(owner, row(owner, id="b"), base=f"{location(owner)}.removed")
    loaded = iceberg.load_table((owner.tenant.namespace, "orders"), staged)
    assert loaded.current_snapshot().parent_snapshot_id == table(owner).metadata.current_snapshot_id
