"""Operators' commands that meet another writer between what they read and what they write."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from support.backfill import balanced, move, rebuilt
from support.curated import Zone, visit
from support.faults import AtPoint
from support.ingest import Owner, event, ingest

from chaos.surroundings import superuser
from pulse_pipelines import dead_letters, registry
from pulse_pipelines.curated import compute
from pulse_pipelines.curated.pinned import Pinned, pin
from pulse_pipelines.dead_letters import DeadLetterOutcome, Filter
from pulse_pipelines.erasure import accounting, run as erasure
from pulse_pipelines.monitoring.checks.inspection import Inspection
from pulse_pipelines.monitoring.checks.subject import Scope
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.query.preview import preview
from pulse_pipelines.query.snapshots import snapshots
from pulse_resources import iceberg
from pulse_resources.errors import Terminal, Transient

pytestmark = pytest.mark.usefixtures("stack")

WAITING = """
SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE NOT l.granted AND a.datname = current_database()
"""


def beside(pool: ThreadPoolExecutor, work: Callable[[], Any]) -> Future[Any]:
    """Begin work that must wait for a lock which its starter holds; returns when it does."""
    future = pool.submit(work)
    with superuser() as connection:
        while connection.execute(WAITING).fetchone() == (0,):
            assert not future.done(), f"it waited for nobody: {future.result()}"
            time.sleep(0.01)
    return future


@pytest.fixture
def letters(owner: Owner) -> Owner:
    """A row, and three dead letters which a backfill lands."""
    owner.send(event("a"), *(event(name, count=1.5) for name in "bcd"))
    ingest(owner)
    move(owner, count={"type": "number"})
    return owner


def test_letters_that_are_resolved_while_a_backfill_lands_them(letters: Owner, at: AtPoint) -> None:
    """Who was before it has the letter; who comes while it commits waits, and sees what became of it."""
    tenant = letters.tenant
    first = at("backfill.rebuilt", lambda: dead_letters.discard(tenant, ["0-3"]))
    with ThreadPoolExecutor(2) as pool:

        def both() -> list[Future[Any]]:
            return [
                beside(pool, lambda: dead_letters.discard(tenant, ["0-1"])),
                beside(pool, lambda: dead_letters.replay(tenant, ["0-2"])),
            ]

        results = at("rewrite.before_commit", both)
        assert rebuilt(letters).dead_letters_landed == 2
        assert [resolution.result().counts for resolution in results[0]] == [
            {DeadLetterOutcome.ALREADY_LANDED: 1}
        ] * 2
    assert first[0].counts == {DeadLetterOutcome.DISCARDED: 1}
    assert [row["id"] for row in letters.rows()] == ["a", "b", "c"]
    assert balanced(letters) == (3, 0, 1)


@pytest.mark.slow
def test_a_dataset_that_is_deleted_while_a_backfill_commits(letters: Owner, at: AtPoint) -> None:
    """What is remembered of it is the table with what the backfill landed."""
    with ThreadPoolExecutor(1) as pool:
        results = at(
            "rewrite.before_commit",
            lambda: beside(pool, lambda: registry.delete_dataset(letters.tenant, "orders")),
        )
        done = rebuilt(letters)
        assert results[0].result().metadata_location == done.metadata_location
    assert balanced(letters) == (4, 0, 0)


def test_a_dataset_that_is_deleted_while_it_is_erased_from(
    letters: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither ends the other by a deadlock, and there is no receipt: the table's past is still there."""
    account = accounting.forget
    with ThreadPoolExecutor(1) as pool:
        futures: list[Future[Any]] = []

        def forget(*arguments: Any) -> int:
            futures.append(beside(pool, lambda: registry.delete_dataset(letters.tenant, "orders")))
            return account(*arguments)

        monkeypatch.setattr(accounting, "forget", forget)
        with pytest.raises(Terminal, match="deleted while events were erased from it") as caught:
            erasure.erase(letters.tenant, "orders", "event_id=a")
        location = futures[0].result().metadata_location
    assert location in str(caught.value)
    assert balanced(letters) == (1, 0, 3)
    registry.create_dataset(letters.tenant, "orders", f"pulse://{letters.tenant.slug}/orders/2")
    receipt = erasure.erase(letters.tenant, "orders", "event_id=a")
    assert any(location in place["why"] for place in receipt["remains"])
    assert reconcile_tenant(letters.tenant).balanced


def test_a_discard_by_filter_waits_for_letters_locked_by_others(letters: Owner) -> None:
    """The publisher of dead letters, say: who was asked to discard them all must not leave some out."""
    with ThreadPoolExecutor(1) as pool, superuser() as connection, connection.transaction():
        query = "SELECT 1 FROM dead_letters WHERE tenant_id = %s AND event_offset = 1 FOR UPDATE"
        connection.execute(query, [letters.tenant.tenant_id])
        discarded = beside(pool, lambda: dead_letters.discard(letters.tenant, Filter()))
        assert dead_letters.list_dead_letters(letters.tenant).letters[-1].letter_id == "0-1"
    assert discarded.result().counts == {DeadLetterOutcome.DISCARDED: 3}


def reported(owner: Owner) -> list[str]:
    report = reconcile_tenant(owner.tenant)
    return [problem.where for problem in report.problems]


def checked(owner: Owner) -> list[str]:
    outcomes = Inspection(Scope()).of("orders", [owner.tenant])
    return [problem for outcome in outcomes.values() for _, problem in outcome.problems]


def ids(rows: pa.Table) -> list[str]:
    return sorted(rows.column("id").to_pylist())


# What each reader of a table finds, and what it must find.
READERS: dict[str, tuple[Callable[[Owner], Any], Any]] = {
    "move": (lambda owner: move(owner, count={"type": "number"}), None),
    "preview": (lambda owner: "e" in ids(preview(owner.tenant, "orders", 100)), True),
    "checks": (checked, []),
    "snapshots": (lambda owner: snapshots(owner.tenant, "orders") != [], True),
    "reconcile": (reported, []),
    "preview of an erasure": (lambda owner: erasure.preview(owner.tenant, "orders", "event_id=e").rows, 1),
    "rollups": (lambda owner: pinned(owner).snapshot_id is not None, True),
    "replay": (
        lambda owner: dead_letters.replay(owner.tenant, ["0-1"]).counts,
        {DeadLetterOutcome.PUBLISHED: 1},
    ),
}


def pinned(owner: Owner) -> Pinned:
    dataset = registry.find_dataset(owner.tenant, "orders")
    pinned_days = pin(owner.tenant, dataset.dataset_id, [date(2026, 11, 19)])
    assert pinned_days is not None
    return pinned_days


@pytest.mark.slow
@pytest.mark.parametrize("loaded", [False, True], ids=["before the metadata", "before the manifests"])
def test_a_table_that_is_erased_from_while_it_is_read(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, loaded: bool
) -> None:
    """An erasure deletes the files that a reader has just been pointed to: the reader looks again."""
    victims = [event(f"victim of a {reader}", count=1) for reader in READERS]
    owner.send(event("e"), event("b", count=1.5), *victims)
    ingest(owner)
    load = iceberg.load_table
    for reader, (read, expected) in READERS.items():
        due = [f"event_id=victim of a {reader}"]

        def load_table(*arguments: Any, due: list[str] = due, **how: Any) -> Table:
            before = load(*arguments, **how) if loaded else None
            if due:
                with suppress(Transient):  # the last of it waits for the end of a move
                    erasure.erase(owner.tenant, "orders", due.pop())
            return before or load(*arguments, **how)

        monkeypatch.setattr(iceberg, "load_table", load_table)
        assert read(owner) == expected, reader
        assert not due, reader


def test_a_day_whose_snapshot_is_removed_while_it_is_computed_is_pinned_again(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an erasure, here; a team's rollup must not keep the error that Spark has no snapshot."""
    zone.write("by_kind", "SELECT kind, count(*) AS n FROM events GROUP BY kind")
    zone.owner.send(
        *(visit("2026-11-18T09:00:00", who=name, kind="view") for name in ("ann", "bob")),
        visit("2026-11-19T09:00:00", who="bob", kind="buy"),
    )
    ingest(zone.owner)
    pinned: list[Pinned] = []

    def pin_and_erase(*arguments: Any) -> Pinned | None:
        newly_pinned = pin(*arguments)
        if newly_pinned and not pinned:
            erasure.erase(zone.owner.tenant, "visits", "who=ann")
        pinned.extend([newly_pinned] if newly_pinned else [])
        return newly_pinned

    monkeypatch.setattr(compute, "pin", pin_and_erase)
    assert not zone.curate().failures
    assert len({pinned_day.snapshot_id for pinned_day in pinned}) == 2
    assert zone.served("by_kind") == {
        date(2026, 11, 18): [{"kind": "view", "n": 1}],
        date(2026, 11, 19): [{"kind": "buy", "n": 1}],
    }
    assert zone.served("daily").keys() == {date(2026, 11, 18), date(2026, 11, 19)}
    assert set(zone.state("by_kind", "error").values()) == {None}
    assert not zone.due()
