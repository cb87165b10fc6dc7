"""An append extends the manifest list before it, or merges manifests, and every engine reads the result."""

import pytest
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from support.here import ingest_here as ingest
from support.ingest import Owner, event, make_owner
from support.lake import location, row, spark, table, with_file
from support.maintenance import done, objects

from chaos.surroundings import with_settings
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.monitoring.checks import subject
from pulse_pipelines.query import snapshots, tail
from pulse_pipelines.query.preview import preview
from pulse_resources import iceberg, postgres
from pulse_resources.iceberg import manifest_list
from pulse_resources.settings import Settings


@pytest.fixture
def extended(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The lists that were extended in this process."""
    calls, extend = [], manifest_list.extended

    def noted(content: bytes, before: bytes) -> bytes:
        calls.append(before)
        return extend(content, before)

    monkeypatch.setattr(manifest_list, "extended", noted)
    return calls


@pytest.fixture
def owner(owner: Owner) -> Owner:
    """A tenant with one event in its table."""
    return with_one(owner)


def with_one(owner: Owner) -> Owner:
    owner.send(event("first"))
    ingest(owner)
    return owner


def with_merges(owner: Owner) -> Owner:
    """Seven appends to the owner's table, of which the third and the sixth one merged what was there."""
    for number in range(1, 7):
        append(owner, number)
    return owner


@pytest.fixture
def merging(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> Owner:
    """With merges, which go on."""
    monkeypatch.setattr(manifest_list, "MERGED_FROM", 3)
    return with_merges(owner)


@pytest.fixture(scope="module")
def merged(stack: Settings) -> Owner:
    """With merges; tests add nothing to it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(manifest_list, "MERGED_FROM", 3)
        return with_merges(with_one(make_owner()))


def append(owner: Owner, number: int) -> None:
    """Commit one more row, in this process, as a batch of its own."""
    rows = row(owner, id=f"more {number}", _offset=number)
    move(owner, with_file(owner, rows, batch=f"batch {number}"))


def move(owner: Owner, after: str) -> None:
    with postgres.transaction("pulse_catalog") as connection:
        assert iceberg.swap(connection, (owner.tenant.namespace, "orders"), location(owner), after)


def manifests(current: Table) -> list[ManifestFile]:
    snapshot = current.current_snapshot()
    assert snapshot
    return snapshot.manifests(current.io)


def test_appends_extend_the_list(owner: Owner, extended: list[bytes]) -> None:
    for number in range(1, 5):
        append(owner, number)
    assert len(extended) == 4
    current = table(owner)
    listed = [(m.added_snapshot_id, m.sequence_number, m.added_files_count) for m in manifests(current)]
    assert listed == [(s.snapshot_id, s.sequence_number, 1) for s in reversed(current.snapshots())]
    name = f"pulse.{owner.tenant.namespace}.orders"
    ids = {"first", "more 1", "more 2", "more 3", "more 4"}
    assert set(current.scan().to_arrow().column("id").to_pylist()) == ids
    assert {row["id"] for row in owner.rows()} == ids
    assert set(spark().sql(f"SELECT id FROM {name}").toArrow().column("id").to_pylist()) == ids
    snapshots = spark().sql(f"SELECT added_snapshot_id FROM {name}.manifests").toArrow()
    assert len(set(snapshots.column(0).to_pylist())) == 5


def test_an_append_after_a_removal_leaves_the_removals_out(owner: Owner, extended: list[bytes]) -> None:
    (removed,) = [task.file for task in table(owner).scan().plan_files()]
    append(owner, 1)
    move(owner, iceberg.stage_replace(table(owner), [removed], [], {"test": "yes"}).new)
    assert any(not m.has_added_files() and not m.has_existing_files() for m in manifests(table(owner)))
    extended.clear()
    append(owner, 2)
    assert not extended
    assert all(m.has_added_files() or m.has_existing_files() for m in manifests(table(owner)))
    append(owner, 3)
    assert len(extended) == 1
    assert {row["id"] for row in owner.rows()} == {"more 1", "more 2", "more 3"}


def test_a_manifest_list_of_another_writer_is_rewritten(owner: Owner, extended: list[bytes]) -> None:
    name = f"pulse.{owner.tenant.namespace}.orders"
    spark().sql(f"INSERT INTO {name} SELECT * FROM {name}").collect()
    append(owner, 1)
    assert not extended
    append(owner, 2)
    assert len(extended) == 1
    assert sorted(row["id"] for row in owner.rows()) == ["first", "first", "more 1", "more 2"]


def test_appends_merge_manifests_and_files_keep_their_snapshots_and_numbers(merged: Owner) -> None:
    current = table(merged)
    assert [(m.added_files_count, m.existing_files_count) for m in manifests(current)] == [(1, 0), (0, 6)]
    newest, of_all = manifests(current)
    assert (newest.min_sequence_number, of_all.min_sequence_number, of_all.existing_rows_count) == (7, 1, 6)
    entries = [
        e for m in manifests(current) for e in m.fetch_manifest_entry(current.io, discard_deleted=False)
    ]
    ids = {(e.snapshot_id, e.sequence_number, e.file_sequence_number) for e in entries}
    assert ids == {(s.snapshot_id, s.sequence_number, s.sequence_number) for s in current.snapshots()}
    name = f"pulse.{merged.tenant.namespace}.orders"
    rows = {"first", *(f"more {number}" for number in range(1, 7))}
    assert set(current.scan().to_arrow().column("id").to_pylist()) == rows
    assert {row["id"] for row in merged.rows()} == rows
    assert set(spark().sql(f"SELECT id FROM {name}").toArrow().column("id").to_pylist()) == rows
    added = spark().read.option("start-snapshot-id", current.snapshots()[-3].snapshot_id).table(name)
    assert set(added.select("id").toArrow().column("id").to_pylist()) == {"more 5", "more 6"}


def test_earlier_snapshots_keep_the_manifests_that_a_later_append_merged(merged: Owner) -> None:
    with with_settings(UPKEEP__ORPHAN_HOURS=0):
        done(merged, Task.ORPHANS)
    for count, snapshot in enumerate(reversed(snapshots.snapshots(merged.tenant, "orders")), 1):
        rows = preview(merged.tenant, "orders", 9, snapshot_id=snapshot.snapshot_id)
        assert rows.num_rows == count


def test_a_merge_that_lost_its_commit_is_removed_as_an_orphan(merging: Owner) -> None:
    append(merging, 7)
    append(merging, 8)
    before = location(merging)
    lost = with_file(merging, row(merging, id="lost", _offset=9), base=before)
    staged = iceberg.load_table((merging.tenant.namespace, "orders"), lost)
    written = {m.manifest_path for m in manifests(staged)} - {
        m.manifest_path for m in manifests(table(merging))
    }
    assert len(written) == 2, "the append's own manifest, and the merged one"
    append(merging, 9)
    with with_settings(UPKEEP__ORPHAN_HOURS=0):
        done(merging, Task.ORPHANS)
    assert not written & objects(table(merging).location())
    assert preview(merging.tenant, "orders", 99).num_rows == 10


def test_merged_manifests_keep_the_files_of_each_batch(merged: Owner) -> None:
    everything = subject.load(merged.tenant, "orders", subject.Scope()).files
    files_of_batches = [
        subject.load(merged.tenant, "orders", subject.Scope(f"batch {number}")).files
        for number in range(1, 7)
    ]
    assert [len(files) for files in files_of_batches] == [1] * 6
    assert {file.file_path for files in files_of_batches for file in files} < {
        file.file_path for file in everything
    }


def test_rows_are_followed_through_a_merge(merging: Owner) -> None:
    following = tail.follow(merging.tenant, "orders", lambda: append(merging, next(numbers)))
    numbers = iter(range(7, 12))
    ids = [row["id"] for _ in range(4) for row in next(following).to_pylist()]
    assert ids == ["more 7", "more 8", "more 9", "more 10"]


def test_the_smallest_are_merged_and_large_ones_are_left() -> None:
    def sizes(*files: int) -> list[int]:
        listed = [
            ManifestFile.from_args(manifest_path=str(n), added_files_count=0, existing_files_count=count)
            for n, count in enumerate(files)
        ]
        return [manifest.existing_files_count or 0 for manifest in manifest_list.smallest(listed)]

    assert sizes(*[2] * 8, 16, 64) == [*[2] * 8, 16]
    assert sizes(*[2] * 8, 17) == [2] * 8
    assert sizes(*[1] * 8, 8, 16, 32) == [*[1] * 8, 8, 16, 32]
    assert sizes(300, 300, 300, 300) == [300, 300, 300]
    assert sizes(999, 5_000) == []
