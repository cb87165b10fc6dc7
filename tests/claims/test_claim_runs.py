"""Claims as runs: added once, merged by size, kept in files, and forgotten as a whole."""

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import numpy as np
import pytest
from support.claims import add, fresh_of, known, names, orders, runs, session
from support.here import ingest_here as ingest
from support.ingest import Owner, event
from support.lake import superuser

from chaos.surroundings import with_settings
from pulse_pipelines.claims import claim_cache, claim_runs
from pulse_pipelines.claims.claim_cache import Run
from pulse_pipelines.tables import parquet_files
from pulse_resources import postgres
from pulse_resources.errors import Transient
from pulse_resources.settings import load_settings

NOTHING = np.empty(0, np.int64)


def test_the_second_claim_of_an_id_is_refused(owner: Owner) -> None:
    """Both looked while nothing was claimed; what they have in common belongs to the first."""
    first, second, third = (fresh_of(owner, ids) for ids in (["a", "b"], ["b", "c"], ["d"]))
    assert add(owner, first)
    assert not add(owner, second)
    assert add(owner, third), "nothing of it was claimed meanwhile"
    assert known(owner, "a", "b", "c", "d") == {"a", "b", "d"}


def test_runs_of_a_size_become_one(owner: Owner) -> None:
    sent: list[str] = []
    for n in range(200):
        ids = names(1 + n % 7, f"{n}-")
        assert add(owner, fresh_of(owner, ids))
        sent += ids
    all_runs = runs(owner)
    assert sum(run.ids for run in all_runs) == len(sent)
    assert len(all_runs) <= 3 * len({run.ids.bit_length() // 2 for run in all_runs}) <= 20
    assert known(owner, *sent, "never") == set(sent)


def run_of(ids: int, days: int = 0) -> Run:
    return Run(UUID(int=1), ids, ids, ids, [], datetime.now(UTC).date() - timedelta(days), None)


@pytest.mark.parametrize(
    ("added", "there", "replaced"),
    [
        (10, [], []),
        (10, [10, 11], []),
        (10, [10, 11, 12], [10, 11, 12]),
        (10, [10, 11, 12, 5000], [10, 11, 12]),
        (10, [10, 11, 12, 40, 50, 60], [10, 11, 12, 40, 50, 60]),
        (100_000, [3, 4, 5], [3, 4, 5]),
        (claim_runs.MERGED_IDS, [3, 4, 5], []),
        (400_000, [300_000, 300_001, 300_002], []),
    ],
)
def test_a_new_run_replaces_runs_of_similar_size(added: int, there: list[int], replaced: list[int]) -> None:
    assert [run.ids for run in claim_runs._replaced(added, map(run_of, there))] == replaced


def test_retention_finds_whole_runs() -> None:
    with with_settings(UPKEEP__CLAIM_DAYS=8):
        old, new = [run_of(10 + n, days=2) for n in range(3)], [run_of(20 + n) for n in range(3)]
        assert claim_runs._replaced(10, [*old, *new]) == new
        staying = [replace(run, stays=True) for run in (*old, *new)]
        assert claim_runs._replaced(10, staying) == staying, "of a dataset that a pipe brings"


def test_a_claim_run_records_its_end_offsets(owner: Owner) -> None:
    owner.send(event("a"), event("b"))
    ingest(owner)
    (run,) = runs(owner)
    assert (run.ends, run.run) == ([2], run.newest)
    with superuser() as connection:
        old = "UPDATE processed_event_ids SET claimed_on = current_date - 9 WHERE tenant_id = %s"
        connection.execute(old, [owner.tenant.tenant_id])
    with session(owner) as connection:
        assert claim_runs.expire(connection, owner.tenant.tenant_id, 8) == (2, {0: 2})
    assert known(owner, "a", "b") == set()


@pytest.fixture
def large(owner: Owner) -> Owner:
    """Its dataset has a run that goes to a file."""
    assert add(owner, fresh_of(owner, names(claim_cache.RETAINED_IDS)))
    return owner


def files(owner: Owner) -> list[str]:
    folder = load_settings().home / "claims" / str(orders(owner).dataset_id)
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_large_run_is_fetched_once(large: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    assert files(large) == []
    assert known(large, "e1", "x") == {"e1"}
    (run,) = runs(large)
    assert files(large) == [str(run.run)]
    monkeypatch.setattr(claim_cache, "DIGESTS", "SELECT 1/0, %s, %s")
    assert known(large, "e1", "x") == {"e1"}


@pytest.mark.parametrize("harm", ["short", "empty", "folder"])
def test_a_damaged_run_file_is_not_used(large: Owner, harm: str) -> None:
    assert known(large, "e1") == {"e1"}
    (run,) = runs(large)
    path = load_settings().home / "claims" / str(orders(large).dataset_id) / str(run.run)
    content = path.read_bytes()
    path.unlink()
    if harm == "folder":
        path.mkdir()
    else:
        path.write_bytes(content[:-16] if harm == "short" else b"")
    assert known(large, "e1", "x") == {"e1"}


def test_files_of_removed_runs_are_deleted(large: Owner) -> None:
    assert known(large, "e1") == {"e1"}
    (before,) = runs(large)
    for n in range(3):
        assert add(large, fresh_of(large, names(claim_cache.RETAINED_IDS, f"{n}-")))
    (after,) = runs(large)
    assert after.ids == 4 * claim_cache.RETAINED_IDS
    assert known(large, "e1", "0-1", "2-1") == {"e1", "0-1", "2-1"}
    assert str(before.run) in files(large)
    claim_cache.clean(orders(large).dataset_id, [after])
    assert files(large) == [str(after.run)]
    with with_settings(INGEST__CLAIM_FILES_MB=0):
        claim_cache.clean(orders(large).dataset_id, [after])
    assert files(large) == []
    assert known(large, "e1", "x") == {"e1"}


def test_a_snapshot_keeps_the_runs_that_it_read(large: Owner) -> None:
    dataset_id = orders(large).dataset_id
    with postgres.tenant_transaction(
        "pulse_pipeline", large.tenant.tenant_id, one_snapshot=True
    ) as connection:
        (run,) = claim_runs.runs(connection, [dataset_id])[dataset_id]
        with superuser() as other:
            other.execute("DELETE FROM processed_event_ids WHERE dataset_id = %s", [dataset_id])
        assert len(claim_cache.digests(connection, run)) == claim_cache.RETAINED_IDS
    (path,) = (load_settings().home / "claims" / str(dataset_id)).iterdir()
    path.unlink()
    with session(large) as connection, pytest.raises(Transient, match="replaced meanwhile"):
        claim_cache.digests(connection, run)


def test_claims_of_a_dataset_are_added_one_after_the_other(owner: Owner) -> None:
    """By the lock on its table's pointer: of eight at once that land the same id, one does."""
    from pulse_pipelines.tables import live_table
    from pulse_resources import iceberg

    fresh, dataset = fresh_of(owner, ["a"]), orders(owner)
    name, won, lock = (owner.tenant.namespace, "orders"), [], threading.Barrier(8)

    def land() -> None:
        lock.wait()
        for _ in range(20):
            location = live_table.current_location(owner.tenant.tenant_id, name)
            with session(owner) as connection:
                if iceberg.swap(connection, name, location, location):
                    won.append(claim_runs.add(connection, owner.tenant.tenant_id, dataset.dataset_id, fresh))
                    return

    threads = [threading.Thread(target=land) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]


def test_positions_by_partition() -> None:
    at = np.array([parquet_files.position(*p) for p in [(2, 5), (0, 7), (2, 3), (0, 0)]], np.int64)
    assert parquet_files.by_partition(at) == {0: [0, 7], 2: [3, 5]}
    assert parquet_files.ends(at) == [8, 0, 6]
    assert parquet_files.by_partition(NOTHING) == {}
    assert parquet_files.ends(NOTHING) == []
