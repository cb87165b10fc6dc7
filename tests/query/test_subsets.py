"""Subsets: a reader of one sees what there is to see of it in the whole log; indexes that are not there."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.entities import SCHEMA, SLUG, declare, entity, make_entities, model_of_subset, pages, versions_of
from support.faults import AtPoint
from support.here import ingest_here as ingest
from support.ingest import Owner, make_owner

from chaos.surroundings import superuser
from pulse_pipelines import registry
from pulse_pipelines.entities import index_build, indexes
from pulse_pipelines.erasure.run import erase
from pulse_pipelines.monitoring import checks
from pulse_pipelines.moves import evolve
from pulse_pipelines.query import versions
from pulse_pipelines.query.preview import preview
from pulse_resources.errors import Conflict, NotFound, QuotaExceeded, UserError
from pulse_resources.settings import Settings

Sent = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def owner(stack: Settings) -> Owner:
    owner = make_owner()
    make_entities(owner)
    return owner


def send(owner: Owner, sent: Sent) -> None:
    owner.send(*(entity(key, **properties) for key, properties in sent))
    ingest(owner)


def problems(owner: Owner) -> list[str]:
    return checks.run("index_equals_log", owner.tenant, SLUG).problems


def test_entities_entering_a_subset_are_new_and_leaving_ones_deleted_once(owner: Owner) -> None:
    send(owner, [("a", {"name": "x"}), ("b", {"name": "y"}), ("c", {"name": "x"})])
    declare(owner, "name")
    start = versions.page(owner.tenant, SLUG, None, 10, False, "name=x")
    assert [json.loads(line)["_id"] for line in start.lines.splitlines()] == ["a", "c"]
    send(owner, [
        ("a", {"name": "y"}),  # leaves
        ("a", {"name": "y", "people": 1}),  # is no longer its business
        ("b", {"name": "x"}),  # enters
        ("c", {"name": "x", "people": 1}),  # changes
        ("d", {"people": 1}),  # has no value
    ])  # fmt: skip
    send(owner, [("b", {"_deleted": True}), ("c", {}), ("e", {"_deleted": True})])
    changes = pages(owner, start.following, limit=1, subset="name=x")
    assert versions_of(changes) == [
        ("a", 4, True),
        ("b", 6, False),
        ("c", 7, False),
        ("b", 9, True),
        ("c", 10, True),
    ]
    assert changes[0].keys() == {"_id", "_updated", "_deleted", "_hash", "_ts"}
    assert changes[0]["_hash"] is None
    assert changes[2]["people"] == 1
    assert pages(owner, subset="name=z") == []
    for value in "xy":
        assert versions_of(pages(owner, limit=2, subset=f"name={value}")) == model_of_subset(
            pages(owner), value
        )
    for expression in ("concat(name, '')", "(people > 0)"):  # declared late: as from the start
        declare(owner, expression)
    assert versions_of(pages(owner, subset="concat(name,'')=x")) == versions_of(pages(owner, subset="name=x"))
    assert [row[0] for row in versions_of(pages(owner, subset="(people>0)=true"))] == list("acdc")
    assert [(index.updated, index.behind) for index in indexes.list_indexes(owner.tenant, SLUG)] == [
        (11, 0)
    ] * 3
    rows = preview(owner.tenant, SLUG, 10, subset="name=x", columns=["id", "_updated"])
    assert sorted(rows["_updated"].to_pylist()) == [1, 3, 6, 7]
    assert problems(owner) == []


def test_the_check_sees_missing_and_surplus_values_of_an_index(owner: Owner) -> None:
    declare(owner, "name")
    send(owner, [("a", {"name": "x"}), ("a", {"name": "y"}), ("b", {"name": "y"})])
    assert problems(owner) == []
    with superuser() as connection:
        update = "UPDATE entity_index_runs SET packed = %s WHERE tenant_id = %s"
        connection.execute(update, [without_old(owner), owner.tenant.tenant_id])
    assert problems(owner) == [
        "of 3 versions 1 have other values in the index by name than their log gives",
        "the index by name has 3 values, 4 by its own count, and the log gives 4",
    ]


def without_old(owner: Owner) -> bytes:
    """The only run of a tenant's index, without the values that entities had before."""
    with superuser() as connection:
        packed = "SELECT packed FROM entity_index_runs WHERE tenant_id = %s"
        ((packed_bytes,),) = connection.execute(packed, [owner.tenant.tenant_id]).fetchall()
    return bytes(packed_bytes[: len(packed_bytes) // 2]) + bytes(len(packed_bytes) // 2)


def test_an_erased_value_leaves_the_index_also_where_another_followed(owner: Owner, at: AtPoint) -> None:
    declare(owner, "name")
    send(owner, [("a", {"name": "x"}), ("b", {"name": "x"})])
    at("erase.planned", lambda: send(owner, [("a", {"name": "y"}), ("a", {"name": "z"})]))
    assert erase(owner.tenant, SLUG, "event_id=a")["removed"]["rows"] == 1
    assert versions_of(pages(owner, subset="name=x")) == [("b", 2, False)]
    assert versions_of(pages(owner, subset="name=y")) == model_of_subset(pages(owner), "y")
    assert problems(owner) == []


def test_an_index_is_built_beside_batches_and_erasures(
    owner: Owner, at: AtPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(owner, [("a", {"name": "x"}), ("b", {"name": "x"}), ("a", {"name": "y"})])
    monkeypatch.setattr(index_build, "PIECE", 2)

    def meanwhile() -> None:
        send(owner, [("b", {"name": "y"}), ("c", {"name": "x"})])
        erase(owner.tenant, SLUG, "event_id=a")

    at("index_build.read", meanwhile)
    declare(owner, "name")
    assert versions_of(pages(owner, subset="name=x")) == model_of_subset(pages(owner), "x")
    assert problems(owner) == []


def test_batches_wait_for_the_last_piece_of_a_build_that_they_keep_overtaking(
    owner: Owner, at: AtPoint
) -> None:
    send(owner, [("a", {"name": "x"})])
    overtaken: list[bool] = []

    def meanwhile() -> None:
        with superuser() as connection:  # as a batch that does not know of the index
            connection.execute("UPDATE entity_logs SET updated = updated + 1 WHERE tenant_id = %s", [
                owner.tenant.tenant_id
            ])  # fmt: skip
        overtaken.append(True)

    at("index_build.read", meanwhile, always=True)
    declare(owner, "name")
    assert len(overtaken) == index_build.PATIENCE
    (index,) = indexes.list_indexes(owner.tenant, SLUG)
    assert index.behind == 0


def test_a_reader_updates_an_index_that_is_behind(owner: Owner) -> None:
    indexes.declare(owner.tenant, SLUG, "name")
    send(owner, [("a", {"name": "x"})])
    index_id = indexes.declare(owner.tenant, SLUG, "lower( name )").index_id
    send(owner, [("a", {"name": "X"})])
    behind = {index.expression: index.behind for index in indexes.list_indexes(owner.tenant, SLUG)}
    assert behind == {"lower(name)": 2, "name": 0}
    assert versions_of(pages(owner, subset="lower(name)=x")) == [("a", 1, False), ("a", 2, False)]
    assert indexes.drop(owner.tenant, SLUG, index_id) == "lower(name)"
    with pytest.raises(Conflict, match="no index by lower"):
        pages(owner, subset="lower(name)=x")


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda owner: indexes.declare(owner.tenant, SLUG, "nam"), UserError, "Did you mean name"),
        (lambda owner: indexes.declare(owner.tenant, "orders", "_id"), Conflict, "dataset of events"),
        (lambda owner: indexes.drop(owner.tenant, SLUG, 7), NotFound, "no index 7"),
        (lambda owner: pages(owner, subset="name=x"), Conflict, "pulse index create"),
        (lambda owner: pages(owner, subset="name"), UserError, "'=' was expected"),
        (lambda owner: preview(owner.tenant, SLUG, 1, subset="people=x"), UserError, "not a value of people"),
    ],
)
def test_an_unknown_index_or_subset_is_refused_with_a_reason(
    owner: Owner, wrong: Callable[[Owner], object], error: type[UserError], message: str
) -> None:
    with pytest.raises(error, match=message):
        wrong(owner)


def test_the_number_of_indexes_is_limited_and_a_newer_schema_must_fit_them(
    owner: Owner,
) -> None:
    for number in range(indexes.MAX_INDEXES - 1):
        indexes.declare(owner.tenant, SLUG, f"concat(name, '{number}')")
    indexes.declare(owner.tenant, SLUG, "people")
    with pytest.raises(QuotaExceeded, match="Drop one"):
        indexes.declare(owner.tenant, SLUG, "name")
    assert indexes.declare(owner.tenant, SLUG, "people").behind == 0, "it is there already"
    wider = SCHEMA | {"properties": SCHEMA["properties"] | {"people": {"type": "number"}}}
    uri = registry.publish_schema(owner.tenant, SLUG, json.dumps(wider)).schema_uri
    with pytest.raises(Conflict, match="the index by people does not fit"):
        evolve.move_dataset(owner.tenant, SLUG, uri)
