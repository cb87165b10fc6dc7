"""An object store that lost what was written after its backup: Kafka and the ledger give it back, exactly."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from pyiceberg.catalog.rest import RestCatalog
from support.backfill import balanced, move
from support.catalog import Guest
from support.entities import entity, make_entities
from support.faults import AtPoint
from support.here import ingest_here as ingest, run_here
from support.ingest import Owner, event
from support.lake import location, table
from typer.testing import CliRunner

from chaos.waiting import PATIENCE_S
from pulse_api.cli import app
from pulse_pipelines import registry
from pulse_pipelines.backfill import rebuild
from pulse_pipelines.erasure.run import erase
from pulse_pipelines.maintenance import retention
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.restore import findings, raw_refill, repair
from pulse_pipelines.restore.findings import Finding, Kind
from pulse_pipelines.restore.repair import Repaired
from pulse_pipelines.tables import orphan_files, raw_zone, store_mark
from pulse_resources import kafka, object_store, spark
from pulse_resources.settings import load_settings


@pytest.fixture
def owner(owner: Owner) -> Iterator[Owner]:
    """Its datasets are deleted after the test: it leaves some without files, and others look at all."""
    yield owner
    for dataset in registry.list_datasets(owner.tenant):
        registry.delete_dataset(owner.tenant, dataset.slug)


def of_day(day: int, event_id: str, **data: Any) -> bytes:
    return event(event_id, **data).replace(b"2026-11-19", f"2026-11-{day:02}".encode())


def objects(owner: Owner) -> set[str]:
    """All objects of a tenant's tables and raw zone."""
    bucket, tenant = load_settings().object_store.bucket, owner.tenant
    folders = (f"s3://{bucket}/iceberg/{tenant.namespace}", f"s3://{bucket}/raw/{tenant.tenant_id.hex}")
    return {entry.path for folder in folders for entry in object_store.listed(folder)}


def findings_of(owner: Owner) -> list[Finding]:
    return list(findings.find_in(owner.tenant))


def repaired(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> list[Repaired]:
    for module in (raw_refill, rebuild):
        monkeypatch.setattr(module, "run_tasks", run_here)
    return list(repair.repair(spark.shared(), owner.tenant, parallelism=2))


def test_data_written_after_the_backup_is_rebuilt(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    owner.send(of_day(17, "a"), of_day(18, "b"), of_day(19, "c"))
    ingest(owner)
    backup = objects(owner)
    owner.send(
        of_day(18, "d"), of_day(18, "a"), of_day(20, "e", amount=1.5), b"not JSON", event("x", dataset="y")
    )
    ingest(owner)
    owner.send(of_day(20, "f"), event("z", country=3))
    ingest(owner)
    before = owner.rows()
    object_store.delete(objects(owner) - backup)

    kinds = [(finding.kind, finding.subject) for finding in findings_of(owner)]
    assert kinds.count((Kind.TABLE, "orders")) == 1
    assert kinds.count((Kind.RAW, "_unresolved, orders")) == 1
    assert kinds.count((Kind.RAW, "orders")) == 1
    steps = repaired(owner, monkeypatch)
    assert [step.failed for step in steps] == [None] * len(steps)
    assert [str(step.day) for step in steps if step.day] == ["2026-11-18", "2026-11-20"]
    assert findings_of(owner) == []
    assert owner.rows() == before
    report = reconcile_tenant(owner.tenant, raw=True)
    assert report.problems == []
    assert repaired(owner, monkeypatch) == []
    owner.send(of_day(20, "f"), of_day(20, "g"))
    ingest(owner)
    assert [row["id"] for row in owner.rows()] == [*(row["id"] for row in before), "g"]
    balanced(owner)


@pytest.mark.parametrize(
    ("moved", "newest", "rebuilt_from"),
    [
        pytest.param({"colour": {"type": "string"}}, "its metadata is gone, the newest", 17, id="added"),
        pytest.param(
            {"count": {"type": "number"}}, "no metadata of the table can be used", 16, id="replaced"
        ),
    ],
)
def test_a_table_that_lost_its_metadata_since_a_move_is_rebuilt(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, moved: dict[str, Any], newest: str, rebuilt_from: int
) -> None:
    """Rows of a column that was replaced are only in the raw zone."""
    owner.send(of_day(16, "a", count=1), of_day(17, "b", count=2))
    ingest(owner)
    backup = objects(owner)
    move(owner, **moved)
    owner.send(of_day(17, "c", colour="red", count=3))
    ingest(owner)
    before = owner.rows()
    object_store.delete(objects(owner) - backup)
    (lost,) = [finding for finding in findings_of(owner) if finding.kind is Kind.TABLE]
    assert lost.detail.startswith(newest)
    assert {step.failed for step in repaired(owner, monkeypatch)} == {None}
    # As after any backfill, rows of rebuilt days follow the newest version.
    assert owner.rows() == [
        row | {"schema_version": 2} if row["timestamp"].day >= rebuilt_from else row for row in before
    ]
    balanced(owner)
    assert findings_of(owner) == []


def test_a_table_that_would_begin_without_rows_it_cannot_rebuild_stays(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.send(of_day(16, "a", count=1))
    ingest(owner)
    backup = objects(owner)
    move(owner, count={"type": "number"})
    pointer = location(owner)
    object_store.delete({pointer, *(path for path in backup if "/raw/" in path)})
    for future in kafka.admin().delete_records([TopicPartition(owner.tenant.topic, 0, 1)]).values():
        future.result(PATIENCE_S)
    (step,) = repaired(owner, monkeypatch)
    assert step.failed == "no metadata with its columns is there, and not all of its days can be rebuilt"
    assert location(owner) == pointer


def test_erased_persons_do_not_come_back(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    backup = objects(owner)
    owner.send(
        event("a", country="DE"), event("b", country="FR"), event("a", country="DE"), event("bad", country=1)
    )
    ingest(owner)
    erase(owner.tenant, "orders", "country=DE", lambda _: None)
    object_store.delete(objects(owner) - backup)
    assert [step.failed for step in repaired(owner, monkeypatch)] == [None] * 3
    assert [row["id"] for row in owner.rows()] == ["b"]
    lines = b"".join(
        line
        for path in objects(owner)
        if path.endswith(".gz")
        for line in raw_refill.raw_zone.unpack(raw_refill.raw_zone.content(path))
    )
    assert b'"b"' in lines
    assert b"DE" not in lines
    balanced(owner)


def test_events_that_came_before_the_repair_are_named(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their day has no rows by the ledger, so no day that is rebuilt lands them."""
    backup = objects(owner)
    owner.send(of_day(17, "a"))
    ingest(owner)
    object_store.delete(objects(owner) - backup)
    owner.send(of_day(18, "b"))
    ingest(owner)
    assert [letter["reason"] for letter in owner.dead_letters()] == ["landing_failed"]
    assert [step.failed for step in repaired(owner, monkeypatch)] == [None] * 3
    assert [row["id"] for row in owner.rows()] == ["a"]
    assert findings_of(owner) == []  # without a restore such letters are an alert's
    monkeypatch.setattr(store_mark, "compare", lambda: store_mark.Restored(None, None, "mark"))
    (finding,) = findings_of(owner)
    assert finding.detail == "events that could not land are dead letters: 1"
    command = f"`pulse dlq replay {owner.tenant.slug} --dataset orders --reason landing_failed`"
    assert command in finding.fix


def test_raw_objects_of_erased_persons_are_deleted_again(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup is older than the erasure, so its bucket has the objects that the erasure rewrote."""
    owner.send(event("a", country="DE"), event("b", country="FR"))
    ingest(owner)
    backup = {path: raw_zone.content(path) for path in objects(owner) if path.endswith(".gz")}
    erase(owner.tenant, "orders", "country=DE", lambda _: None)
    retention.delete_removed(owner.tenant)
    (deleted,) = backup.keys() - objects(owner)
    object_store.put(deleted, backup[deleted])
    (finding,) = findings_of(owner)
    assert finding.detail == "objects that retention or an erasure had deleted are there again: 1"
    assert [step.failed for step in repaired(owner, monkeypatch)] == [None]
    assert findings_of(owner) == []
    assert deleted not in objects(owner)
    assert [row["id"] for row in owner.rows()] == ["b"]
    balanced(owner)


@pytest.mark.parametrize("lost", [".metadata.json", "/snap-"])
def test_a_table_of_the_tenants_own_whose_metadata_is_gone_is_named(
    writer: Guest, own_engine: RestCatalog, lost: str
) -> None:
    rows = pa.table({"id": pa.array([1], pa.int64())})
    table = own_engine.create_table("own.mail", rows.schema)
    table.append(rows)
    earlier, backup = table.metadata_location, objects(writer.owner)
    table.append(rows)
    location = table.metadata_location
    assert findings_of(writer.owner) == []
    younger = objects(writer.owner) - backup
    lost_paths = [path for path in younger if lost in path.removeprefix(table.location())]
    assert len(lost_paths) == 1
    object_store.delete(lost_paths)
    (finding,) = findings_of(writer.owner)
    assert (finding.kind, finding.subject) == (Kind.TENANT_TABLE, "own.mail")
    assert finding.detail.endswith(f"is gone: {location}")
    assert finding.fix.endswith(f"by {earlier}")
    own_engine.purge_table("own.mail")


def test_a_dropped_table_is_not_a_difference(writer: Guest, own_engine: RestCatalog) -> None:
    """A drop leaves the files, as a restored catalog does not know those of a table that is younger."""
    rows = pa.table({"id": pa.array([1], pa.int64())})
    table = own_engine.create_table("own.mail", rows.schema)
    table.append(rows)
    own_engine.drop_table("own.mail")
    assert findings_of(writer.owner) == []
    own_engine.register_table("own.mail", table.metadata_location)
    own_engine.purge_table("own.mail")


def test_events_that_kafka_no_longer_holds_are_named(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    owner.send(of_day(17, "a"), of_day(17, "b"))
    batch = ingest(owner)
    backup = objects(owner)
    owner.send(of_day(18, "c"))
    ingest(owner)
    raw = {path for path in backup if "/raw/" in path}
    object_store.delete(raw | {path for path in backup if path.endswith(".parquet")})
    for future in kafka.admin().delete_records([TopicPartition(owner.tenant.topic, 0, 2)]).values():
        future.result(PATIENCE_S)
    table, lost = findings_of(owner)
    assert "2026-11-17 cannot be rebuilt: raw objects are gone, and the topic no longer holds" in table.fix
    assert "rebuilds the others" not in table.fix
    assert lost.detail == f"2 events of batch {batch} (partition 0 from 0 to 2) are not in the raw zone"
    (step,) = repaired(owner, monkeypatch)
    assert str(step.day) == "2026-11-17"
    assert step.failed is not None
    assert step.failed.startswith(f"raw objects of batch {batch} are gone: put them back from a backup")
    assert [finding.kind for finding in findings_of(owner)] == [Kind.TABLE, Kind.RAW]


def test_files_of_earlier_snapshots(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time travel to them ends; the rows of today are as they were."""
    owner.send(event("a"))
    ingest(owner)
    first = {path for path in objects(owner) if "/snap-" in path}
    owner.send(event("b"))
    ingest(owner)
    object_store.delete(first)
    (finding,) = findings_of(owner)
    assert finding.detail == "earlier snapshots with files that are gone: 1"
    (step,) = repaired(owner, monkeypatch)
    assert (step.done, step.failed) == (
        "earlier snapshots removed, because files of theirs are gone: 1",
        None,
    )
    assert findings_of(owner) == []
    assert [row["id"] for row in owner.rows()] == ["a", "b"]


def test_a_process_that_dies_between_two_steps(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, at: AtPoint
) -> None:
    def die() -> None:
        raise RuntimeError("killed")

    backup = objects(owner)
    owner.send(event("a"))
    ingest(owner)
    owner.send(event("b"))
    ingest(owner)
    before, pointer = owner.rows(), location(owner)
    object_store.delete(objects(owner) - backup)
    for point in ("restore.before_register", "restore.repoint.before_commit", "backfill.rebuilt"):
        at(point, die)
        with pytest.raises(RuntimeError, match="killed"):
            repaired(owner, monkeypatch)
        assert pointer == location(owner) or point == "backfill.rebuilt"
    assert [step.failed for step in repaired(owner, monkeypatch)] == [None]
    assert owner.rows() == before
    assert findings_of(owner) == []
    balanced(owner)


def test_the_commands(owner: Owner) -> None:
    owner.send(event("a"))
    ingest(owner)
    slug, before = owner.tenant.slug, owner.rows()
    run = CliRunner().invoke
    assert run(app, ["restore", "check", slug]).output == "Postgres, the object store and Kafka agree\n"
    object_store.delete(path for path in objects(owner) if path.endswith((".parquet", ".gz")))
    checked = run(app, ["restore", "check", slug])
    assert checked.exit_code == 1
    assert (
        f"table: tenant {slug}, orders: data files that are gone: 1; days to be rebuilt: 1 (2026-11-19)"
        in checked.output
    )
    assert f"`pulse restore repair {slug}` repairs it, from the raw zone" in checked.output
    done = run(app, ["restore", "repair", slug])
    assert (done.exit_code, done.stdout) == (0, "3 steps done, 0 failed\n")
    assert owner.rows() == before
    assert (
        run(app, ["restore", "repair", slug]).stdout == "Nothing can be repaired: see `pulse restore check`\n"
    )


def test_a_log_of_entities_is_never_rebuilt(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its metadata alone can be replaced: readers hold places in the log."""
    make_entities(owner)
    owner.send(entity("DE", people=80))
    ingest(owner)
    before, pointer = owner.rows("countries"), location(owner, "countries")
    backup = objects(owner)
    orphan_files.remove(owner.tenant, lambda: table(owner, "countries"), [])
    assert location(owner, "countries") != pointer
    object_store.delete([location(owner, "countries")])
    (step,) = repaired(owner, monkeypatch)
    assert (step.done, step.failed) == ("pointed at metadata that is there", None)
    assert owner.rows("countries") == before
    object_store.delete(path for path in backup if "/countries/" in path and path.endswith(".parquet"))
    (finding,) = findings_of(owner)
    assert finding.fix.startswith("A log of entities cannot be rebuilt: put its files back from a backup")
    assert repaired(owner, monkeypatch) == []
