"""Large runs of claims become one, in pieces, and whoever looked something up before notices nothing."""

import random

import pytest
from support.claims import IDS, add, fresh_of, known, names, orders, runs
from support.faults import AtPoint
from support.here import ingest_here as ingest
from support.ingest import Owner, event
from support.lake import superuser
from support.maintenance import done

from chaos.surroundings import with_settings
from pulse_pipelines.claims import claim_runs, merge_claims
from pulse_pipelines.domain.requests import Task


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (claim_runs, merge_claims):
        monkeypatch.setattr(module, "LARGE_IDS", 50)
        monkeypatch.setattr(module, "MERGED_IDS", 200)


@pytest.fixture
def full(owner: Owner) -> Owner:
    """Its dataset has five runs of 100 ids and one of 10."""
    for prefix in "abcde":
        assert add(owner, fresh_of(owner, names(100, prefix)))
    assert add(owner, fresh_of(owner, names(10, "f")))
    return owner


EVERY = [name for prefix in "abcde" for name in names(100, prefix)] + names(10, "f")


def test_large_runs_become_pieces_of_one(full: Owner) -> None:
    before = fresh_of(full, ["new"])
    assert merge_claims.merge_claims(orders(full)) == 500
    small, *pieces = sorted(runs(full), key=lambda run: run.ids)
    assert (small.ids, sum(piece.ids for piece in pieces), len(pieces)) == (10, 500, 2)
    assert {tuple(piece.ends) for piece in pieces} == {(100,)}
    assert known(full, *EVERY, "x") == set(EVERY)
    assert add(full, before), "to a batch under way the pieces are nothing new"
    assert merge_claims.merge_claims(orders(full)) == 0, "there is one now"


@pytest.mark.parametrize("point", ["merge_claims.added", "merge_claims.before_commit"])
def test_a_merge_that_dies_has_changed_nothing(full: Owner, point: str, at: AtPoint) -> None:
    before = [(run.run, run.ids) for run in runs(full)]

    def die() -> None:
        raise KeyboardInterrupt

    at(point, die)
    with pytest.raises(KeyboardInterrupt):
        merge_claims.merge_claims(orders(full))
    assert [(run.run, run.ids) for run in runs(full)] == before


def test_the_sizes_of_runs_stay_few(owner: Owner) -> None:
    draw = random.Random(3)  # noqa: S311 - not a secret
    sent = []
    for n in range(150):
        ids = names(draw.randint(40, 100), f"{n}-")
        assert add(owner, fresh_of(owner, ids))
        sent += ids
        merge_claims.merge_claims(orders(owner))
    all_runs = runs(owner)
    assert len({run.newest for run in all_runs}) <= 14
    assert sum(run.ids for run in all_runs) == len(sent)
    assert known(owner, *draw.sample(sent, 500), "x") < set(sent)


def test_a_day_that_retention_will_take_is_not_merged_with_a_later_one(full: Owner) -> None:
    with superuser() as connection:
        first = sorted(run.run for run in runs(full))[:2]
        connection.execute(f"UPDATE {IDS} SET claimed_on = claimed_on - 20 WHERE run = ANY(%s)", [first])
    with with_settings(UPKEEP__CLAIM_DAYS=16):
        assert merge_claims.merge_claims(orders(full)) == 0
    assert merge_claims.merge_claims(orders(full)) == 500


def test_maintenance_of_a_table_merges_its_claims(full: Owner) -> None:
    full.send(event("landed"))
    ingest(full)
    done(full, Task.EXPIRE)
    large = [run for run in runs(full) if run.ids >= 50]
    assert len({run.newest for run in large}) == 1
