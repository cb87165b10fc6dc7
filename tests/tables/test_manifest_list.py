"""An append extends the manifest list of the snapshot before it, and every engine reads the result."""

import pytest
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from support.ingest import Owner, event, ingest
from support.lake import location, row, spark, table, with_file

from pulse_resources import iceberg, manifest_list, postgres


@pytest.fixture
def extended(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The lists that were extended in this process."""
    found, extend = [], manifest_list.extended

    def noted(content: bytes, before: bytes) -> bytes:
        found.append(before)
        return extend(content, before)

    monkeypatch.setattr(manifest_list, "extended", noted)
    return found


@pytest.fixture
def owner(owner: Owner) -> Owner:
    """A tenant with one event in its table."""
    owner.send(event("first"))
    ingest(owner)
    return owner


def append(owner: Owner, number: int) -> None:
    """Commit one more row, in this process."""
    move(owner, with_file(owner, row(owner, id=f"more {number}", _offset=number)))


def move(owner: Owner, after: str) -> None:
    with postgres.transaction("pulse_catalog") as connection:
        assert iceberg.swap(connection, (owner.tenant.namespace, "orders"), location(owner), after)


def manifests(found: Table) -> list[ManifestFile]:
    snapshot = found.current_snapshot()
    assert snapshot
    return snapshot.manifests(found.io)


def test_appends_extend_the_list(owner: Owner, extended: list[bytes]) -> None:
    for number in range(1, 5):
        append(owner, number)
    assert len(extended) == 4
    found = table(owner)
    listed = [(m.added_snapshot_id, m.sequence_number, m.added_files_count) for m in manifests(found)]
    assert listed == [(s.snapshot_id, s.sequence_number, 1) for s in reversed(found.snapshots())]
    name = f"pulse.{owner.tenant.namespace}.orders"
    ids = {"first", "more 1", "more 2", "more 3", "more 4"}
    assert set(found.scan().to_arrow().column("id").to_pylist()) == ids
    assert {row["id"] for row in owner.rows()} == ids
    assert set(spark().sql(f"SELECT id FROM {name}").toArrow().column("id").to_pylist()) == ids
    snapshots = spark().sql(f"SELECT added_snapshot_id FROM {name}.manifests").toArrow()
    assert len(set(snapshots.column(0).to_pylist())) == 5


def test_an_append_after_a_removal_leaves_the_removals_out(owner: Owner, extended: list[bytes]) -> None:
    (gone,) = [task.file for task in table(owner).scan().plan_files()]
    append(owner, 1)
    move(owner, iceberg.stage_replace(table(owner), [gone], [], {"test": "yes"}).new)
    assert any(not m.has_added_files() and not m.has_existing_files() for m in manifests(table(owner)))
    extended.clear()
    append(owner, 2)
    assert not extended
    assert all(m.has_added_files() or m.has_existing_files() for m in manifests(table(owner)))
    append(owner, 3)
    assert len(extended) == 1
    assert {row["id"] for row in owner.rows()} == {"more 1", "more 2", "more 3"}


def test_a_list_that_another_writer_wrote_is_written_anew(owner: Owner, extended: list[bytes]) -> None:
    name = f"pulse.{owner.tenant.namespace}.orders"
    spark().sql(f"INSERT INTO {name} SELECT * FROM {name}").collect()
    append(owner, 1)
    assert not extended
    append(owner, 2)
    assert len(extended) == 1
    assert sorted(row["id"] for row in owner.rows()) == ["first", "first", "more 1", "more 2"]
