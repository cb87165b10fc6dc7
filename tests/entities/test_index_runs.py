"""Runs of an index, however they were cut and merged: as a list of pairs has it."""

from collections.abc import Iterator

import numpy as np
import pytest
from support.entities import SLUG, make_entities
from support.ingest import make_owner

from pulse_pipelines.entities import index_entries, index_runs, indexes as declared
from pulse_pipelines.entities.index_runs import Values
from pulse_pipelines.tables.digests import Digests
from pulse_resources import postgres
from pulse_resources.settings import Settings

WORTH = range(4)
"""The values; 0: none."""


def digests(values: list[int]) -> Digests:
    words = np.array(values, np.uint64)
    return Digests(words, words * 7)


@pytest.fixture
def session(stack: Settings) -> Iterator[tuple[postgres.Connection, int]]:
    owner = make_owner()
    make_entities(owner)
    index_id = declared.declare(owner.tenant, SLUG, "name").index_id
    with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
        yield connection, index_id


@pytest.mark.parametrize(("longest", "sparse"), [(4, 1), (4, 64), (65_536, 64)])
def test_merged_index_runs_equal_the_written_values(
    session: tuple[postgres.Connection, int], monkeypatch: pytest.MonkeyPatch, longest: int, sparse: int
) -> None:
    connection, index_id = session
    monkeypatch.setattr(index_runs, "LONGEST", longest)
    monkeypatch.setattr(index_runs, "SPARSE", sparse)
    monkeypatch.setattr(index_runs, "READ_AT_ONCE", (1, 2))
    row = connection.execute("SELECT tenant_id FROM entity_indexes").fetchone()
    assert row is not None
    new, old, newest = [0], [0], dict[int, int]()
    choose = np.random.default_rng(longest + sparse)
    for _ in range(30):
        before, previous, values = len(new) - 1, list[int](), list[int]()
        for place in range(len(new), len(new) + int(choose.choice([1, 1, 2, 9]))):
            entity, value = map(int, choose.integers([8, len(WORTH)]))
            previous.append(newest.get(entity, 0))
            had = new[previous[-1]]
            newest[entity] = place
            new.append(value)
            old.append(0 if had == value else had)
            values.append(value)
        places = np.array(previous, np.int64)
        earlier = index_runs.values_at(connection, index_id, np.where(places > before, 0, places))
        added = Values(np.arange(before + 1, len(new)), digests(values))
        again = Values.unpacked(added.packed())
        assert index_entries.advance(connection, row[0], index_id, before, places, earlier, [again])
        assert not index_entries.advance(connection, row[0], index_id, before, places, earlier, [again]), (
            "twice"
        )
    erased = [place for place in range(1, len(new)) if choose.random() < 0.2]
    following = int(choose.choice([place for place in range(1, len(new)) if place not in erased]))
    counted = connection.execute("SELECT dataset_id, entries FROM entity_indexes").fetchone()
    assert counted is not None
    assert counted[1] == sum(map(bool, new)) + sum(map(bool, old))
    index_entries.forget(connection, counted[0], erased, [following])
    for place in erased:
        new[place] = old[place] = 0
    old[following] = 0
    for value in WORTH[1:]:
        entries = {n: new[n] == value for n in range(len(new)) if value in (new[n], old[n])}
        for limit in (1, 5, 1000):
            assert pages(connection, index_id, value, limit) == entries
    numbers, values = index_runs.with_values(connection, index_id, digests([1, 3]))
    assert numbers.tolist() == [place for place, value in enumerate(new) if value in (1, 3)]
    assert values.heads.tolist() == [new[place] for place in numbers]
    for after in range(len(new)):
        changes = index_runs.of_changes(connection, index_id, after).heads.tolist()
        assert changes == sorted({*new[after + 1 :], *old[after + 1 :]} - {0}), "of both versions"
    count = connection.execute("SELECT entries FROM entity_indexes").fetchone()
    assert count == (sum(map(bool, new)) + sum(map(bool, old)),)


def pages(connection: postgres.Connection, index_id: int, value: int, limit: int) -> dict[int, bool]:
    entries: dict[int, bool] = {}
    after: int | None = 0
    while after is not None:
        page, after = index_runs.read(connection, index_id, digests([value]), after, limit)
        assert len(page) <= limit
        assert not page.keys() & entries.keys()
        entries |= page
    return entries
