"""Transforms: the result of a query over datasets is one of entities, and follows their changes."""

import random
import re
from typing import Any

import pytest
from support.entities import entity, make_entities, pages
from support.faults import AtPoint
from support.here import ingest_here as ingest
from support.ingest import Owner, event, make_owner
from support.lake import spark
from support.pipes import bring, settle

from chaos.surroundings import superuser
from pulse_pipelines import pipes, registry
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.syncs import SyncState
from pulse_pipelines.entities import syncs
from pulse_pipelines.erasure.run import erase
from pulse_pipelines.pipes.run import run
from pulse_resources import postgres
from pulse_resources.errors import Conflict, Fenced, NotFound, Transient, UserError
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.settings import Settings

JOIN = """
SELECT p.id, p.name AS plane, a.name AS airline, p.people + 1 AS seats, cast(p.area AS decimal(9, 2)) AS area
FROM planes p LEFT JOIN airlines a ON p.name = a.id
"""
PIPE: dict[str, Any] = {"pipe": "fleet", "transform": JOIN, "dataset": "fleet"}


@pytest.fixture
def owner(stack: Settings) -> Owner:
    owner = make_owner()
    for slug in ("planes", "airlines"):
        make_entities(owner, slug)
    return owner


def latest(owner: Owner, slug: str = "fleet") -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for version in pages(owner, slug=slug):
        if version["_deleted"]:
            rows.pop(version["_id"], None)
        else:
            rows[version["_id"]] = {k: v for k, v in version.items() if not k.startswith("_")}
    return rows


def counts(owner: Owner, slug: str = "fleet") -> tuple[str, int, int, int, int]:
    sync = syncs.list_syncs(owner.tenant, slug)[0]
    return sync.state, sync.created, sync.changed, sync.unchanged, sync.deleted


def push(owner: Owner, *entities: bytes) -> None:
    owner.send(*entities)
    ingest(owner)


def plane(key: str, **properties: Any) -> bytes:
    return entity(key, slug="planes", **properties)


def airline(key: str, **properties: Any) -> bytes:
    return entity(key, slug="airlines", **properties)


def test_a_result_becomes_entities_and_follows_its_sources(owner: Owner) -> None:
    push(
        owner,
        airline("AA", name="American"),
        plane("N1", name="AA", people=7, area=1.5),
        plane("N2", name="??"),
        plane("N3"),
        plane("N4", name="AA"),
    )
    pipes.create(owner.tenant, definition(PIPE))
    syncs.allow(owner.tenant, "fleet", 1)
    sent = bring(owner, "fleet")
    assert (sent.rows, sent.is_full, counts(owner)) == (4, True, (SyncState.DONE, 4, 0, 0, 0))
    assert latest(owner) == {
        "N1": {"plane": "AA", "airline": "American", "seats": 8, "area": "1.50"},
        "N2": {"plane": "??"},
        "N3": {},
        "N4": {"plane": "AA", "airline": "American"},
    }
    push(owner, airline("AA", name="AA Inc"), plane("N2", _deleted=True), plane("N4", name="BB"))
    sent = bring(owner, "fleet")
    assert (sent.rows, sent.is_full, counts(owner)) == (3, False, (SyncState.DONE, 0, 2, 0, 1))
    assert str(pipes.find(owner.tenant, "fleet").computes).endswith("found by the index of planes by name")
    assert latest(owner)["N1"]["airline"] == "AA Inc"
    assert latest(owner)["N4"] == {"plane": "BB"}
    assert set(latest(owner)) == {"N1", "N3", "N4"}


def test_where_no_source_has_changed_nothing_is_read_nor_deleted(owner: Owner) -> None:
    push(owner, plane("N1"))
    pipes.create(owner.tenant, definition(PIPE))
    bring(owner, "fleet")
    assert re.match(r"planes \d+-1, airlines \d+-0 of ", str(pipes.find(owner.tenant, "fleet").position))
    again = bring(owner, "fleet")
    assert (again.rows, again.is_full, counts(owner)) == (0, False, (SyncState.DONE, 0, 0, 0, 0))
    assert set(latest(owner)) == {"N1"}
    assert bring(owner, "fleet", full=True).is_full
    assert counts(owner) == (SyncState.DONE, 0, 0, 1, 0)
    with superuser() as connection:
        connection.execute(
            "UPDATE entity_logs SET generation = generation + 1 WHERE dataset_id = %s",
            [registry.find_dataset(owner.tenant, "planes").dataset_id],
        )
    assert bring(owner, "fleet").is_full, "the log of a source began anew"
    pipes.delete(owner.tenant, "fleet")
    pipes.create(owner.tenant, definition(PIPE | {"transform": "SELECT id, name FROM planes"}))
    assert bring(owner, "fleet").is_full, "another query of the same name"


def test_events_are_joined_with_entities_and_counted(owner: Owner) -> None:
    """The dataset follows new events, changed entities, and an erasure of events."""
    query = (
        "SELECT o.country AS id, count(*) AS orders, max(o.timestamp) AS last, max(p.people) AS people "
        "FROM orders o LEFT JOIN planes p ON o.country = p.id GROUP BY o.country"
    )
    pipes.create(owner.tenant, definition({"pipe": "sold", "transform": query, "dataset": "sold"}))
    syncs.allow(owner.tenant, "sold", 1)
    assert bring(owner, "sold").rows == 0, "there is no event yet"
    push(owner, event("a"), event("b"), event("c", country="FR"), plane("DE", people=7))
    assert bring(owner, "sold").is_full
    last = "2026-11-19T10:00:00+00:00"
    assert latest(owner, "sold") == {
        "DE": {"orders": 2, "last": last, "people": 7},
        "FR": {"orders": 1, "last": last},
    }
    assert pipes.find(owner.tenant, "sold").computes == "all: orders is a dataset of events"
    assert bring(owner, "sold").rows == 0, "nothing has changed"
    push(owner, event("d"), event("e", country="IT"))
    bring(owner, "sold")
    assert counts(owner, "sold") == (SyncState.DONE, 1, 1, 1, 0)
    receipt = erase(owner.tenant, "orders", "country=FR")
    (copy,) = (remainder for remainder in receipt["remains"] if "sold" in remainder["where"])
    assert "the transform sold" in copy["where"]
    bring(owner, "sold")
    assert counts(owner, "sold") == (SyncState.DONE, 0, 0, 2, 1)
    assert {key: row["orders"] for key, row in latest(owner, "sold").items()} == {"DE": 3, "IT": 1}


@pytest.mark.slow
def test_a_row_without_an_id_or_with_that_of_another_sends_nothing(owner: Owner) -> None:
    push(owner, airline("AA"), airline("BB"), plane("N1"), plane("N2", name="two"))
    twice = "SELECT p.id, a.id AS airline FROM planes p CROSS JOIN airlines a WHERE p.id = 'N2'"
    pipes.create(owner.tenant, definition(PIPE | {"transform": twice}))
    with pytest.raises(UserError, match="the id 'N2' 2 times"):
        bring(owner, "fleet")
    assert "'N2' 2 times" in str(pipes.find(owner.tenant, "fleet").error)
    pipes.delete(owner.tenant, "fleet")
    pipes.create(owner.tenant, definition(PIPE | {"transform": "SELECT name AS id FROM planes"}))
    with pytest.raises(UserError, match="has no id"):
        bring(owner, "fleet")
    settle(owner)
    assert pages(owner, slug="fleet") == []
    assert counts(owner)[0] == SyncState.FAILED
    pipes.delete(owner.tenant, "fleet")
    wrong = "SELECT id, cast(coalesce(name, 'secret') AS int) AS n FROM planes"
    pipes.create(owner.tenant, definition(PIPE | {"transform": wrong}))
    with pytest.raises(
        UserError, match=r"cannot be computed: CAST_INVALID_INPUT \[pipe=fleet\]\nThis was pipe fleet"
    ):
        bring(owner, "fleet")
    assert "secret" not in str(pipes.find(owner.tenant, "fleet").error)


def test_a_result_that_is_not_utf_8_is_an_error_and_never_replaced(owner: Owner) -> None:
    push(owner, plane("N1", name="one"), plane("N2", name="\ufffd"))
    first = (
        "SELECT id, name, array(named_struct('first', CAST(substr(CAST(name AS BINARY), 1, {}) AS STRING)))"
    )
    pipes.create(owner.tenant, definition(PIPE | {"transform": f"{first.format(3)} AS cut FROM planes"}))
    bring(owner, "fleet")
    settle(owner)
    assert [latest(owner)[key]["cut"] for key in ("N1", "N2")] == [[{"first": "one"}], [{"first": "\ufffd"}]]
    push(owner, plane("N3", name="on\u00e9"))
    with pytest.raises(UserError, match="the column 'cut' of the row with the id 'N3' is not UTF-8"):
        bring(owner, "fleet")
    pipes.delete(owner.tenant, "fleet")
    pipes.create(owner.tenant, definition(PIPE | {"transform": f"{first.format(1)} AS cut FROM planes"}))
    with pytest.raises(UserError, match="the column 'cut' of the row with the id 'N2' is not UTF-8"):
        bring(owner, "fleet")


def test_a_transform_with_unreadable_sources_is_refused_at_creation(owner: Owner) -> None:
    other = make_owner()
    make_entities(other, "theirs")
    for transform, why in (
        ("SELECT id FROM theirs", "no such dataset"),
        ("SELECT id, nothing FROM planes", "nothing"),
        ("SELECT id, _updated FROM planes", "_updated"),
        ("SELECT name FROM planes", "no column id"),
        ("SELECT id FROM fleet", "no such dataset|source of itself"),
    ):
        with pytest.raises((UserError, NotFound, Conflict), match=why):
            pipes.create(owner.tenant, definition(PIPE | {"transform": transform}))
    assert pipes.list_pipes(owner.tenant) == []


def test_a_run_waits_for_an_earlier_one_and_an_overtaken_run_sends_nothing(owner: Owner, at: AtPoint) -> None:
    push(owner, plane("N1"))
    pipes.create(owner.tenant, definition(PIPE))
    dataset_id = pipes.find(owner.tenant, "fleet").dataset_id
    with locks.session(Lock.PIPE_ROWS, dataset_id, shared=True), pytest.raises(Transient, match="earlier"):
        bring(owner, "fleet")

    def overtake() -> None:
        with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
            connection.execute("UPDATE pipes SET begun_at = now() WHERE pipe = 'fleet'")

    at("pipe.computed", overtake)
    with pytest.raises(Fenced):
        bring(owner, "fleet")
    settle(owner)
    assert pages(owner, slug="fleet") == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_after_any_changes_the_result_is_that_of_plain_python(owner: Owner, at: AtPoint, seed: int) -> None:
    """Upserts and deletions in two sources between runs, one of which dies before it says what it sent."""
    chance, sent = random.Random(seed), {"planes": {}, "airlines": {}}  # noqa: S311 - no secret
    dies: list[str] = []

    def die() -> None:
        if dies:
            raise ConnectionError(f"the process ends here {dies.pop()}")

    at("pipe.loaded", die, always=True)
    pipes.create(owner.tenant, definition(PIPE | {"transform": INNER}))
    syncs.allow(owner.tenant, "fleet", 1)
    for step in range(5):
        changes = []
        for _ in range(chance.randint(0, 8) if step else 8):
            slug, key = chance.choice(["planes", "airlines"]), f"k{chance.randint(0, 4)}"
            state: dict[str, Any] = {"name": f"n{chance.randint(0, 2)}", "people": chance.randint(0, 3)}
            state |= {"tags": [f"k{chance.randint(0, 4)}"]}
            if chance.random() < 0.25:
                sent[slug].pop(key, None)
                state = {"_deleted": True}
            else:
                sent[slug][key] = state
            changes.append(entity(key, slug=slug, **state))
        if changes:
            push(owner, *changes)
        if step == 2:
            dies.append("once")
            with pytest.raises(ConnectionError):
                run(spark(), owner.tenant, "fleet", 2, full=True)
        bring(owner, "fleet")
        if syncs.list_syncs(owner.tenant, "fleet")[0].state == SyncState.HELD:  # it brings nothing at all
            syncs.decide(
                owner.tenant, "fleet", syncs.list_syncs(owner.tenant, "fleet")[0].sync_id, commit=True
            )
            settle(owner)
        assert latest(owner) == joined(sent["planes"], sent["airlines"]), step


INNER = """
SELECT p.id, p.people + a.people AS n, a.name FROM planes p JOIN airlines a ON p.tags[0] = a.id
WHERE p.people > 0
"""


def joined(planes: dict[str, Any], airlines: dict[str, Any]) -> dict[str, Any]:
    return {
        key: {"n": plane["people"] + of["people"], "name": of["name"]}
        for key, plane in planes.items()
        if plane["people"] > 0 and (of := airlines.get(plane["tags"][0]))
    }
