"""What a sweep removes, and what it can never take: in flight, in history, of others, of deleted datasets."""

from datetime import UTC, datetime, timedelta

import pytest
from support.here import ingest_here as ingest
from support.ingest import Owner, event, next_attempt, plan_batch, run_batch, start_attempt
from support.lake import table
from support.maintenance import done, live_files, objects, orders

from chaos.surroundings import with_settings
from pulse_pipelines import registry
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.maintenance import expire_snapshots
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.query.preview import preview
from pulse_pipelines.query.snapshots import snapshots
from pulse_pipelines.tables import leases
from pulse_resources import object_store, object_store as store, postgres
from pulse_resources.errors import NotFound
from pulse_resources.settings import load_settings


@pytest.fixture(autouse=True)
def young_orphans_too(stack: object):  # type: ignore[no-untyped-def]
    with with_settings(UPKEEP__ORPHAN_HOURS=0):
        yield


def raw_prefix(owner: Owner) -> str:
    return owner.tenant.raw_prefix(load_settings().object_store.bucket, "orders")


def stray(owner: Owner, name: str) -> str:
    """An object in the table's folder that nothing knows of."""
    path = f"{table(owner).location()}/data/timestamp_day=2026-11-19/{name}.parquet"
    object_store.put(path, b"nobody's")
    return path


@pytest.mark.parametrize("point", ["after.drain_and_conform", "after.land"])
@pytest.mark.sample(1)
def test_a_batch_in_flight_keeps_all_of_its_files(point: str, owner: Owner) -> None:
    """Drained, or staged, but not settled: even with no minimum age it settles afterwards."""
    owner.send(event("a"))
    ingest(owner)
    orphan = stray(owner, "00000-1-left-by-a-dead-compaction")
    owner.send(event("b"), event("a"), event("c"))
    batch = plan_batch([owner])
    running = start_attempt(batch, PULSE_FAIL_POINT=f"stop:{point}")
    running.stopped()
    raw_before = objects(raw_prefix(owner))
    swept, _ = done(owner, Task.ORPHANS, Task.RAW)
    assert orphan not in objects(table(owner).location())
    assert swept.after["removed"] >= 1
    assert objects(raw_prefix(owner)) == raw_before
    assert running.goes_on() == 0, running.said
    assert [row["id"] for row in owner.rows()] == ["a", "b", "c"]
    assert reconcile_tenant(owner.tenant).balanced


def test_files_of_a_killed_attempt_are_removed_once_its_batch_settled(owner: Owner) -> None:
    owner.send(event("a"), event("b"))
    batch = plan_batch([owner])
    dying = start_attempt(batch, PULSE_FAIL_POINT="after.land")
    dying.killed()
    remaining = objects(table(owner).location()) | objects(raw_prefix(owner))
    done(owner, Task.ORPHANS, Task.RAW)
    assert {p for p in remaining if batch in p} <= objects(table(owner).location()) | objects(
        raw_prefix(owner)
    )
    run_batch(batch, next_attempt(batch))
    swept, raw = done(owner, Task.ORPHANS, Task.RAW)
    paths = objects(table(owner).location()) | objects(raw_prefix(owner))
    assert not {path for path in paths if f"/{batch}-1-" in path}
    assert swept.after["removed"]
    assert raw.after["orphans_removed"]
    assert len(owner.rows()) == 2
    assert reconcile_tenant(owner.tenant).balanced


def test_a_deleted_dataset_keeps_its_files_also_when_its_slug_is_used_again(owner: Owner) -> None:
    owner.send(event("a"))
    ingest(owner)
    folder = table(owner).location()
    before = objects(folder)
    uri = orders(owner).schema_uri
    registry.delete_dataset(owner.tenant, "orders")
    registry.create_dataset(owner.tenant, "orders", uri)
    owner.send(event("b"))
    ingest(owner)
    done(owner, Task.MERGE, Task.EXPIRE, Task.ORPHANS, Task.RAW)
    assert objects(folder) == before
    assert reconcile_tenant(owner.tenant).balanced


def test_history_is_kept_as_set_and_files_of_expired_snapshots_are_removed(owner: Owner) -> None:
    moments = []
    for name in "abcd":
        owner.send(event(name))
        ingest(owner)
        moments.append(datetime.now(UTC))
    done(owner, Task.MERGE)
    newest, *_, oldest = snapshots(owner.tenant, "orders")
    with with_settings(UPKEEP__HISTORY_SNAPSHOTS=1_000, UPKEEP__HISTORY_HOURS=1):
        done(owner, Task.EXPIRE, Task.ORPHANS)
    assert preview(owner.tenant, "orders", 9, as_of=moments[0]).num_rows == 1
    with with_settings(UPKEEP__HISTORY_SNAPSHOTS=3, UPKEEP__HISTORY_MINIMUM=1):
        (expired,) = done(owner, Task.EXPIRE)
    assert (expired.before, expired.after) == ({"snapshots": 5}, {"snapshots": 3})
    assert preview(owner.tenant, "orders", 9, as_of=moments[2]).num_rows == 3
    with pytest.raises(NotFound, match="history is kept since"):
        preview(owner.tenant, "orders", 9, as_of=moments[1])
    with pytest.raises(NotFound, match="no such snapshot"):
        preview(owner.tenant, "orders", 9, snapshot_id=oldest.snapshot_id)
    with with_settings(UPKEEP__HISTORY_HOURS=0, UPKEEP__HISTORY_MINIMUM=2):
        done(owner, Task.EXPIRE, Task.ORPHANS)
    assert snapshots(owner.tenant, "orders")[0].snapshot_id == newest.snapshot_id
    assert preview(owner.tenant, "orders", 9, as_of=moments[3]).num_rows == 4
    assert len(snapshots(owner.tenant, "orders")) == 2
    assert reconcile_tenant(owner.tenant).balanced


def test_forgetting_history_leaves_only_files_of_the_current_snapshot(owner: Owner) -> None:
    for name in "ab":
        owner.send(event(name))
        ingest(owner)
    done(owner, Task.MERGE)
    before = objects(table(owner).location())
    with leases.rewriting(orders(owner).dataset_id):
        forgotten = expire_snapshots.forget_history(owner.tenant, orders(owner))
    assert forgotten.after["snapshots"] == 1
    remaining = objects(table(owner).location())
    live = table(owner)
    snapshot = live.current_snapshot()
    manifests = snapshot.manifests(live.io)
    reached = {live.metadata_location, snapshot.manifest_list, *(m.manifest_path for m in manifests)}
    assert remaining == reached | set(live_files(owner))
    assert len(remaining) < len(before)
    assert [row["id"] for row in owner.rows()] == ["a", "b"]
    owner.send(event("c"))
    ingest(owner)
    assert reconcile_tenant(owner.tenant).balanced


def test_old_metadata_files_are_removed_and_those_in_the_log_stay(owner: Owner) -> None:
    owner.send(event("a"))
    ingest(owner)
    for _ in range(25):
        done_by_hand = table(owner)
        with done_by_hand.transaction() as transaction:
            transaction.set_properties({"touched": str(_)})
        name = (owner.tenant.namespace, "orders")
        with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
            from pulse_resources import iceberg

            old = iceberg.current_location(connection, name)
            assert iceberg.swap(connection, name, old, done_by_hand.metadata_location)
    done(owner, Task.ORPHANS)
    metadata = [path for path in objects(table(owner).location()) if path.endswith(".metadata.json")]
    logged = {entry.metadata_file for entry in table(owner).metadata.metadata_log}
    assert len(logged) == 20
    assert set(metadata) == logged | {table(owner).metadata_location}


def test_an_age_is_a_difference_of_the_stores_own_clock(owner: Owner) -> None:
    path = stray(owner, "young")
    with with_settings(UPKEEP__ORPHAN_HOURS=1):
        done(owner, Task.ORPHANS)
    assert path in objects(table(owner).location())
    (entry,) = [candidate for candidate in store.listed(table(owner).location()) if candidate.path == path]
    assert timedelta(0) <= store.store_time() - entry.modified < timedelta(minutes=1)


def test_retention_is_recorded_before_it_deletes_and_spares_claims_in_flight(owner: Owner) -> None:
    owner.send(event("a"), event("b"))
    ingest(owner)
    before = objects(raw_prefix(owner))
    with with_settings(UPKEEP__RAW_DAYS=1, UPKEEP__CLAIM_DAYS=1):
        (nothing,) = done(owner, Task.RETENTION)
    assert nothing.after == {"raw_objects_removed": 0, "claims_removed": 0}
    assert objects(raw_prefix(owner)) == before
    age(owner)
    owner.send(event("c"))
    batch = plan_batch([owner])
    running = start_attempt(batch, PULSE_FAIL_POINT="stop:after.dedup_gate")
    running.stopped()
    age(owner)
    with with_settings(UPKEEP__RAW_DAYS=1, UPKEEP__CLAIM_DAYS=1):
        (retention,) = done(owner, Task.RETENTION)
    assert retention.after == {"raw_objects_removed": len(before), "claims_removed": 2}
    assert not objects(raw_prefix(owner)) & before
    running.goes_on()
    owner.send(event("a"), event("c"))
    ingest(owner)
    assert [row["id"] for row in owner.rows()] == ["a", "b", "c", "a"], "an id that is forgotten lands again"
    query = "SELECT count(*), count(removed_at), count(deleted_at) FROM raw_objects WHERE tenant_id = %s"
    with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
        rows, removed, deleted = connection.execute(query, [owner.tenant.tenant_id]).fetchone()
    assert rows > removed == deleted == len(before)


def age(owner: Owner) -> None:
    """Let everything of the tenant be three days old."""
    from support.lake import superuser

    mine = [owner.tenant.tenant_id]
    with superuser() as connection:
        connection.execute(
            "UPDATE processed_event_ids SET claimed_on = current_date - 3 WHERE tenant_id = %s", mine
        )
        connection.execute(
            "UPDATE ingest_batches SET settled_at = now() - interval '3 days' WHERE settled_at IS NOT NULL"
            " AND batch_id IN (SELECT batch_id FROM ingest_ranges WHERE tenant_id = %s)",
            mine,
        )
