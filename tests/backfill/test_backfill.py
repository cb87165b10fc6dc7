"""Backfill: the same rows come out, or more, whatever else happens to the table."""

import json
import threading
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from pyiceberg.table import Table
from support.backfill import balanced, move, rebuilt
from support.forked import forked
from support.here import ingest_here as ingest
from support.ingest import Owner, event, plan_batch, start_attempt
from support.lake import changed, harmed, location, table

from chaos.waiting import PATIENCE_S
from pulse_pipelines import registry
from pulse_pipelines.ask.record import freshness
from pulse_pipelines.backfill import Backfilled, run as runs
from pulse_pipelines.backfill.plan import DayPlan, plan_day
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.query.preview import preview
from pulse_pipelines.tables import leases
from pulse_resources import iceberg, postgres
from pulse_resources.errors import NotFound, Terminal

EMPTY_DAY = date(2026, 11, 1)


def unversioned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"schema_version": None} for row in rows]


def drop_day(owner: Owner) -> None:
    """Delete the day by hand."""
    commit(owner, lambda loaded: loaded.delete("timestamp >= '2026-11-19T00:00:00+00:00'"))


def commit(owner: Owner, change: Callable[[Table], object]) -> None:
    """Change the table as another engine would."""
    name, before = (owner.tenant.namespace, "orders"), location(owner)
    after = changed(owner, change)
    with postgres.transaction("pulse_catalog") as connection:
        assert iceberg.swap(connection, name, before, after)


def test_a_repeated_backfill_gives_the_same_rows(owner: Owner) -> None:
    late = event("late").replace(b"2026-11-19T10", b"2026-11-18T23")
    owner.send(*(event(f"e{n}", count=n, extra=n, address={"zip": "1", "x": n}) for n in range(20)), late)
    ingest(owner)
    owner.send(
        *(event(f"e{n}", count=-1) for n in range(10)), event("last"), b"no json", event("bad", count="x")
    )
    ingest(owner)
    before, counts = owner.rows(), balanced(owner)
    landed = freshness(owner.tenant, ["orders"])
    for _ in range(2):
        done = rebuilt(owner)
        assert (done.rows, done.dead_letters_landed, done.files_after > 0) == (21, 0, True)
        assert owner.rows() == before
        assert balanced(owner) == counts == (22, 10, 2)
        assert freshness(owner.tenant, ["orders"]) == landed, "no event has landed since"
    assert rebuilt(owner, date(2026, 11, 18)).rows == 1, "a late event is of its own day"
    assert owner.rows() == before


def test_a_day_without_events_stays_empty(owner: Owner) -> None:
    owner.send(event("a"))
    ingest(owner)
    before = location(owner)
    done = rebuilt(owner, EMPTY_DAY)
    assert (done.rows, done.snapshot_id, done.files_after) == (0, None, 0)
    assert location(owner) == before


def test_a_backfill_restores_a_deleted_day_and_keeps_earlier_snapshots(owner: Owner) -> None:
    owner.send(event("a"), event("b", count=2), event("c").replace(b"11-19T", b"11-18T"))
    ingest(owner)
    before, snapshot = owner.rows(), table(owner).metadata.current_snapshot_id
    drop_day(owner)
    assert [row["id"] for row in owner.rows()] == ["c"]
    assert not reconcile_tenant(owner.tenant).balanced
    assert rebuilt(owner).rows == 2
    assert owner.rows() == before
    assert preview(owner.tenant, "orders", 10, snapshot_id=snapshot).num_rows == 3
    balanced(owner)


def test_dead_letters_that_pass_by_now_land_once(owner: Owner) -> None:
    """A number where an integer was wanted passes the next version; the claims and the ledger follow."""
    owner.send(event("a", count=1), event("b", count=1.5), event("b", count=2.5), event("c", count="x"))
    owner.send(event("a", count=3.5), event("other day", count=4.5).replace(b"11-19T", b"11-17T"))
    ingest(owner)
    assert balanced(owner) == (1, 0, 5)
    assert rebuilt(owner).dead_letters_landed == 0
    move(owner, count={"type": "number"})
    done = rebuilt(owner)
    assert (done.rows, done.dead_letters_landed, done.schema_version) == (2, 1, 2)
    rows = owner.rows()
    assert [(row["id"], row["count"], row["_batch"]) for row in rows[1:]] == [("b", 1.5, done.backfill_id)]
    assert owner.claims() == 2
    assert balanced(owner) == (2, 0, 4)
    assert rebuilt(owner).dead_letters_landed == 0
    assert owner.rows() == rows, "what a backfill landed is rebuilt like the rest"
    owner.send(event("b", count=9))
    ingest(owner)
    assert owner.rows() == rows, "its claim holds"
    assert balanced(owner) == (2, 1, 4)


def test_a_backfill_with_a_version_keeps_the_version_of_rows_that_it_refuses(owner: Owner) -> None:
    owner.send(event("a", note="text"), event("b"))
    ingest(owner)
    move(owner, note={"type": "integer"}, count={"type": "number"})
    owner.send(event("c", note=3, count=1.5))
    ingest(owner)
    before = owner.rows()
    assert [(row["note"], row["_extra"]) for row in before] == [
        (None, '{"note":"text"}'),
        (None, None),
        (3, None),
    ]
    done = rebuilt(owner)
    assert (done.rows, done.other_versions) == (3, 1)
    assert [row | {"schema_version": 0} for row in owner.rows()] == [
        row | {"schema_version": 0} for row in before
    ]
    assert [row["schema_version"] for row in owner.rows()] == [1, 2, 2]
    done = rebuilt(owner, version=1)
    assert (done.rows, done.other_versions, done.schema_version) == (3, 1, 1)
    assert [row["schema_version"] for row in owner.rows()] == [1, 1, 2]
    assert [row["note"] for row in owner.rows()] == [None, None, 3]
    named = json.loads(event("d", count=2.5)) | {"schema_version": 2}
    owner.send(json.dumps(named).encode())
    ingest(owner)
    assert rebuilt(owner, version=1).other_versions == 2, "what names the later version follows it"
    assert [row["count"] for row in owner.rows()] == [None, None, 1.5, 2.5]
    balanced(owner)
    with pytest.raises(NotFound, match="never followed version 3"):
        rebuilt(owner, version=3)


def test_rows_that_land_between_plan_and_commit_stay(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    owner.send(event("a"))
    ingest(owner)

    def plan_then_ingest(*arguments: Any) -> DayPlan:
        plan = plan_day(*arguments)
        owner.send(event("b"))
        ingest(owner)
        return plan

    monkeypatch.setattr(runs, "plan_day", plan_then_ingest)
    assert rebuilt(owner).rows == 1
    assert [row["id"] for row in owner.rows()] == ["a", "b"]
    assert balanced(owner) == (2, 0, 0)


def test_a_compaction_between_plan_and_commit_makes_it_begin_again(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        owner.send(event(f"e{number}"))
        ingest(owner)
    before, planned = owner.rows(), []

    def plan_then_compact(*arguments: Any) -> DayPlan:
        planned.append(plan_day(*arguments))
        if len(planned) == 1:
            commit(owner, lambda loaded: loaded.overwrite(loaded.scan().to_arrow()))
        return planned[-1]

    monkeypatch.setattr(runs, "plan_day", plan_then_compact)
    assert rebuilt(owner).files_before == 1
    assert [len(plan.files) for plan in planned] == [2, 1]
    assert owner.rows() == before
    assert balanced(owner) == (2, 0, 0)


def test_two_concurrent_backfills_take_turns(owner: Owner) -> None:
    owner.send(*(event(f"e{n}") for n in range(5)))
    ingest(owner)
    before = owner.rows()
    done: list[Backfilled] = []
    both = [threading.Thread(target=lambda: done.append(rebuilt(owner))) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(PATIENCE_S)
    assert len({one.backfill_id for one in done}) == 2
    assert owner.rows() == before
    balanced(owner)


def test_a_batch_in_flight_lands_on_top(owner: Owner) -> None:
    """It staged its metadata before the backfill committed: it stages again."""
    owner.send(event("a"))
    ingest(owner)
    owner.send(event("b"), event("a"))
    batch = plan_batch([owner])
    process = start_attempt(batch, PULSE_FAIL_POINT="stop:after.land")
    process.stopped()
    rebuilt(owner)
    assert process.goes_on() == 0, process.said
    assert [row["id"] for row in owner.rows()] == ["a", "b"]
    assert balanced(owner) == (2, 1, 0)
    assert rebuilt(owner).rows == 2


def test_a_backfill_without_its_raw_objects_leaves_the_day_unchanged(owner: Owner) -> None:
    owner.send(event("a"), event("b"))
    ingest(owner)
    before = location(owner)
    removal = "UPDATE raw_objects SET removed_at = now() WHERE {mine}"
    with harmed(owner, "raw_objects", removal), pytest.raises(Terminal, match="gives 0 rows, and 2 landed"):
        rebuilt(owner)
    assert location(owner) == before


def test_the_events_of_an_earlier_dataset_of_the_slug_are_not_its_own(owner: Owner) -> None:
    owner.send(event("a"))
    ingest(owner)
    registry.delete_dataset(owner.tenant, "orders")
    registry.create_dataset(owner.tenant, "orders", f"pulse://{owner.tenant.slug}/orders/1")
    owner.send(event("b"))
    ingest(owner)
    assert rebuilt(owner).rows == 1
    assert [row["id"] for row in owner.rows()] == ["b"]
    balanced(owner)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("backfill.rebuilt", marks=pytest.mark.slow),
        pytest.param("rewrite.staged", marks=pytest.mark.slow),
        pytest.param("rewrite.before_commit", marks=pytest.mark.slow),
        "rewrite.after_commit",
    ],
)
def test_a_backfill_killed_anywhere_leaves_the_old_or_the_new(owner: Owner, point: str) -> None:
    owner.send(event("a", count=1), event("b", count=1.5))
    ingest(owner)
    move(owner, count={"type": "number"})
    forked(rebuilt, owner, PULSE_FAIL_POINT=point).killed()
    landed = 2 if point == "rewrite.after_commit" else 1
    assert balanced(owner) == (landed, 0, 2 - landed)
    assert len(owner.rows()) == owner.claims() == landed
    with leases.rewriting(registry.find_dataset(owner.tenant, "orders").dataset_id):
        pass  # nobody has it
    assert rebuilt(owner).rows == 2
    assert balanced(owner) == (2, 0, 0)
