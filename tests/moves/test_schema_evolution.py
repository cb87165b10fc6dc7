"""A dataset moves to a newer schema: what was there stays readable, by every engine, now and as of then."""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.connect.session import SparkSession
from support.here import ingest_here as ingest
from support.ingest import Owner
from support.lake import outside_catalog
from support.moves import moved as move

from pulse_pipelines import registry
from pulse_pipelines.domain.schemas.columns import PHYSICAL
from pulse_pipelines.monitoring import checks
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.query import duckdb_pool
from pulse_resources import iceberg
from pulse_resources.settings import Settings, load_settings

STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
Rows = list[dict[str, Any]]


def struct(**members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": members}


def items(schema: Any) -> dict[str, Any]:
    return {"type": "array", "items": schema}


def chosen(kind: str, **members: Any) -> dict[str, Any]:
    """A choice that is told apart by its kind."""
    return struct(kind={"const": kind}, **members) | {"required": ["kind"]}


@dataclass(frozen=True)
class Case:
    """A change: data of an event before it and after it, and the declared columns of the three rows.

    The third event is the first one's data, sent after the move as an event of the old version.
    """

    old: dict[str, Any]
    new: dict[str, Any]
    before: dict[str, Any]
    after: dict[str, Any]
    then: dict[str, Any]
    """The first row, as of before the move."""
    now: tuple[dict[str, Any], dict[str, Any]]
    """The first row and the second one, after it. The third is like the first."""
    replaced: str | None = None


CASES: dict[str, Case] = {
    "added": Case(
        old=struct(a=STRING),
        new=struct(a=STRING, b=INTEGER, c=struct(d=STRING), e=items(NUMBER)),
        before={"a": "x"},
        after={"a": "y", "b": 1, "c": {"d": "z"}, "e": [1.5, 2]},
        then={"a": "x"},
        now=(
            {"a": "x", "b": None, "c": None, "e": None},
            {"a": "y", "b": 1, "c": {"d": "z"}, "e": [1.5, 2.0]},
        ),
    ),
    "added_to_nothing": Case(
        old=struct(),
        new=struct(a={"type": "string", "format": "date-time"}, id=STRING),
        before={},
        after={"id": "own"},
        then={},
        now=({"a": None, "data_id": None}, {"a": None, "data_id": "own"}),
    ),
    "nested": Case(
        old=struct(a=struct(x=STRING, y=struct(z=STRING)), l=items(struct(k=STRING))),
        new=struct(
            a=struct(w=NUMBER, x=STRING, y=struct(z=STRING, v=INTEGER)), l=items(struct(k=STRING, n=INTEGER))
        ),
        before={"a": {"x": "1", "y": {"z": "2"}}, "l": [{"k": "3"}]},
        after={"a": {"x": "4", "w": 0.5, "y": {"v": 5}}, "l": [{"k": "6", "n": 7}, {}]},
        then={"a": {"x": "1", "y": {"z": "2"}}, "l": [{"k": "3"}]},
        now=(
            {"a": {"x": "1", "y": {"z": "2", "v": None}, "w": None}, "l": [{"k": "3", "n": None}]},
            {
                "a": {"x": "4", "y": {"z": None, "v": 5}, "w": 0.5},
                "l": [{"k": "6", "n": 7}, {"k": None, "n": None}],
            },
        ),
    ),
    "widened": Case(
        old=struct(a=INTEGER, b=STRING),
        new=struct(a=NUMBER, b=STRING),
        before={"a": 7, "b": "x"},
        after={"a": 7.5, "b": "y"},
        then={"a": 7, "b": "x"},
        now=({"a": 7.0, "b": "x"}, {"a": 7.5, "b": "y"}),
        replaced="a",
    ),
    "widened_and_added": Case(
        old=struct(a={"type": ["integer", "null"]}, b={"type": ["integer", "null"]}),
        new=struct(c=STRING, b={"type": ["number", "null"]}, a={"type": ["integer", "null"]}),
        before={"a": 2**53 + 1, "b": None},
        after={"a": None, "b": -0.25, "c": "z"},
        then={"a": 2**53 + 1, "b": None},
        now=({"a": 2**53 + 1, "b": None, "c": None}, {"a": None, "b": -0.25, "c": "z"}),
        replaced="b",
    ),
    "widened_inside": Case(
        old=struct(a=struct(x=INTEGER, y=STRING), l=items(struct(n=INTEGER)), m=items(INTEGER)),
        new=struct(a=struct(x=NUMBER, y=STRING, z=STRING), l=items(struct(n=NUMBER)), m=items(NUMBER)),
        before={"a": {"x": 1, "y": "2"}, "l": [{"n": 3}, {}], "m": [4, 5]},
        after={"a": {"x": 1.5, "z": "6"}, "l": [{"n": 3.5}], "m": []},
        then={"a": {"x": 1, "y": "2"}, "l": [{"n": 3}, {"n": None}], "m": [4, 5]},
        now=(
            {"a": {"x": 1.0, "y": "2", "z": None}, "l": [{"n": 3.0}, {"n": None}], "m": [4.0, 5.0]},
            {"a": {"x": 1.5, "y": None, "z": "6"}, "l": [{"n": 3.5}], "m": []},
        ),
        replaced="a,l,m",
    ),
    "loosened": Case(
        old=struct(a=STRING | {"maxLength": 1}, b=INTEGER | {"minimum": 1}) | {"required": ["a"]},
        new=struct(a=STRING, b=INTEGER),
        before={"a": "x", "b": 1},
        after={"b": -1},
        then={"a": "x", "b": 1},
        now=({"a": "x", "b": 1}, {"a": None, "b": -1}),
    ),
    "choices": Case(
        old={"oneOf": [chosen("x", a=INTEGER, n=struct(p=STRING)), chosen("y", b=STRING)]},
        new={
            "oneOf": [
                {"$ref": "#/$defs/z"},
                chosen("y", b=STRING, c=NUMBER),
                chosen("x", a=INTEGER, n=struct(p=STRING)),
            ],
            "$defs": {"z": {"$id": "z"} | chosen("z", n=struct(p=STRING, q=INTEGER), d={"enum": ["s", "e"]})},
        },
        before={"kind": "x", "a": 1, "n": {"p": "1"}},
        after={"kind": "z", "n": {"q": 2}, "d": "s"},
        then={"kind": "x", "a": 1, "n": {"p": "1"}, "b": None},
        now=(
            {"kind": "x", "a": 1, "n": {"p": "1", "q": None}, "b": None, "c": None, "d": None},
            {"kind": "z", "a": None, "n": {"p": None, "q": 2}, "b": None, "c": None, "d": "s"},
        ),
    ),
    "described": Case(
        old=struct(a=STRING),
        new=struct(a=STRING | {"description": "what it is"}),
        before={"a": "x"},
        after={"a": "y"},
        then={"a": "x"},
        now=({"a": "x"}, {"a": "y"}),
    ),
}


def sale(slug: str, event_id: str, data: dict[str, Any], version: int | None = None) -> bytes:
    named = {} if version is None else {"schema_version": version}
    event = {"event_id": event_id, "dataset": slug, "timestamp": "2026-11-19T10:00:00Z", "data": data}
    return json.dumps(event | named).encode()


@dataclass(frozen=True)
class Moved:
    owner: Owner
    snapshots: dict[str, int]
    """The snapshot before the move, by dataset."""
    at_once: dict[str, Rows]
    """What DuckDB reads right after the move."""
    settings: Settings


@pytest.fixture(scope="module")
def moved(stack: Settings) -> Moved:
    """Every case is a dataset of one tenant: rows, a move, more rows, and one of the old version."""
    tenant = registry.create_tenant(f"t{uuid.uuid4().hex[:10]}")
    owner = Owner(tenant)
    for slug, case in CASES.items():
        registry.create_dataset(tenant, slug, publish(owner, slug, case.old))
        owner.send(sale(slug, "before", case.before))
    ingest(owner)
    snapshots, at_once = {}, {}
    for slug, case in CASES.items():
        snapshots[slug] = table(owner, slug).current_snapshot().snapshot_id
        uri = publish(owner, slug, case.new)
        assert move(tenant, slug, uri) == registry.find_dataset(tenant, slug)
        assert registry.find_dataset(tenant, slug).schema_uri == uri
        at_once[slug] = owner.rows(slug)
        owner.send(sale(slug, "after", case.after), sale(slug, "of the old", case.before, 1))
    ingest(owner)
    return Moved(owner, snapshots, at_once, stack)


def publish(owner: Owner, name: str, schema: dict[str, Any]) -> str:
    return registry.publish_schema(owner.tenant, name, json.dumps(schema)).schema_uri


def table(owner: Owner, slug: str) -> Any:
    location = registry.current_table(owner.tenant, slug).metadata_location
    return iceberg.load_table((owner.tenant.namespace, slug), location)


def by_duckdb(moved: Moved, slug: str, snapshot: int | None) -> pa.Table:
    location = registry.current_table(moved.owner.tenant, slug).metadata_location
    scan = (
        duckdb_pool.SCAN if snapshot is None else duckdb_pool.SCAN[:-1] + f", snapshot_from_id = {snapshot})"
    )
    with duckdb_pool.connect() as connection:
        return connection.execute(f"SELECT * FROM {scan}", [location]).to_arrow_table()


def by_spark(moved: Moved, slug: str, snapshot: int | None) -> pa.Table:
    spark = SparkSession.builder.remote(load_settings().spark.remote).getOrCreate()
    name = f"{iceberg.CATALOG}.{moved.owner.tenant.namespace}.{slug}"
    spark.catalog.refreshTable(name)
    when = "" if snapshot is None else f" VERSION AS OF {snapshot}"
    return spark.sql(f"SELECT * FROM {name}{when}").toArrow()


def by_pyiceberg(moved: Moved, slug: str, snapshot: int | None) -> pa.Table:
    catalog = outside_catalog(moved.settings)
    try:
        return catalog.load_table((moved.owner.tenant.namespace, slug)).scan(snapshot_id=snapshot).to_arrow()
    finally:
        catalog.engine.dispose()


ENGINES = [by_duckdb, by_spark, by_pyiceberg]
Read = Callable[[Moved, str, int | None], pa.Table]


def declared(rows: Rows) -> Rows:
    """Rows by position, without the columns that every table has."""
    ordered = sorted(rows, key=lambda row: int(row["_offset"]))
    return [{name: value for name, value in row.items() if name not in PHYSICAL} for row in ordered]


@pytest.mark.parametrize("slug", CASES)
@pytest.mark.parametrize("read", ENGINES)
@pytest.mark.sample(9)
def test_rows_from_before_and_after_are_read(moved: Moved, slug: str, read: Read) -> None:
    first, second = CASES[slug].now
    rows = read(moved, slug, None).to_pylist()
    assert declared(rows) == [first, second, first]
    versions = {row["id"]: row["schema_version"] for row in rows}
    assert versions == {"before": 1, "after": 2, "of the old": 1}


@pytest.mark.parametrize("slug", CASES)
@pytest.mark.parametrize("read", ENGINES)
@pytest.mark.sample(9)
def test_an_old_snapshot_is_read_by_its_own_schema(moved: Moved, slug: str, read: Read) -> None:
    rows = read(moved, slug, moved.snapshots[slug])
    assert declared(rows.to_pylist()) == [CASES[slug].then]


@pytest.mark.parametrize("slug", CASES)
def test_columns_exist_as_soon_as_the_dataset_has_moved(moved: Moved, slug: str) -> None:
    assert declared(moved.at_once[slug]) == [CASES[slug].now[0]]


@pytest.mark.parametrize("slug", CASES)
def test_the_snapshot_summary_names_schema_and_replaced_columns(moved: Moved, slug: str) -> None:
    summaries = [snapshot.summary for snapshot in table(moved.owner, slug).snapshots()]
    overwritten = [s.additional_properties for s in summaries if s.operation.value == "overwrite"]
    tenant = moved.owner.tenant.slug
    expected = {
        "pulse.schema-uri": f"pulse://{tenant}/{slug}/2",
        "pulse.replaced-columns": CASES[slug].replaced,
    }
    assert [{key: properties[key] for key in expected} for properties in overwritten] == (
        [expected] if CASES[slug].replaced else []
    )


@pytest.mark.parametrize("slug", CASES)
@pytest.mark.sample(3)
def test_checks_pass_after_a_move(moved: Moved, slug: str) -> None:
    for name in checks.TABLE_CHECKS:
        assert checks.run(name, moved.owner.tenant, slug).problems == []
    assert checks.run("schema_conformance", moved.owner.tenant, slug).numbers["rows_validated"] == 3


def test_everything_is_accounted_for(moved: Moved) -> None:
    report = reconcile_tenant(moved.owner.tenant)
    assert (report.problems, report.landed) == ([], 3 * len(CASES))
