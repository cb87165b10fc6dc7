"""Entities: the log that lands is that of ten lines of plain Python, whatever dies on the way."""

import json
from datetime import date
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from support.entities import (
    SCHEMA,
    SLUG,
    as_model,
    declare,
    entity,
    make_entities,
    model,
    model_of_subset,
    pages,
    versions_of,
)
from support.faults import AtPoint
from support.here import ingest_here
from support.ingest import (
    Owner,
    event,
    ingest,
    make_owner,
    next_attempt,
    plan_batch,
    run_batch,
    start_attempt,
)
from support.lake import spark

from chaos.surroundings import superuser
from pulse_pipelines import registry
from pulse_pipelines.backfill.run import backfill
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.entities.index_runs import Run
from pulse_pipelines.erasure.run import erase
from pulse_pipelines.ingest import attempts
from pulse_pipelines.maintenance.policy import Need
from pulse_pipelines.maintenance.run import run
from pulse_pipelines.monitoring import checks, trace
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.moves import evolve
from pulse_pipelines.query.preview import preview
from pulse_pipelines.query.snapshots import snapshots
from pulse_resources import postgres
from pulse_resources.errors import Conflict, UserError
from pulse_resources.process import faults
from pulse_resources.settings import Settings

Sent = list[tuple[str, dict[str, Any]]]


def send(owner: Owner, sent: Sent) -> None:
    owner.send(*(entity(key, **properties) for key, properties in sent))


def counts(owner: Owner) -> tuple[int, int, int, int]:
    report = reconcile_tenant(owner.tenant)
    assert report.balanced, report.problems
    return report.drained, report.landed, report.duplicates, report.dead_letters


@pytest.fixture
def owner(stack: Settings) -> Owner:
    owner = make_owner()
    make_entities(owner)
    return owner


def test_each_change_adds_a_version_and_an_unchanged_entity_adds_none(owner: Owner) -> None:
    first: Sent = [
        ("DE", {"name": "Germany", "people": 83}),
        ("FR", {"name": "France"}),
        ("DE", {"people": 83, "name": "Germany"}),  # in another order
        ("DE", {"name": "Germany", "people": 84}),
        ("FR", {"_deleted": True}),
    ]
    declare(owner, "name")
    owner.send(event("an event"), *(entity(key, **properties) for key, properties in first), b"not json")
    ingest(owner)
    second: Sent = [
        ("FR", {"_deleted": True}),
        ("DE", {"name": "Germany", "people": 84}),
        ("DE", {"name": "Germany", "people": 83}),
        ("FR", {"name": "France"}),
    ]
    send(owner, second)
    ingest(owner)
    versions = pages(owner, limit=2)
    assert as_model(versions) == model([*first, *second])
    assert [version["_updated"] for version in versions] == [1, 2, 3, 4, 5, 6]
    assert counts(owner) == (11, 1 + 6, 3, 1)
    assert {name: checks.run(name, owner.tenant, SLUG).problems for name in checks.TABLE_CHECKS} == {
        name: [] for name in checks.TABLE_CHECKS
    }
    assert [fate.state for fate in trace.by_id(owner.tenant, "DE").fates] == [trace.FateState.LANDED]
    before = owner.rows(SLUG)
    send(owner, second[2:])  # all of it unchanged: no row, no snapshot
    unchanged_location = location(owner)
    ingest(owner)
    assert (owner.rows(SLUG), location(owner)) == (before, unchanged_location)
    assert counts(owner) == (13, 7, 5, 1)


def location(owner: Owner) -> str:
    return registry.current_table(owner.tenant, SLUG).metadata_location


def test_an_entity_that_is_sent_again_fills_a_column_that_a_move_added(owner: Owner) -> None:
    """Once, and only where it has a value for it."""
    both: Sent = [
        ("DE", {"name": "Germany", "capital": "Berlin"}),
        ("FR", {"name": "France", "capital": None}),
        ("IT", {"name": "Italy"}),
    ]
    send(owner, both)
    ingest_here(owner)
    wider = SCHEMA | {"properties": SCHEMA["properties"] | {"capital": {"type": ["string", "null"]}}}
    uri = registry.publish_schema(owner.tenant, SLUG, json.dumps(wider)).schema_uri
    dataset = evolve.move_dataset(owner.tenant, SLUG, uri)
    assert dataset.later_columns == ("capital",)
    for _ in range(2):
        send(owner, [*both, both[0]])
        ingest_here(owner)
        versions = [(v["_id"], v["_updated"]) for v in pages(owner)]
        assert versions == [("DE", 1), ("FR", 2), ("IT", 3), ("DE", 4)]
    rows = preview(owner.tenant, SLUG, 10).to_pylist()
    capitals = [(row["id"], row["capital"]) for row in rows if row["_updated"] == 4]
    assert capitals == [("DE", "Berlin")]
    send(owner, [("DE", {"_deleted": True}), both[0]])
    ingest_here(owner)
    assert counts(owner) == (13, 6, 7, 0)
    assert not checks.run("latest_equals_log", owner.tenant, SLUG).problems


def test_a_head_from_before_states_had_columns_is_not_a_problem(owner: Owner) -> None:
    """Its state is the content hash alone; the entity becomes a version once more when it is sent again."""
    wider = SCHEMA | {"properties": SCHEMA["properties"] | {"capital": {"type": "string"}}}
    uri = registry.publish_schema(owner.tenant, SLUG, json.dumps(wider)).schema_uri
    evolve.move_dataset(owner.tenant, SLUG, uri)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Dataset, "later_columns", ())
        send(owner, [("DE", {"name": "Germany", "capital": "Berlin"})])
        ingest_here(owner)
    assert not checks.run("latest_equals_log", owner.tenant, SLUG).problems
    for _ in range(2):
        send(owner, [("DE", {"name": "Germany", "capital": "Berlin"})])
        ingest_here(owner)
        assert [v["_updated"] for v in pages(owner)] == [1, 2]


def test_an_entity_that_the_schema_refuses_becomes_a_dead_letter(owner: Owner) -> None:
    send(owner, [("DE", {"name": 5}), ("DE", {"name": "Germany", "_deleted": "yes"}), ("DE", {"extra": 1})])
    ingest(owner)
    assert [letter["reason"] for letter in owner.dead_letters()] == ["schema_violation", "invalid_envelope"]
    assert as_model(pages(owner)) == [("DE", {"extra": 1})]


def test_the_check_sees_a_head_that_is_not_the_log_s_and_a_version_that_is_gone(owner: Owner) -> None:
    send(owner, [("DE", {"name": "Germany"}), ("FR", {"name": "France"})])
    ingest(owner)
    dataset = registry.find_dataset(owner.tenant, SLUG)

    def problems() -> list[str]:
        return checks.run("latest_equals_log", owner.tenant, SLUG).problems

    assert problems() == []
    with superuser() as connection:
        update = "UPDATE entity_heads SET heads = overlay(heads placing %s from 33) WHERE dataset_id = %s"
        connection.execute(update, [b"12345678", dataset.dataset_id])  # of the first state
    assert problems() == [
        "of 2 entities 1 are not known as the log has them, and 1 are known that the log has not"
    ]
    with superuser() as connection:
        connection.execute("UPDATE entity_logs SET updated = 3 WHERE dataset_id = %s", [dataset.dataset_id])
    assert "the log is at 3, 0 of which were erased, and the table has 2 versions" in problems()[0]


def test_a_log_that_was_written_to_meanwhile_is_compared_with_again(owner: Owner, at: AtPoint) -> None:
    send(owner, [("DE", {"name": "Germany"})])
    batch = plan_batch([owner])

    def write() -> None:
        with superuser() as connection:
            update = "UPDATE entity_logs SET updated = updated + 1 WHERE tenant_id = %s"
            connection.execute(update, [owner.tenant.tenant_id])

    at("settle.before_swap", write)
    assert not run_batch(batch, raise_on_error=False)
    assert owner.rows(SLUG) == []
    (again,) = [open_batch for open_batch in attempts.open_batches() if open_batch.batch_id == batch]
    assert "it was written to meanwhile" in again.last_error
    run_batch(batch, again.attempt)
    assert [row["_updated"] for row in owner.rows(SLUG)] == [2]


def test_a_killed_run_leaves_the_log_as_it_was(owner: Owner) -> None:
    sent: Sent = [("DE", {"people": 1}), ("DE", {"people": 2}), ("DE", {"people": 2})]
    send(owner, sent)
    batch = plan_batch([owner])
    start_attempt(batch, PULSE_FAIL_POINT="heads.after_advance").killed()
    assert pages(owner) == []
    run_batch(batch, next_attempt(batch))
    assert as_model(pages(owner)) == model(sent)
    assert counts(owner) == (3, 2, 1, 0)


def test_a_day_of_a_log_is_not_rebuilt(owner: Owner) -> None:
    with pytest.raises(UserError, match="cannot be rebuilt from the raw zone"):
        backfill(spark(), owner.tenant, SLUG, date(2026, 11, 19), parallelism=1)


def test_an_entity_is_erased_as_a_whole_and_readers_start_again(owner: Owner) -> None:
    sent: Sent = [("DE", {"name": "Germany"}), ("FR", {"name": "France"}), ("FR", {"name": "La France"})]
    declare(owner, "name")
    send(owner, [*sent, sent[2]])
    ingest(owner)
    before = generation(owner)
    with pytest.raises(UserError, match="erased whole"):
        erase(owner.tenant, SLUG, "name=France")
    assert erase(owner.tenant, SLUG, "event_id=ES")["removed"]["rows"] == 0
    assert generation(owner) == before, "nothing was erased: readers go on"
    receipt = erase(owner.tenant, SLUG, "event_id=FR")
    assert (receipt["removed"]["rows"], receipt["removed"]["raw_events"]) == (2, 3)
    with pytest.raises(Conflict) as refused:
        pages(owner, f"{before}-3")
    assert as_model(pages(owner, refused.value.where["since"])) == sent[:1]
    with pytest.raises(Conflict):
        pages(owner, f"{before}-3", subset="name=France")
    assert pages(owner, subset="name=France") == pages(owner, subset="name=La France") == []
    assert entries(owner) == 1, "of DE"
    send(owner, [sent[2], ("FR", {"name": "again"})])  # as it was, and another
    ingest(owner)
    assert as_model(pages(owner)) == [sent[0], ("FR", {"name": "again"})]
    for check in ("latest_equals_log", "index_equals_log"):
        assert checks.run(check, owner.tenant, SLUG).problems == []
    assert reconcile_tenant(owner.tenant).balanced


def entries(owner: Owner) -> int:
    """Number of values in a tenant's indexes."""
    with superuser() as connection:
        runs = connection.execute(
            "SELECT first, packed FROM entity_index_runs WHERE tenant_id = %s", [owner.tenant.tenant_id]
        )
        return sum(Run.unpacked(first, packed).entries for first, packed in runs.fetchall())


def test_a_log_is_the_same_after_compaction_and_as_it_was_before(owner: Owner) -> None:
    for sent in ([("DE", {"people": 1}), ("FR", {})], [("DE", {"people": 2}), ("FR", {"_deleted": True})]):
        send(owner, sent)
        ingest(owner)
    before, retained = pages(owner), snapshots(owner.tenant, SLUG)
    dataset = registry.find_dataset(owner.tenant, SLUG)
    merge = Need(owner.tenant, dataset.dataset_id, SLUG, Task.MERGE, "for the test", 1, date(2026, 11, 19))
    assert [done.outcome for done in run(spark, [merge], run_id="test", seconds=600)] == ["done"]
    assert snapshots(owner.tenant, SLUG)[0].operation == "replace"
    assert pages(owner) == before
    assert checks.run("latest_equals_log", owner.tenant, SLUG).problems == []
    first = preview(owner.tenant, SLUG, 10, snapshot_id=retained[-1].snapshot_id)
    assert sorted(first["_updated"].to_pylist()) == [1, 2]


KEYS = st.sampled_from(["a", "b", "c"])
CONTENTS = st.one_of(
    st.just({"_deleted": True}),
    st.fixed_dictionaries({}, optional={"name": st.sampled_from("xy"), "people": st.integers(0, 1)}),
)
SENT = st.lists(st.tuples(KEYS, CONTENTS), max_size=8)
POINTS = (
    "gate.after_lookup", "settle.staged", "settle.before_swap", "settle.after_swap", "heads.before_advance",
    "heads.after_advance", "indexes.before_advance", "indexes.after_advance",
    "settle.before_commit", "settle.after_commit",
)  # fmt: skip
"""Where an attempt ends, and the next one takes over."""


class Died(Exception):  # noqa: N818 - reads as the fact it states
    """The attempt ends here."""


@settings(max_examples=2, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(
    batches=st.lists(st.tuples(SENT, st.none() | st.sampled_from(POINTS)), min_size=2, max_size=4),
    late=st.integers(0, 2),
)
def test_any_sequence_gives_the_log_of_the_model(
    stack: Settings, batches: list[tuple[Sent, str | None]], late: int
) -> None:
    owner = make_owner()
    make_entities(owner)
    everything: Sent = []
    read: list[dict[str, Any]] = []
    of_subset: list[dict[str, Any]] = []
    since = None
    for number, (sent, point) in enumerate(batches):
        if number == late:
            declare(owner, "name")
        everything += sent
        if sent:
            send(owner, sent)
            land(plan_batch([owner]), point)
        more = pages(owner, since, limit=3)
        read += more
        if number >= late:
            of_subset += pages(owner, since if of_subset else None, limit=2, subset="name=x")
        since = f"{generation(owner)}-{len(read)}"
    assert as_model(read) == as_model(pages(owner)) == model(everything)
    if late < len(batches):
        assert versions_of(of_subset) == model_of_subset(read, "x")
        assert checks.run("index_equals_log", owner.tenant, SLUG).problems == []
    assert counts(owner)[1:3] == (len(read), len(everything) - len(read))


def land(batch: str, point: str | None) -> None:
    """Run a batch, whose first attempt ends at a point if one is given."""
    if point is None:
        run_batch(batch)
    elif not attempt(batch, point):
        open_attempt = next(
            (open_batch for open_batch in attempts.open_batches() if open_batch.batch_id == batch), None
        )
        if open_attempt is not None:
            run_batch(batch, open_attempt.attempt)


def attempt(batch: str, point: str) -> bool:
    """Whether an attempt came through though it was to die at a point."""

    def die() -> None:
        raise Died(point)

    with faults.at(point, die):
        return run_batch(batch, raise_on_error=False)


def generation(owner: Owner) -> int:
    with postgres.tenant_transaction("pulse_api", owner.tenant.tenant_id) as connection:
        ((number,),) = connection.execute("SELECT generation FROM entity_logs").fetchall()
    return int(number)
