"""Claims: an id belongs to the row that landed, and to nothing that an attempt found before it died."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from confluent_kafka import TopicPartition
from support.claims import orders, runs
from support.ingest import (
    SCHEMA,
    Owner,
    event,
    ingest,
    next_attempt,
    plan_batch,
    run_batch,
    start_attempt,
)
from support.topics import accept, follow, recreate

from chaos.surroundings import superuser
from chaos.waiting import PATIENCE_S
from pulse_pipelines import dead_letters
from pulse_pipelines.claims import claim_runs
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_resources import kafka
from pulse_resources.errors import Transient
from pulse_resources.settings import load_settings

STOPPED = {"PULSE_FAIL_POINT": "after.dedup_gate"}


def of_version(event_id: str, version: int) -> bytes:
    return json.dumps(json.loads(event(event_id)) | {"schema_version": version}).encode()


def die_after_the_gate(batch: str) -> int:
    """Attempt 1 dies once the gate has judged; returns the attempt that follows."""
    start_attempt(batch, **STOPPED).killed()
    return next_attempt(batch)


def send(owner: Owner, partition: int, *payloads: bytes) -> None:
    producer = kafka.shared_producer()
    for payload in payloads:
        producer.produce(owner.tenant.topic, payload, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def ids(owner: Owner) -> list[str]:
    return [row["id"] for row in owner.rows()]


@pytest.mark.slow
def test_an_attempt_that_died_has_claimed_nothing(owner: Owner) -> None:
    owner.send(event("a"), event("a"), b"not JSON")
    batch = plan_batch([owner])
    attempt = die_after_the_gate(batch)
    assert owner.claims() == 0
    run_batch(batch, attempt)
    assert (ids(owner), owner.claims()) == (["a"], 1)


def test_a_valid_event_with_the_id_of_a_dead_letter_lands(owner: Owner) -> None:
    """The first was valid when an attempt met it; by the next, only the second is."""
    owner.send(event("x", coupon=5), event("x", coupon="SPRING"))
    batch = plan_batch([owner])
    attempt = die_after_the_gate(batch)
    follow(owner, SCHEMA | {"properties": SCHEMA["properties"] | {"coupon": {"type": "string"}}})
    run_batch(batch, attempt)
    assert [letter["reason"] for letter in owner.dead_letters()] == ["schema_violation"]
    assert ids(owner) == ["x"]
    assert reconcile_tenant(owner.tenant).balanced


@pytest.mark.slow
def test_an_accepted_loss_of_one_partition_loses_nothing_of_another(owner: Owner) -> None:
    """An attempt refuses X at partition 0 and finds X at partition 1; then only the former is valid, too."""
    send(owner, 0, event("gone"), of_version("x", 2))
    send(owner, 1, event("x"), event("b"), event("c"))  # so many that one task gets both
    batch = plan_batch([owner])
    die_after_the_gate(batch)
    follow(owner, SCHEMA | {"title": "the next"})
    start = TopicPartition(owner.tenant.topic, 0, 1)
    for future in kafka.admin().delete_records([start]).values():
        future.result(PATIENCE_S)
    accept(owner)
    ingest(owner)
    assert ids(owner) == ["x", "b", "c"]
    report = reconcile_tenant(owner.tenant)
    assert (report.landed, report.duplicates, report.balanced) == (3, 1, True)


@pytest.mark.slow
def test_a_replay_closes_no_letter_for_an_event_that_never_landed(owner: Owner) -> None:
    """A run saw an event with the letter's id and died; then its topic was lost."""
    owner.send(of_version("x", 2))
    ingest(owner)
    follow(owner, SCHEMA | {"title": "the next"})
    owner.send(event("x"))
    die_after_the_gate(plan_batch([owner]))
    recreate(owner)
    done = dead_letters.replay(owner.tenant, dead_letters.Filter())
    assert done.counts == {dead_letters.DeadLetterOutcome.PUBLISHED: 1}
    accept(owner)
    ingest(owner)
    assert ids(owner) == ["x"]


def test_a_gate_and_rows_that_disagree_settle_nothing(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id that the gate lets through is lost on the way: its row would land without a claim."""
    fresh = claim_runs.fresh

    def one_lost(*arguments: Any) -> claim_runs.Fresh:
        ids_added = fresh(*arguments)
        return replace(ids_added, ids=ids_added.ids[np.arange(len(ids_added.ids) - 1)])

    owner.send(event("a"), event("b"))
    batch = plan_batch([owner])
    with monkeypatch.context() as planted:
        planted.setattr(claim_runs, "fresh", one_lost)
        with pytest.raises(Transient, match="the gate let 1 ids through, and 2 rows land"):
            run_batch(batch)
    assert (ids(owner), owner.claims()) == ([], 0)
    run_batch(batch, next_attempt(batch))
    assert (ids(owner), owner.claims()) == (["a", "b"], 2)


def test_the_gate_keeps_files_of_the_runs_that_there_are(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs are merged, batch by batch; with each, files of those that were there before it are left."""
    monkeypatch.setattr(claim_runs, "RETAINED_IDS", 0)  # all are large enough for a file
    folder = load_settings().home / "claims" / str(orders(owner).dataset_id)
    sent = []
    for n in range(4):
        before = {str(run.run) for run in runs(owner)}
        sent.append(f"e{n}")
        owner.send(*map(event, sent))
        ingest(owner)
        assert {path.name for path in folder.glob("*")} == before
    assert ids(owner) == sent


def test_an_attempt_drains_again_after_postgres_emptied_its_staging_tables(owner: Owner) -> None:
    """Staging tables are unlogged: a crash leaves them without rows."""
    owner.send(event("a"), b"not JSON")
    batch = plan_batch([owner])
    running = start_attempt(batch, PULSE_FAIL_POINT="stop:after.land")
    running.stopped()
    with superuser() as connection:
        connection.execute(f"TRUNCATE staging.dead_letters_{batch}_1")
    running.goes_on()
    assert ids(owner) == []
    run_batch(batch, next_attempt(batch))
    assert (ids(owner), owner.claims()) == (["a"], 1)
    assert [letter["reason"] for letter in owner.dead_letters()] == ["undecodable"]
    assert reconcile_tenant(owner.tenant).balanced
