"""A move to a newer schema amid everything else: batches in flight, deletions, and other moves."""

import json
import pickle
import struct
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.faults import AtPoint
from support.here import ingest_here as ingest
from support.ingest import Owner, plan_batch, run_batch
from support.lake import harmed, without_object
from support.maintenance import done, live_files, objects, rewritten
from support.moves import moved

from pulse_pipelines import registry
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.domain.schemas.compatibility import Incompatibility
from pulse_pipelines.maintenance.expire_snapshots import forget_history
from pulse_pipelines.monitoring import checks
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.moves import evolve
from pulse_pipelines.tables import leases, rewrite_file
from pulse_pipelines.tables.rewrite_file import Rewrite, RewrittenFile
from pulse_resources import iceberg, object_store
from pulse_resources.errors import Conflict, FileGone, Incompatible, NotFound, PulseError
from pulse_resources.settings import Settings

OLD = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}
ADDED = {"type": "object", "properties": OLD["properties"] | {"t": {"type": "string"}}}
WIDENED = {"type": "object", "properties": ADDED["properties"] | {"n": {"type": "number"}}}
NEWER = {"widened": WIDENED, "added": ADDED}


def sale(event_id: str, **data: Any) -> bytes:
    event = {"event_id": event_id, "dataset": "orders", "timestamp": "2026-11-19T10:00:00Z"}
    return json.dumps(event | {"data": {"n": 1} | data}).encode()


def publish(owner: Owner, schema: Any, name: str = "orders") -> str:
    return registry.publish_schema(owner.tenant, name, json.dumps(schema)).schema_uri


@pytest.fixture
def owner(stack: Settings) -> Owner:
    """A tenant with the dataset `orders` of the old schema, and two rows in it."""
    owner = Owner(registry.create_tenant(f"t{uuid.uuid4().hex[:10]}"))
    registry.create_dataset(owner.tenant, "orders", publish(owner, OLD))
    owner.send(sale("a"), sale("b", n=2))
    ingest(owner)
    return owner


def rows(owner: Owner) -> list[tuple[str, float]]:
    return [(row["id"], row["n"]) for row in owner.rows()]


def open_table(owner: Owner) -> Any:
    location = registry.current_table(owner.tenant, "orders").metadata_location
    return iceberg.load_table((owner.tenant.namespace, "orders"), location)


def check_whole(owner: Owner) -> None:
    """Nothing is lost, nothing is double, and the table is what the registry says of it."""
    report = reconcile_tenant(owner.tenant)
    assert report.balanced, report.problems
    for name in checks.TABLE_CHECKS:
        assert checks.run(name, owner.tenant, "orders").problems == []


@pytest.mark.parametrize("how", NEWER)
@pytest.mark.parametrize("point", ["after.land", "after.drain_and_conform"])
@pytest.mark.sample(1)
def test_a_batch_in_flight_lands_by_the_schema_that_the_table_has_then(
    owner: Owner, how: str, point: str, at: AtPoint
) -> None:
    uri = publish(owner, NEWER[how])
    owner.send(sale("c", n=3), sale("a", n=9), sale("d", n=4, t="undeclared"))
    done = at(point, lambda: moved(owner.tenant, "orders", uri))
    run_batch(plan_batch([owner]))
    assert done
    assert rows(owner) == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert {type(value) for _, value in rows(owner)} == {float if how == "widened" else int}
    assert [row["t"] for row in owner.rows()] == [None] * 4
    assert json.loads(owner.rows()[3]["_extra"]) == {"t": "undeclared"}
    owner.send(sale("e", n=5, t="declared"))
    ingest(owner)
    assert [row["t"] for row in owner.rows()] == [None] * 4 + ["declared"]
    check_whole(owner)


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "deleted and created again"])
@pytest.mark.parametrize("point", [pytest.param("after.dedup_gate", marks=pytest.mark.slow), "after.land"])
@pytest.mark.sample(1)
def test_rows_of_a_deleted_dataset_are_dead_letters(
    owner: Owner, again: bool, point: str, at: AtPoint
) -> None:
    uri = registry.find_dataset(owner.tenant, "orders").schema_uri

    def delete() -> None:
        registry.delete_dataset(owner.tenant, "orders")
        if again:
            registry.create_dataset(owner.tenant, "orders", uri)

    owner.send(sale("c"), sale("a"), b"not json", sale("d"))
    done = at(point, delete)
    run_batch(plan_batch([owner]))
    assert done
    letters = [(letter["event_offset"], letter["reason"]) for letter in owner.dead_letters()]
    assert letters == [(2, "landing_failed"), (4, "undecodable"), (5, "landing_failed")]
    report = reconcile_tenant(owner.tenant)
    assert (report.landed, report.duplicates, report.problems) == (2, 1, [])
    if again:
        assert rows(owner) == []
        owner.send(sale("a", n=5))
        ingest(owner)
        assert rows(owner) == [("a", 5)]
        check_whole(owner)


def test_reconcile_reports_a_missing_row_of_a_deleted_dataset(owner: Owner) -> None:
    first = registry.current_table(owner.tenant, "orders").metadata_location
    owner.send(sale("c"))
    ingest(owner)
    deleted = registry.delete_dataset(owner.tenant, "orders")
    assert reconcile_tenant(owner.tenant).balanced
    statement = f"UPDATE deleted_datasets SET metadata_location = '{first}' WHERE {{mine}}"
    with harmed(owner, "deleted_datasets", statement):
        problems = reconcile_tenant(owner.tenant).problems
    assert {(problem.kind, problem.count) for problem in problems} == {("missing", 1), ("count", -1)}
    assert deleted.metadata_location != first


# other writers -----------------------------------------------------------------------------------


def test_only_files_that_landed_meanwhile_are_rewritten_again(owner: Owner, at: AtPoint) -> None:
    def land_more() -> None:
        owner.send(sale("c", n=3))
        ingest(owner)

    before = len(live_files(owner))
    done = at("move.staged", land_more)
    moved(owner.tenant, "orders", publish(owner, WIDENED))
    assert done
    assert rewritten(owner) == [before, 1]
    assert len(live_files(owner)) == before + 1
    assert rows(owner) == [("a", 1.0), ("b", 2.0), ("c", 3.0)]
    check_whole(owner)


def test_a_dataset_that_is_deleted_meanwhile_ends_its_move(owner: Owner, at: AtPoint) -> None:
    at("move.staged", lambda: registry.delete_dataset(owner.tenant, "orders"))
    with pytest.raises(NotFound):
        moved(owner.tenant, "orders", publish(owner, WIDENED))


def test_another_dataset_of_the_slug_is_not_moved_under_the_lock_of_the_first(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would keep a sweep from the files that it writes for the second one."""
    uri, moving = publish(owner, WIDENED), leases.moving

    def recreated_first(dataset_id: uuid.UUID) -> AbstractContextManager[None]:
        registry.delete_dataset(owner.tenant, "orders")
        registry.create_dataset(owner.tenant, "orders", f"pulse://{owner.tenant.slug}/orders/1")
        return moving(dataset_id)

    monkeypatch.setattr(leases, "moving", recreated_first)
    with pytest.raises(NotFound, match="another one has its slug"):
        evolve.move_dataset(owner.tenant, "orders", uri)
    assert registry.find_dataset(owner.tenant, "orders").schema_version == 1


def test_another_move_that_comes_first_is_seen(owner: Owner, at: AtPoint) -> None:
    """Its files are by other field ids than those that were written for this one."""
    added, widened = publish(owner, ADDED), publish(owner, WIDENED)
    at("move.staged", lambda: evolve.move_dataset(owner.tenant, "orders", added))
    assert moved(owner.tenant, "orders", widened).schema_uri == widened
    owner.send(sale("c", n=0.5, t="x"))
    ingest(owner)
    assert rows(owner) == [("a", 1.0), ("b", 2.0), ("c", 0.5)]
    assert registry.find_dataset(owner.tenant, "orders").documents.keys() == {1, 2, 3}
    check_whole(owner)


def test_moves_at_once_end_in_the_newest(owner: Owner) -> None:
    uris = [publish(owner, ADDED), publish(owner, WIDENED)] * 2

    def move(uri: str) -> str:
        try:
            return moved(owner.tenant, "orders", uri).schema_uri
        except Conflict:  # a newer one was first
            return "conflict"

    with ThreadPoolExecutor(4) as threads:
        outcomes = list(threads.map(move, uris))
    assert registry.find_dataset(owner.tenant, "orders").schema_uri == uris[1]
    assert outcomes[1] == outcomes[3] == uris[1]
    check_whole(owner)


READS: dict[str, tuple[Any, str]] = {
    # What a move reads next: what it calls right before.
    "metadata": (evolve, "_check"),
    "manifests": (evolve, "evolve"),
    "data files": (rewrite_file, "field_ids"),
}


@pytest.mark.parametrize(
    "reads", [pytest.param(r, marks=[pytest.mark.slow] * (r != "data files")) for r in READS]
)
def test_a_table_that_changes_and_loses_files_is_read_again(
    owner: Owner, reads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch lands, its day is compacted, and an erasure forgets history, while the move is under way."""
    module, name = READS[reads]
    before, call = open_table(owner), getattr(module, name)
    locations: list[str] = []

    def go_on(*arguments: Any) -> Any:
        locations.append(open_table(owner).metadata_location)
        if len(locations) == 1:
            owner.send(sale("c", n=3))
            ingest(owner)
            done(owner, Task.MERGE)
            dataset = registry.find_dataset(owner.tenant, "orders")
            with leases.rewriting(dataset.dataset_id):
                forget_history(owner.tenant, dataset)
        return call(*arguments)

    monkeypatch.setattr(module, name, go_on)
    # The sweep of the erasure listed the table's folder before the move began, and deletes after.
    monkeypatch.setattr(leases, "nobody_moving", lambda _: nullcontext())
    used_paths = [before.metadata_location, before.current_snapshot().manifest_list, *live_files(owner)]
    uri = publish(owner, WIDENED)
    assert moved(owner.tenant, "orders", uri).schema_uri == uri
    assert len(set(locations)) == 2
    assert objects(before.location()).isdisjoint(used_paths)
    assert rows(owner) == [("a", 1.0), ("b", 2.0), ("c", 3.0)]
    check_whole(owner)


@pytest.mark.slow
@pytest.mark.parametrize("reads", READS)
@pytest.mark.sample(1)
def test_a_missing_file_of_an_unchanged_table_is_reported(owner: Owner, reads: str) -> None:
    table, uri = open_table(owner), publish(owner, WIDENED)
    paths = {
        "metadata": table.metadata_location,
        "manifests": table.current_snapshot().manifest_list,
        "data files": live_files(owner)[0],
    }
    with without_object(paths[reads]), pytest.raises(FileGone, match="a file of the table is gone") as caught:
        moved(owner.tenant, "orders", uri)
    assert caught.value.where == {"tenant": owner.tenant.slug, "dataset": "orders"}
    assert registry.find_dataset(owner.tenant, "orders").schema_version == 1
    assert moved(owner.tenant, "orders", uri).schema_uri == uri
    check_whole(owner)


# what is refused ---------------------------------------------------------------------------------


def test_moving_to_the_version_that_it_follows_changes_nothing(owner: Owner) -> None:
    before = registry.current_table(owner.tenant, "orders")
    uri = before.dataset.schema_uri
    assert evolve.move_dataset(owner.tenant, "orders", uri) == before.dataset
    assert registry.current_table(owner.tenant, "orders") == before


def test_a_move_that_cannot_be_made_changes_nothing(owner: Owner, stack: Settings) -> None:
    other = Owner(registry.create_tenant(f"t{uuid.uuid4().hex[:10]}"))
    newer, foreign = publish(owner, WIDENED), publish(other, WIDENED)
    breaking = publish(owner, {"type": "object", "properties": {"n": {"type": "string"}}})
    elsewhere = publish(owner, WIDENED, "returns")
    moved(owner.tenant, "orders", newer)
    before = registry.current_table(owner.tenant, "orders")
    for uri, kind, says in (
        (f"pulse://{owner.tenant.slug}/orders/1", Conflict, "follows version 2 already"),
        (elsewhere, Conflict, "follows the schema 'orders', not 'returns'"),
        (foreign, NotFound, "has not published this schema"),
        (f"pulse://{owner.tenant.slug}/orders/9", NotFound, "has not published this schema"),
        ("orders/2", PulseError, "is not a schema address"),
        (breaking, Incompatible, "at /properties/n/type, number became string"),
    ):
        with pytest.raises(kind, match=says):
            evolve.move_dataset(owner.tenant, "orders", uri)
    with pytest.raises(NotFound, match="no such dataset"):
        evolve.move_dataset(other.tenant, "orders", foreign)
    assert registry.current_table(owner.tenant, "orders") == before


def test_an_error_carries_all_incompatibilities(owner: Owner) -> None:
    breaking = publish(owner, {"type": "object", "properties": {"n": {"type": "string"}}, "required": ["n"]})
    with pytest.raises(Incompatible) as caught:
        evolve.move_dataset(owner.tenant, "orders", breaking)
    error = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert str(error) == str(caught.value)
    assert "and 2 more" in str(error)
    assert error.where == {"tenant": owner.tenant.slug, "dataset": "orders"}
    assert error.incompatibilities[1:] == (
        Incompatibility("/properties/s", "the property was removed", "events and rows have it"),
        Incompatibility(
            "/properties/n",
            "the column n would be string, not long",
            "the rows that it has cannot be kept in it",
        ),
    )


# what is written ---------------------------------------------------------------------------------


def test_a_file_of_many_row_groups_is_recast_with_its_bounds(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def local_rewriter(files: Sequence[Rewrite]) -> dict[str, RewrittenFile]:
        return {file.path: rewrite_file.rewrite(file) for file in files}

    monkeypatch.setattr(rewrite_file, "BATCH_ROWS", 10)
    owner.send(*(sale(f"e{n:03}", n=n - 50) for n in range(100)))
    ingest(owner)
    dataset_id, uri = registry.find_dataset(owner.tenant, "orders").dataset_id, publish(owner, WIDENED)
    dataset = evolve.carry_out(owner.tenant, "orders", dataset_id, uri, rewriter=local_rewriter)
    table = open_table(owner)
    assert dataset.table_schema == table.schema().model_dump_json()
    number, name = (table.schema().find_field(field).field_id for field in ("n", "id"))
    files = [task.file for task in table.scan().plan_files() if len(task.file.split_offsets or ()) > 1]
    assert sum(file.record_count for file in files) == 100
    for file in files:
        with object_store.file_system().open_input_file(object_store.key(file.file_path)) as content:
            rows_of_file = pq.read_table(content)
        ids = sorted(rows_of_file.column("id").to_pylist())
        assert len(file.split_offsets) == -(-len(ids) // 10)
        assert file.value_counts[number] == file.record_count == len(ids)
        assert (file.lower_bounds[name], file.upper_bounds[name]) == (ids[0].encode(), ids[-1].encode())
        bounds = [struct.unpack("<d", b[number])[0] for b in (file.lower_bounds, file.upper_bounds)]
        assert bounds == [int(ids[0][1:]) - 50, int(ids[-1][1:]) - 50]
    assert table.scan(row_filter="n = 7").to_arrow().column("id").to_pylist() == ["e057"]
    check_whole(owner)
