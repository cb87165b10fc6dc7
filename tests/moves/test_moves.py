"""A move that writes data files again is a run: asked for, launched, followed, killed anywhere, done once."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from support.faults import AtPoint
from support.forked import forked
from support.here import ingest_here as ingest
from support.ingest import Owner
from support.lake import harmed, spark, without_object
from support.maintenance import live_files, log
from support.moves import ready, requested_runs, run

from pulse_pipelines import moves, registry
from pulse_pipelines.defs.moves import sensor
from pulse_pipelines.maintenance import rewrite
from pulse_pipelines.monitoring import checks
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.moves import Move, MoveState, record
from pulse_pipelines.moves.record import Attempt
from pulse_pipelines.moves.run import attempt
from pulse_pipelines.tables import rewrite_file
from pulse_pipelines.tables.rewrite_file import Rewrite
from pulse_resources.errors import Conflict, Fenced, NotFound, Terminal
from pulse_resources.settings import Settings
from pulse_resources.spark import session_on_demand

OLD = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}
ADDED = {"type": "object", "properties": OLD["properties"] | {"t": {"type": "string"}}}
WIDENED = {"type": "object", "properties": OLD["properties"] | {"n": {"type": "number"}}}
BOTH = {"type": "object", "properties": ADDED["properties"] | WIDENED["properties"]}


def sale(event_id: str, **data: Any) -> bytes:
    event = {"event_id": event_id, "dataset": "orders", "timestamp": "2026-11-19T10:00:00Z"}
    return json.dumps(event | {"data": {"n": 1} | data}).encode()


def publish(owner: Owner, schema: Any) -> str:
    return registry.publish_schema(owner.tenant, "orders", json.dumps(schema)).schema_uri


@pytest.fixture
def owner(stack: Settings) -> Owner:
    """A tenant with the dataset `orders` of the old schema, and two rows in it."""
    owner = Owner(registry.create_tenant(f"t{uuid.uuid4().hex[:10]}"))
    registry.create_dataset(owner.tenant, "orders", publish(owner, OLD))
    owner.send(sale("a"), sale("b", n=2))
    ingest(owner)
    return owner


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def ask(owner: Owner) -> Move:
    """A move of `orders` that takes a run."""
    move = moves.ask(owner.tenant, "orders", publish(owner, WIDENED))
    assert isinstance(move, Move)
    return move


def take(owner: Owner, move: Move, number: int = 1) -> Move:
    """One attempt, here."""
    return attempt(spark, owner.tenant, move.move_id, number)


def now(owner: Owner, move: Move) -> Move:
    return moves.find(owner.tenant, move.move_id)


def rows(owner: Owner) -> list[tuple[str, float]]:
    return [(row["id"], row["n"]) for row in owner.rows()]


def check_whole(owner: Owner) -> None:
    report = reconcile_tenant(owner.tenant)
    assert report.balanced, report.problems
    for name in checks.TABLE_CHECKS:
        assert checks.run(name, owner.tenant, "orders").problems == []


def test_a_move_is_at_once_or_a_run(owner: Owner, instance: dg.DagsterInstance) -> None:
    added = moves.ask(owner.tenant, "orders", publish(owner, ADDED))
    assert added == registry.find_dataset(owner.tenant, "orders")
    assert moves.of_dataset(owner.tenant, "orders") == []
    move = moves.ask(owner.tenant, "orders", publish(owner, BOTH))
    assert isinstance(move, Move)
    assert (move.state, move.files) == (MoveState.PLANNED, None)
    assert registry.find_dataset(owner.tenant, "orders").schema_version == 2, "it is as it was"
    files = len(live_files(owner))
    (request,) = requested_runs(owner, instance)
    assert run(request, instance).success
    done = now(owner, move)
    assert (done.state, done.files, done.files_done, done.error) == (MoveState.DONE, files, files, None)
    assert done.run_id
    assert registry.find_dataset(owner.tenant, "orders").schema_uri == move.schema_uri
    assert {type(value) for _, value in rows(owner)} == {float}
    assert log(owner) == [("rewrite", "done")]
    assert requested_runs(owner, instance) == []
    check_whole(owner)


def test_a_table_without_files_needs_no_run(stack: Settings) -> None:
    owner = Owner(registry.create_tenant(f"t{uuid.uuid4().hex[:10]}"))
    registry.create_dataset(owner.tenant, "orders", publish(owner, OLD))
    uri = publish(owner, WIDENED)
    assert moves.ask(owner.tenant, "orders", uri) == registry.find_dataset(owner.tenant, "orders")


def test_another_move_meanwhile_is_a_conflict(owner: Owner) -> None:
    move = ask(owner)
    further, at_once = publish(owner, BOTH), publish(owner, ADDED)
    for uri in (move.schema_uri, further, at_once):
        with pytest.raises(Conflict, match=f"moving to {move.schema_uri} already") as caught:
            moves.ask(owner.tenant, "orders", uri)
        assert caught.value.where["move"] == move.move_id
    take(owner, move)
    assert moves.ask(owner.tenant, "orders", further) == registry.find_dataset(owner.tenant, "orders")


def test_two_requests_at_one_moment_make_one_move(owner: Owner, at: AtPoint) -> None:
    first: list[Move] = at("move.asked", lambda: ask(owner))
    with pytest.raises(Conflict, match="is moving to") as caught:
        ask(owner)
    assert caught.value.where["move"] == first[0].move_id
    assert len(moves.of_dataset(owner.tenant, "orders")) == 1


@pytest.mark.slow
def test_rows_that_land_during_a_move_are_moved_too(owner: Owner, at: AtPoint) -> None:
    def land_more() -> None:
        owner.send(sale("c", n=3), sale("a", n=9))
        ingest(owner)

    move = ask(owner)
    at("move.staged", land_more)
    assert take(owner, move).state == MoveState.DONE
    owner.send(sale("d", n=4.5))
    ingest(owner)
    assert rows(owner) == [("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.5)]
    check_whole(owner)


# killed anywhere ---------------------------------------------------------------------------------

POINTS = {
    # Fail point: whether the dataset had moved by then.
    "move.owned": False,
    "rewrite.file": False,
    "move.rewritten": False,
    "move.before_commit": False,
    "move.after_commit": True,
}


def take_alone(owner: Owner, move_id: str) -> None:
    with session_on_demand() as session:
        attempt(session, owner.tenant, move_id, 1)


RARE = ("rewrite.file", "move.rewritten")
"""As `move.before_commit`: nothing is committed."""


@pytest.mark.parametrize("point", [pytest.param(p, marks=[pytest.mark.slow] * (p in RARE)) for p in POINTS])
@pytest.mark.sample(1)
def test_a_move_killed_at(point: str, owner: Owner, instance: dg.DagsterInstance) -> None:
    move, moved = ask(owner), POINTS[point]
    before = registry.current_table(owner.tenant, "orders")
    forked(take_alone, owner, move.move_id, PULSE_FAIL_POINT=point).killed()
    after = registry.current_table(owner.tenant, "orders")
    assert (after != before, after.dataset.schema_uri == move.schema_uri) == (moved, moved)
    assert now(owner, move).state == (MoveState.DONE if moved else MoveState.RUNNING)
    assert rows(owner) == [("a", 1), ("b", 2)]
    assert requested_runs(owner, instance) == [], "it waits a while"
    ready(owner)
    requests = requested_runs(owner, instance)
    if moved:
        assert requests == []
    else:
        assert "the run died" in (now(owner, move).error or "")
        assert [request.run_key for request in requests] == [f"{move.move_id}:2"]
        assert take(owner, move, 2).state == MoveState.DONE
    owner.send(sale("d", n=4.5))
    ingest(owner)
    assert rows(owner) == [("a", 1.0), ("b", 2.0), ("d", 4.5)]
    check_whole(owner)


@pytest.mark.slow
def test_a_move_that_hangs_ends_itself_and_is_attempted_again(
    owner: Owner, instance: dg.DagsterInstance
) -> None:
    move = ask(owner)
    patience = {"PULSE_FAIL_POINT": "hang:move.rewritten", "PULSE_INGEST__ATTEMPT_SECONDS": "60"}
    forked(take_alone, owner, move.move_id, **patience).killed()
    stood = now(owner, move)
    assert (stood.state, stood.files_done) == (MoveState.RUNNING, stood.files), "it came as far as the point"
    assert requested_runs(owner, instance) == []
    ready(owner)
    assert take(owner, move, 2).state == MoveState.DONE
    check_whole(owner)


def test_an_attempt_that_wakes_up_too_late_is_fenced(owner: Owner, at: AtPoint) -> None:
    """Another attempt took over while it stood still, and has not come to its commit yet."""
    move = ask(owner)
    at("move.after_swap", lambda: Attempt(owner.tenant, move.move_id, 1).give_up("it stood still"))
    with pytest.raises(Fenced):
        take(owner, move)
    assert registry.find_dataset(owner.tenant, "orders").schema_version == 1
    assert now(owner, move).attempt == 2
    with pytest.raises(Fenced):
        take(owner, move)
    ready(owner)
    assert take(owner, move, 2).state == MoveState.DONE
    check_whole(owner)


def test_only_one_process_can_take_an_attempt(owner: Owner, at: AtPoint) -> None:
    move = ask(owner)
    refused: list[str] = []

    def take_again() -> None:
        with pytest.raises(Fenced) as caught:
            take(owner, move)
        refused.append(str(caught.value))

    at("move.owned", take_again)
    assert take(owner, move).state == MoveState.DONE
    assert refused


# what ends it ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "again"), [("move.owned", True), ("move.rewritten", True), ("move.staged", False)]
)
@pytest.mark.sample(1)
def test_deleting_the_dataset_fails_the_move(
    owner: Owner, again: bool, point: str, at: AtPoint, instance: dg.DagsterInstance
) -> None:
    move, uri = ask(owner), registry.find_dataset(owner.tenant, "orders").schema_uri

    def delete() -> None:
        registry.delete_dataset(owner.tenant, "orders")
        if again:
            registry.create_dataset(owner.tenant, "orders", uri)

    at(point, delete)
    (request,) = requested_runs(owner, instance)
    assert run(request, instance).success
    ended = now(owner, move)
    assert ended.state == MoveState.FAILED
    reason = "another one has its slug" if (point, again) == ("move.owned", True) else "no such dataset"
    assert reason in (ended.error or "")
    assert requested_runs(owner, instance) == []
    if again:
        assert registry.find_dataset(owner.tenant, "orders").schema_version == 1
        assert rows(owner) == []


@pytest.mark.parametrize("content", [None, b"not Parquet"], ids=["gone", "damaged"])
@pytest.mark.sample(1)
def test_an_unreadable_file_fails_the_move(
    owner: Owner, content: bytes | None, instance: dg.DagsterInstance
) -> None:
    move = ask(owner)
    (request,) = requested_runs(owner, instance)
    with without_object(live_files(owner)[0], content):
        assert not run(request, instance, raise_on_error=False).success
    ended = now(owner, move)
    assert ended.state == MoveState.FAILED
    assert "a file of the table is" in (ended.error or "")
    assert registry.find_dataset(owner.tenant, "orders").schema_version == 1
    assert take(owner, ask_again(owner, move)).state == MoveState.DONE
    check_whole(owner)


def ask_again(owner: Owner, move: Move) -> Move:
    again = moves.ask(owner.tenant, "orders", move.schema_uri)
    assert isinstance(again, Move)
    return again


def test_a_failing_move_is_retried_a_limited_number_of_times(
    owner: Owner, at: AtPoint, instance: dg.DagsterInstance
) -> None:
    def fail() -> None:
        raise OSError("the store is away")

    move = ask(owner)
    at("move.rewritten", fail, always=True)
    (request,) = requested_runs(owner, instance)
    assert not run(request, instance, raise_on_error=False).success
    waiting = now(owner, move)
    assert (waiting.state, waiting.attempt) == (MoveState.PLANNED, 2)
    assert "the store is away" in (waiting.error or "")
    last = f"UPDATE dataset_moves SET attempt = {record.MAX_ATTEMPTS} WHERE {{mine}}"
    with harmed(owner, "dataset_moves", last):
        with pytest.raises(Exception, match="the store is away"):
            take(owner, move, record.MAX_ATTEMPTS)
        assert now(owner, move).state == MoveState.FAILED
    assert registry.find_dataset(owner.tenant, "orders").schema_version == 1


def test_of_a_tenant_with_many_moves_few_are_launched_ahead() -> None:
    def open_move(tenant: str, state: MoveState, ready: bool = True) -> Any:
        return SimpleNamespace(
            tenant=SimpleNamespace(slug=tenant), ready=ready, move=SimpleNamespace(state=state)
        )

    runs, waits = open_move("acme", MoveState.RUNNING), open_move("acme", MoveState.PLANNED, ready=False)
    many = [open_move("acme", MoveState.PLANNED) for _ in range(9)]
    other = open_move("zeta", MoveState.PLANNED)
    assert list(sensor._next([runs, waits, *many, other])) == [
        runs,
        *many[: sensor.LAUNCHED_OF_TENANT],
        other,
    ]


def test_a_run_that_vanished_before_it_began_is_followed_by_another(
    owner: Owner, instance: dg.DagsterInstance
) -> None:
    move = ask(owner)
    (request,) = requested_runs(owner, instance)
    wrong = replace_config(request, tenant="nobody")
    assert not run(wrong, instance, raise_on_error=False).success
    assert requested_runs(owner, instance) == []
    assert "before it began the move: FAILURE" in (now(owner, move).error or "")
    ready(owner)
    (request,) = requested_runs(owner, instance)
    assert run(request, instance).success
    assert now(owner, move).state == MoveState.DONE


def replace_config(request: dg.RunRequest, **config: Any) -> dg.RunRequest:
    op_config = request.run_config["ops"]["move_dataset"]["config"]
    return dg.RunRequest(
        run_key=request.run_key,
        run_config={"ops": {"move_dataset": {"config": op_config | config}}},
        tags=request.tags,
    )


def test_a_move_of_another_tenant_is_absent(owner: Owner) -> None:
    other = registry.create_tenant(f"t{uuid.uuid4().hex[:10]}")
    move = ask(owner)
    with pytest.raises(NotFound, match="no such move"):
        moves.find(other, move.move_id)
    assert moves.of_dataset(other, "orders") == []
    with pytest.raises(Fenced):
        take(Owner(other), move)
    assert now(owner, move).state == MoveState.PLANNED
    take(owner, move)


# files -------------------------------------------------------------------------------------------


def test_files_are_written_a_bounded_number_at_a_time() -> None:
    files = [Rewrite(str(number), 1, "") for number in range(3 * rewrite.WAVE_FILES)]
    assert [len(wave) for wave in rewrite.waves(files, 2)] == [2 * rewrite.WAVE_FILES, rewrite.WAVE_FILES]
    large = [replace(file, bytes=rewrite.WAVE_BYTES) for file in files[:5]]
    assert [len(wave) for wave in rewrite.waves(large, 2)] == [2, 2, 1]
    assert list(rewrite.waves([], 2)) == []


def test_a_position_that_is_not_in_the_file_is_an_error(owner: Owner) -> None:
    """Two rows of one event, or another file than the one that was searched."""
    schema = registry.find_dataset(owner.tenant, "orders").table_schema
    path = live_files(owner)[0]  # of one row
    wrong, message = Rewrite(path, 1, schema, frozenset([99])), "1 rows are left of a data file, and not 0"
    with pytest.raises(Terminal, match=message):
        rewrite_file.rewrite(wrong)
    rewriter = rewrite.on_spark(spark, owner.tenant, uuid.uuid4(), "orders", "a test")
    with pytest.raises(Terminal, match=message) as caught:
        rewriter([wrong])
    place = f"This was tenant {owner.tenant.slug}, dataset orders, rewritten for a test."
    assert caught.value.__notes__ == [f"{place} {rewrite.NEXT_STEP}."]
    assert rewriter([Rewrite(path, 1, schema)])[path].rows == 1
