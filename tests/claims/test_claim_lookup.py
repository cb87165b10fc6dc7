"""Ids looked up in large runs through their filters: whatever is on this machine, and whatever is torn."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.claims import IDS, add, fresh_of, known, names, orders, runs, session
from support.faults import AtPoint
from support.ingest import Owner
from support.lake import harmed, superuser

from pulse_pipelines.claims import claim_cache, claim_filters, claim_lookup, claim_runs, merge_claims
from pulse_pipelines.tables.digests import Digests
from pulse_resources.errors import Transient
from pulse_resources.settings import load_settings

IDS_PER_PREFIX, PREFIXES = 400, "abcd"
EVERY = [name for prefix in PREFIXES for name in names(IDS_PER_PREFIX, prefix)]
OTHERS = names(1_000, "other")


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (claim_runs, merge_claims):
        monkeypatch.setattr(module, "LARGE_IDS", 100)
        monkeypatch.setattr(module, "MERGED_IDS", 300)
    monkeypatch.setattr(claim_runs, "RETAINED_IDS", 0)
    monkeypatch.setattr(claim_lookup, "IDS_PER_RANGE", 0)


@pytest.fixture
def full(owner: Owner) -> Owner:
    """Its dataset has large runs."""
    for prefix in PREFIXES:
        assert add(owner, fresh_of(owner, names(IDS_PER_PREFIX, prefix)))
    return owner


@pytest.fixture(params=["as they were added", "pieces of one"])
def either(full: Owner, request: pytest.FixtureRequest) -> Owner:
    if request.param == "pieces of one":
        assert merge_claims.merge_claims(orders(full)) == len(EVERY)
        shutil.rmtree(folder(full))
    return full


def folder(owner: Owner) -> Path:
    return load_settings().home / "claims" / str(orders(owner).dataset_id)


def files(owner: Owner) -> set[str]:
    return {path.name for path in folder(owner).glob("*")}


def assert_known(owner: Owner) -> None:
    """Of many ids and of one, of all that are claimed and of none."""
    assert known(owner, *EVERY, *OTHERS) == set(EVERY)
    assert known(owner, *EVERY) == set(EVERY)
    assert known(owner, *OTHERS) == set()
    assert known(owner, "a1", "other1") == {"a1"}


def test_a_machine_without_files_brings_filters_only(either: Owner) -> None:
    all_runs = runs(either)
    assert all(run.filter_bytes for run in all_runs)
    assert_known(either)
    assert files(either) == {f"{pieces[0].run}.filters" for pieces in claim_cache.wholes(all_runs)}
    assert_known(either)
    claim_cache.clean(orders(either).dataset_id, all_runs)
    assert len(files(either)) == len(claim_cache.wholes(all_runs))


def test_a_lookup_of_many_possible_ids_fetches_the_run(
    either: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_lookup, "IDS_PER_RANGE", 10)  # a tenth of a run's ids are many
    all_runs = runs(either)
    assert known(either, *EVERY[:3], *OTHERS) == set(EVERY[:3])
    assert not files(either) & {str(run.run) for run in all_runs}
    assert known(either, *EVERY, *OTHERS) == set(EVERY)
    assert files(either) >= {str(run.run) for run in all_runs}
    monkeypatch.setattr(claim_lookup, "READ", "SELECT 1/0")
    assert_known(either)
    claim_cache.clean(orders(either).dataset_id, all_runs)
    assert files(either) >= {str(run.run) for run in all_runs}


def test_ranges_are_read_some_at_a_time(either: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_lookup, "RANGES", 7)
    assert_known(either)


@pytest.mark.parametrize("harm", ["short", "empty", "zeros", "other", "folder"])
@pytest.mark.sample(5)  # each of them
def test_a_damaged_filter_file_is_not_used(either: Owner, harm: str) -> None:
    assert_known(either)
    for path in list(folder(either).iterdir()):
        content = path.read_bytes()
        path.unlink()
        if harm == "folder":
            path.mkdir()
        else:
            other = claim_filters.make(Digests(*(np.arange(9, dtype=np.uint64),) * 2))
            torn = {"short": content[:-8], "empty": b"", "zeros": bytes(len(content))}
            path.write_bytes(torn.get(harm, other[: len(content)].ljust(len(content), b"\0")))
    assert_known(either)


def test_on_a_full_disk_filters_are_read_one_by_one(either: Owner) -> None:
    folder(either).parent.mkdir(exist_ok=True)
    folder(either).write_text("in the way")
    try:
        assert_known(either)
    finally:
        folder(either).unlink()


@pytest.mark.parametrize("torn", ["''", "'\\x00'", "substring(filter FROM 1 FOR 100)", "NULL",
    "overlay(filter PLACING '\\xff00ff' FROM octet_length(filter) - 40)"])  # fmt: skip
@pytest.mark.sample(5)  # each of them
def test_a_filter_that_is_torn_in_postgres_lets_nothing_through(either: Owner, torn: str) -> None:
    with harmed(either, IDS, f"UPDATE {IDS} SET filter = {torn} WHERE {{mine}}"):
        assert_known(either)


def test_a_lookup_whose_runs_are_replaced_midway_fails_as_transient(either: Owner, at: AtPoint) -> None:
    def forget() -> None:
        with superuser() as connection:
            connection.execute(f"DELETE FROM {IDS} WHERE tenant_id = %s", [either.tenant.tenant_id])

    assert known(either, "other1") == set()
    at("claims.filtered", forget)
    with pytest.raises(Transient, match="replaced meanwhile"):
        known(either, *EVERY)
    assert known(either, *EVERY) == set()


def test_the_filter_refuses_the_second_claim_of_an_id(full: Owner) -> None:
    first, second = fresh_of(full, names(IDS_PER_PREFIX, "e")), fresh_of(full, ["new", "e7"])
    assert add(full, first)
    assert not add(full, second)


def test_an_event_is_traced_to_its_run(full: Owner) -> None:
    with session(full) as connection:
        traced = [claim_runs.run_with(connection, orders(full), name) for name in ("a1", "d1", "other1")]
    first, *_, last = runs(full)
    assert [run and run.run for run in traced] == [first.run, last.run, None]


def test_a_filter_that_lacks_ids_would_let_them_land_twice(full: Owner) -> None:
    """Its checksum is right: only the check of claims notices it, see `monitoring/test_reconcile.py`."""
    run, *_ = runs(full)
    with session(full) as connection:
        half = claim_cache.digests(connection, run)[np.arange(run.ids) // 2]
    shutil.rmtree(folder(full))
    with harmed(
        full, IDS, f"UPDATE {IDS} SET filter = '\\x{claim_filters.make(half).hex()}' WHERE run = {run.run}"
    ):
        assert known(full, *EVERY) < set(EVERY)
        with pytest.raises(AssertionError):
            assert_known(full)
