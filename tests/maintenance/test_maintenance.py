"""Compaction beside everything else that goes on: nothing is lost, nothing is there twice."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pyarrow.parquet as pq
import pytest
from support.here import ingest_here as ingest
from support.ingest import SCHEMA, Owner, event
from support.lake import DAY, location, pointing_at, table
from support.maintenance import do, done, live_files, log, objects, orders, start

from chaos.surroundings import superuser, with_settings
from pulse_pipelines import registry
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.maintenance import compact, history, state
from pulse_pipelines.maintenance.history import Done, Skipped
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.moves import evolve
from pulse_pipelines.query import snapshots
from pulse_pipelines.query.preview import preview
from pulse_pipelines.tables import leases, rewrite_file
from pulse_resources import iceberg, object_store, postgres


def at(event_id: str, hour: int, **data: object) -> bytes:
    document = json.loads(event(event_id, **data))
    return json.dumps(document | {"timestamp": f"2026-11-19T{hour:02}:00:00Z"}).encode()


def commits(owner: Owner, count: int, first: int = 0) -> None:
    """Batches of two events each, the later the earlier in the day."""
    for number in range(first, first + count):
        owner.send(at(f"a{number}", 20 - number), at(f"b{number}", 10 - number))
        ingest(owner)


def test_many_small_files_of_a_day_become_one_while_batches_land(owner: Owner) -> None:
    commits(owner, 2)
    before = len(live_files(owner))
    assert before > 2
    merging = start(owner, Task.MERGE)
    commits(owner, 2, 2)
    merging.ended()
    assert log(owner) == [("merge", "done")], merging.said
    done(owner, Task.MERGE)
    assert len(live_files(owner)) == 1
    assert sorted(row["id"] for row in owner.rows()) == sorted(f"{x}{n}" for x in "ab" for n in range(4))
    assert reconcile_tenant(owner.tenant).balanced


def test_a_sorted_day_keeps_its_rows_and_columns_after_a_schema_change(owner: Owner) -> None:
    commits(owner, 1)
    grown = SCHEMA | {"properties": SCHEMA["properties"] | {"colour": {"type": "string"}}}
    uri = registry.publish_schema(owner.tenant, "orders", json.dumps(grown)).schema_uri
    evolve.move_dataset(owner.tenant, "orders", uri)
    owner.send(at("c", 3, colour="red"), at("d", 1))
    ingest(owner)
    before = owner.rows()
    schema = table(owner).schema()
    (sorted_day,) = done(owner, Task.SORT)
    assert sorted_day.after["files"] == 1 < sorted_day.before["files"]
    assert owner.rows() == before
    assert table(owner).schema() == schema
    (path,) = live_files(owner)
    assert rewrite_file.field_ids(path) == {field.field_id for field in schema.fields}
    with object_store.file_system().open_input_file(object_store.key(path)) as content:
        moments = pq.read_table(content, columns=["timestamp"]).column("timestamp").to_pylist()
    assert moments == sorted(moments)
    newest = preview(owner.tenant, "orders", 2).to_pylist()
    assert [row["id"] for row in newest] == ["a0", "b0"]
    (first, *_) = reversed(snapshots.snapshots(owner.tenant, "orders"))
    assert preview(owner.tenant, "orders", 10, snapshot_id=first.snapshot_id).num_rows == 2
    assert do(owner, Task.SORT)[0].after["files"] == 1
    remembered = state.of_day(owner.tenant, orders(owner), DAY)
    assert (remembered.rows, len(remembered.files)) == (4, 1)


def test_manifests_are_rewritten(owner: Owner) -> None:
    commits(owner, 2)
    (rewritten,) = done(owner, Task.MANIFESTS)
    assert (rewritten.before, rewritten.after) == ({"manifests": 2}, {"manifests": 1})
    assert len(owner.rows()) == 4


def test_a_table_that_another_rewrite_works_on_is_left_alone(owner: Owner) -> None:
    commits(owner, 1)
    with leases.rewriting(orders(owner).dataset_id):
        (skipped,) = do(owner, Task.MERGE)
    assert skipped.outcome == "skipped"
    assert log(owner) == []


def test_raw_objects_of_a_running_erasure_are_kept(owner: Owner) -> None:
    """It is in the raw zone before any ledger knows it."""
    owner.send(at("a", 9).replace(b"orders", b"absent"))
    ingest(owner)
    (path,) = (path for path in objects("s3://pulse/raw") if owner.tenant.tenant_id.hex in path)
    written = path.replace(".jsonl.gz", "-erasure.jsonl.gz")
    object_store.put(written, b"")
    with with_settings(UPKEEP__ORPHAN_HOURS=0):
        with leases.rewriting(owner.tenant.tenant_id):
            done(owner, Task.RAW)
        assert written in objects("s3://pulse/raw")
        done(owner, Task.RAW)
    assert written not in objects("s3://pulse/raw")


def test_an_interrupted_task_is_waited_for_from_its_interrupt_on(owner: Owner) -> None:
    dataset = orders(owner)
    task = Done(owner.tenant.slug, "orders", None, history.REWRITE, "an erasure")
    with pytest.raises(KeyboardInterrupt), history.recorded(owner.tenant, dataset.dataset_id, task):
        raise KeyboardInterrupt
    assert log(owner) == [(history.REWRITE, "running")]
    ago = "UPDATE upkeep_log SET ended_at = ended_at - make_interval(mins => %s) WHERE dataset_id = %s"
    with superuser() as connection:
        connection.execute(ago, [history.PATIENCE_MINUTES - 1, dataset.dataset_id])
    with pytest.raises(Skipped, match="died at this table"):
        history.check_none_died(owner.tenant, dataset)
    assert log(owner) == [(history.REWRITE, "abandoned")]
    with superuser() as connection:
        connection.execute(ago, [2, dataset.dataset_id])
    history.check_none_died(owner.tenant, dataset)


def test_a_killed_compaction_is_recorded_and_repeated_by_the_next_run(owner: Owner) -> None:
    commits(owner, 1)
    dying = start(owner, Task.MERGE, PULSE_FAIL_POINT="upkeep.after_spark")
    dying.killed()
    assert log(owner) == [("merge", "running")]
    assert len(owner.rows()) == 2
    done(owner, Task.MERGE)
    assert log(owner) == [("merge", "abandoned"), ("merge", "done")]
    assert len(live_files(owner)) == 1
    with with_settings(UPKEEP__HISTORY_SNAPSHOTS=1, UPKEEP__HISTORY_MINIMUM=1, UPKEEP__HISTORY_HOURS=0):
        *_, expired, swept = do(owner, Task.EXPIRE, Task.ORPHANS)
    assert (expired.outcome, swept.outcome) == ("done", "skipped")
    assert "Spark may still be at work" in str(swept.detail)
    with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
        query = "SELECT snapshots FROM upkeep_tables WHERE tenant_id = %s"  # planning sees all tenants
        known = connection.execute(query, [owner.tenant.tenant_id]).fetchall()
    assert known == [(1,)], "the earlier task is recorded, and does not run again"
    assert reconcile_tenant(owner.tenant).balanced


def test_a_rollback_past_a_batch_is_reported_and_nothing_is_removed(owner: Owner) -> None:
    commits(owner, 1)
    earlier = location(owner)
    commits(owner, 1, 1)
    with pointing_at(owner, earlier):
        for task in (Task.MANIFESTS, Task.ORPHANS):
            (upkeep,) = do(owner, task)
            assert upkeep.outcome == "rolled_back", upkeep
            assert "2 rows of the ledger are not in it" in str(upkeep.detail)
            assert f"pulse backfill {owner.tenant.slug} orders --from {DAY}" in str(upkeep.detail)
    assert {outcome for _, outcome in log(owner)} == {"rolled_back"}
    assert len(owner.rows()) == 4
    done(owner, Task.ORPHANS)


def test_a_rollback_by_the_commit_itself_is_reported(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's client puts the table back to where it was before a batch that settled meanwhile."""
    commits(owner, 1)
    earlier = location(owner)
    name = (owner.tenant.namespace, "orders")

    def lost_answer(point: str) -> None:
        if point == "upkeep.after_spark":
            commits(owner, 1, 1)
            with postgres.transaction("pulse_catalog") as connection:
                assert iceberg.swap(connection, name, location(owner), earlier)

    monkeypatch.setattr(compact, "fail_point", lost_answer)
    (upkeep,) = do(owner, Task.MERGE)
    assert upkeep.outcome == "rolled_back", upkeep
    assert "2 rows of the ledger are not in it" in str(upkeep.detail)
    assert history.read(owner.tenant.slug)[0].outcome == "rolled_back"


def test_a_sweep_waits_for_no_move_to_another_schema(owner: Owner) -> None:
    commits(owner, 1)
    with leases.moving(orders(owner).dataset_id):
        (refused,) = do(owner, Task.ORPHANS)
    assert refused.outcome == "failed"
    assert "being moved to another schema" in str(refused.detail)


def test_an_overtaken_rewrite_is_skipped_without_a_failure(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rewrite the same files, which the lease prevents: one comes too late, and that is no failure."""
    monkeypatch.setattr(leases, "rewriting", lambda _: nullcontext())
    outcomes: list[str] = []
    while "skipped" not in outcomes:
        commits(owner, 2, len(outcomes))
        with ThreadPoolExecutor(2) as both:
            merged = both.map(lambda _: do(owner, Task.MERGE), range(2))
            outcomes += [result.outcome for (result,) in merged]
        assert set(outcomes) <= {"done", "skipped"}
        assert len(outcomes) < 10, "they never met"
    assert ("merge", "skipped") in log(owner)
    rows = [row["id"] for row in owner.rows()]
    assert sorted(rows) == sorted(set(rows))
    assert reconcile_tenant(owner.tenant).balanced
