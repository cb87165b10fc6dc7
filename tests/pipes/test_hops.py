"""Hops: a transform that computes only what changes lead to has the result of a whole computation, always."""

import json
import random
from functools import partial
from typing import Any

import pytest
from support.entities import entity, make_entities, pages
from support.faults import AtPoint
from support.here import ingest_here as ingest
from support.ingest import Owner, make_owner
from support.lake import spark
from support.pipes import settle

from pulse_pipelines import pipes
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.syncs import SyncState
from pulse_pipelines.entities import indexes, syncs
from pulse_pipelines.pipes.run import Sent, run
from pulse_pipelines.pipes.transforms import columns, hops, sources
from pulse_pipelines.pipes.transforms.queries import query_of
from pulse_resources.settings import Settings

QUERIES = {
    "alone": "SELECT id, name, people + 1 AS n FROM planes WHERE people > 0",
    "by_id": """
        SELECT p.id, a.name, p.people + a.people AS n FROM planes p JOIN airlines a ON p.name = a.id
        WHERE a.people > 0
    """,
    "by_name": """
        SELECT p.id, a.id AS airline, c.people
        FROM planes p LEFT JOIN airlines a ON a.area = 1 AND a.name = p.name
        LEFT JOIN countries c ON c.id = concat('k', a.people)
    """,
    "chain": """
        SELECT p.*, q.people AS boss, c.people AS country FROM planes p JOIN planes q ON q.id = p.name
        JOIN airlines a ON cast(q.people AS string) = a.name JOIN countries c ON a.name = c.name
    """,
}


POINTS = ["pipe.looked", "pipe.begun", "pipe.loaded", "pipe.sent"]


@pytest.fixture
def owner(stack: Settings) -> Owner:
    owner = make_owner()
    for slug in ("planes", "airlines", "countries"):
        make_entities(owner, slug)
    return owner


def create(owner: Owner, name: str) -> None:
    pipes.create(owner.tenant, definition({"pipe": name, "transform": QUERIES[name], "dataset": name}))
    syncs.allow(owner.tenant, name, 1)


def push(owner: Owner, slug: str, key: str, state: dict[str, Any]) -> None:
    owner.send(entity(key, slug=slug, **state))


def bring(owner: Owner, name: str) -> Sent:
    sent = run(spark(), owner.tenant, name, 2)
    settle(owner)
    return sent


def latest(owner: Owner, name: str) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for version in pages(owner, slug=name):
        rows.pop(version["_id"], None)
        if not version["_deleted"]:
            rows[version["_id"]] = {k: v for k, v in version.items() if not k.startswith("_")}
    return rows


def whole(owner: Owner, name: str) -> dict[str, Any]:
    """The whole computation of now."""
    query = query_of(pipes.find(owner.tenant, name).definition)
    sql = sources.pin(owner.tenant, query).sql
    rows = spark().sql(columns.written(spark().sql(sql).schema.fields, sql)).collect()
    return {row["id"]: json.loads(row["data"]) for row in rows}


def computes(owner: Owner, name: str) -> str:
    return str(pipes.find(owner.tenant, name).computes)


def change(chance: random.Random, keys: int) -> tuple[str, str, dict[str, Any]]:
    """A change of which no two leave two entities of a dataset with one name, by which they are joined."""
    slug, key = chance.choice(["planes", "planes", "airlines", "countries"]), chance.randrange(keys)
    if chance.random() < 0.25:
        return slug, f"k{key}", {"_deleted": True}
    name = f"k{chance.randrange(keys)}" if slug == "planes" else str(key + keys * chance.randrange(2))
    if slug == "planes" and chance.random() < 0.5:
        name = str(chance.randrange(2 * keys))
    return (
        slug,
        f"k{key}",
        {"name": name, "people": chance.randrange(-1, 2 * keys), "area": chance.randrange(2)},
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", QUERIES)
def test_after_any_changes_and_deaths_the_result_is_that_of_a_whole_computation(
    owner: Owner, at: AtPoint, name: str, seed: int
) -> None:
    chance, dies = random.Random(seed), list[str]()  # noqa: S311 - no secret

    def reached(point: str) -> None:
        if dies == [point]:
            raise ConnectionError(f"the process ends at {dies.pop()}")

    def some_changes(count: int) -> None:
        for _ in range(count):
            push(owner, *change(chance, 6))
        ingest(owner)

    for point in POINTS:
        at(point, partial(reached, point), always=True)
    create(owner, name)
    for step in range(6):
        some_changes(chance.choice([1, 3, 12]) if step else 25)
        if step % 2:
            dies.append(chance.choice(POINTS))
            with pytest.raises(ConnectionError):  # what it has sent settles later, or with another change
                run(spark(), owner.tenant, name, 2)
            if chance.random() < 0.5:
                some_changes(1)
            if syncs.list_syncs(owner.tenant, name)[0].state == SyncState.SENT:
                settle(owner)
        sent = bring(owner, name)
        assert latest(owner, name) == whole(owner, name), step
        assert sent.is_full == (step == 0), computes(owner, name)


@pytest.mark.slow
def test_a_change_of_a_joined_entity_computes_those_that_it_left_and_those_that_it_came_to(
    owner: Owner,
) -> None:
    for key in range(1, 7):
        push(owner, "planes", f"p{key}", {"name": "AA" if key < 4 else "BB", "people": key})
    push(owner, "airlines", "a", {"name": "AA", "people": 1, "area": 1})
    push(owner, "countries", "k1", {"people": 7})
    ingest(owner)
    create(owner, "by_name")
    assert bring(owner, "by_name").is_full
    assert {key for key, row in latest(owner, "by_name").items() if row} == {"p1", "p2", "p3"}
    push(owner, "airlines", "a", {"name": "XX", "people": 1, "area": 1})  # for a while
    push(owner, "airlines", "a", {"name": "BB", "people": 1, "area": 1})
    push(owner, "planes", "p6", {"_deleted": True})
    push(owner, "planes", "p5", {"name": "BB", "people": 0})
    ingest(owner)
    sent = bring(owner, "by_name")
    assert (sent.is_full, sent.rows) == (False, 6), "each once"
    assert latest(owner, "by_name") == whole(owner, "by_name")
    assert latest(owner, "by_name")["p4"] == {"airline": "a", "people": 7}
    assert computes(owner, "by_name").startswith("what changes lead to, found by the index of planes by name")
    listed = {index.expression: index for index in indexes.list_indexes(owner.tenant, "planes")}
    assert (listed["name"].readers, listed["name"].orphaned) == (["pipe by_name"], False)
    indexes.declare(owner.tenant, "airlines", "name")  # somebody else needs this one, too
    pipes.delete(owner.tenant, "by_name")
    orphaned = {
        (slug, index.expression, index.orphaned)
        for slug in ("planes", "airlines")
        for index in indexes.list_indexes(owner.tenant, slug)
    }
    assert orphaned == {
        ("planes", "name", True),
        ("airlines", "name", False),
        ("airlines", "concat('k', people)", True),
    }


@pytest.mark.slow
def test_a_row_sent_only_by_a_killed_run_is_deleted_again(owner: Owner, at: AtPoint) -> None:
    create(owner, "alone")
    push(owner, "planes", "p1", {"people": 1})
    ingest(owner)
    bring(owner, "alone")
    push(owner, "planes", "p2", {"people": 2})
    ingest(owner)

    def deleted() -> None:
        """Before the rows are on the topic, so that a batch without them has it."""
        push(owner, "planes", "p2", {"_deleted": True})
        ingest(owner)

    def die() -> None:
        raise ConnectionError("the process ends here")

    at("pipe.computed", deleted)
    at("pipe.loaded", die)
    with pytest.raises(ConnectionError):
        run(spark(), owner.tenant, "alone", 2)
    sent = bring(owner, "alone")  # the target has no p2 yet when it looks
    assert (sent.is_full, sent.rows) == (False, 1)
    assert set(latest(owner, "alone")) == {"p1"}
    push(owner, "planes", "p3", {"people": 0})
    ingest(owner)
    assert bring(owner, "alone").rows == 0, "what is left out, and never was there, is not deleted"


@pytest.mark.slow
def test_a_transform_that_cannot_continue_or_has_many_changes_computes_the_whole(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(owner, "alone")
    for number in range(4):
        push(owner, "planes", f"p{number}", {"people": 1})
    ingest(owner)
    bring(owner, "alone")
    monkeypatch.setattr(hops, "FEW", 0)

    def change(count: int) -> bool:
        for number in range(count):
            push(owner, "planes", f"p{number}", {"people": len(pages(owner, slug="planes"))})
        ingest(owner)
        return bring(owner, "alone").is_full

    assert not change(1)
    assert change(2)
    assert computes(owner, "alone") == "all this time: changes lead to 2 ids, and it has 4"
    syncs.allow(owner.tenant, "alone", 0.1)
    push(owner, "planes", "p3", {"_deleted": True})
    ingest(owner)
    pipes.reset(owner.tenant, "alone")
    assert bring(owner, "alone").is_full
    (sync, *_) = syncs.list_syncs(owner.tenant, "alone")
    assert sync.state == SyncState.HELD
    assert change(1), "what is held has not been deleted"
    assert computes(owner, "alone").startswith("all this time: deletions are open")
    syncs.decide(owner.tenant, "alone", syncs.list_syncs(owner.tenant, "alone")[0].sync_id, commit=True)
    settle(owner)
    assert not change(1)
    assert latest(owner, "alone") == whole(owner, "alone")
