"""Pulse's own rollups are what Spark's SQL makes of the same snapshot, whatever rows and files it has."""

import json
import math
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from pyspark.sql.connect.session import SparkSession
from support import spark_rollups
from support.curated import Zone, make_zone, visit
from support.here import ingest_here as ingest
from support.ingest import Owner
from support.lake import changed, location, pointing_at, without_object
from support.moves import moved

from pulse_pipelines import registry
from pulse_pipelines.curated import day_tasks
from pulse_pipelines.curated.behaviour import behaviour
from pulse_pipelines.curated.compute import _part, compute
from pulse_pipelines.curated.daily import DAILY, MOST_TYPES
from pulse_pipelines.curated.pinned import pin
from pulse_pipelines.curated.rollup import DayQuery, Part, Rollup
from pulse_pipelines.ingest import land
from pulse_pipelines.ingest.stages import StagedTable
from pulse_pipelines.query.file_pruning import ALWAYS, Span, newest_files
from pulse_pipelines.query.snapshots import manifests, metadata_at
from pulse_pipelines.tables import arrow_columns, parquet_files
from pulse_resources import iceberg, object_store, postgres

DAYS = [date(1969, 12, 31), date(1970, 1, 1), date(2026, 11, 18), date(2026, 11, 20), date(9999, 12, 31)]
EMPTY = date(2026, 11, 19)
"""A day between two others that has no rows."""
GAP_MINUTES = 30
DAY_US = 86_400_000_000
ACTORS = st.none() | st.sampled_from(["ann", "bob", "", "Ann", "é", "\N{GRINNING FACE}"])
KINDS = st.none() | st.sampled_from(["view", "buy", "", "B", "b", "é", "'", "a\0b"]) | st.text(max_size=3)
ROW = st.fixed_dictionaries(
    {
        "at": st.sampled_from([0, 1, DAY_US - 1, 1_800_000_000, 3_600_000_000]) | st.integers(0, DAY_US - 1),
        "who": ACTORS,
        "kind": KINDS,
        "amount": st.none() | st.floats(width=32) | st.sampled_from([0.0, -0.0, 0.1, 1e150, -1e150]),
        "count": st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
    }
)
FILES = st.lists(st.tuples(st.sampled_from(DAYS), st.lists(ROW, min_size=1, max_size=12)), max_size=12)


def written(owner: Owner, files: Sequence[tuple[date, Sequence[dict[str, Any]]]]) -> None:
    """Land data files of `visits` with these rows, each file in a commit of its own."""
    dataset, name = registry.find_dataset(owner.tenant, "visits"), (owner.tenant.namespace, "visits")
    schema = arrow_columns.arrow_schema(dataset.table_schema)
    for day, rows in files:
        before = location(owner, "visits")
        where = iceberg.load_table(name, before).location()
        content = pa.Table.from_pylist([_row(dataset, day, row) for row in rows], schema=schema)
        path = f"{where}/data/timestamp_day={day}/{parquet_files.token()}.parquet"
        file, encoded = parquet_files.encode(dataset, day, path, content)
        object_store.put(path, encoded)
        common = {"tenant_id": dataset.tenant_id, "dataset_id": dataset.dataset_id, "slug": "visits"}
        places: dict[str, Any] = {"table": name, "old_location": before, "new_location": before}
        table = StagedTable(**common, **places, snapshot_id=None, files=(file,), days=())
        staged = land.stage(table, uuid.uuid4().hex)
        with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
            assert iceberg.swap(connection, name, before, staged.new_location)


def _row(dataset: Any, day: date, row: dict[str, Any]) -> dict[str, Any]:
    at = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(microseconds=row["at"])
    values = {key: value for key, value in row.items() if key != "at"}
    return values | {
        "id": values.pop("id", uuid.uuid4().hex),
        "tenant_id": str(dataset.tenant_id),
        "dataset_id": str(dataset.dataset_id),
        "timestamp": at,
        "ingested_at": datetime(2026, 11, 20, tzinfo=UTC),
        "schema_version": 1,
        "_batch": "test",
        "_kafka_partition": 0,
        "_offset": uuid.uuid4().int % 2**62,
    }


def parts_of(owners: Sequence[Owner]) -> list[Part]:
    """The days of `visits` of several tenants, as it is now."""
    parts = []
    for number, owner in enumerate(owners):
        days = tuple(sorted([*DAYS, EMPTY]))
        pinned = pin(owner.tenant, registry.find_dataset(owner.tenant, "visits").dataset_id, days)
        assert pinned
        parts.append(_part(number, pinned, days))
    return parts


def compare(session: SparkSession, parts: Sequence[Part]) -> int:
    """Both rollups, both ways; gives how many rows were compared."""
    session.conf.set("spark.sql.session.timeZone", "UTC")
    gap = behaviour(GAP_MINUTES)
    compared = 0
    for query, statement in (
        (DAILY.query, spark_rollups.daily(parts)),
        (gap.query, spark_rollups.behaviour(parts, GAP_MINUTES * 60_000_000)),
    ):
        assert query
        actual = by_cell(day_tasks.answers(session, query, parts))
        with few_rows(session):
            expected = by_cell(session.sql(statement).toArrow())
        assert actual.keys() == expected.keys()
        for cell, row in expected.items():
            same(actual[cell], row, str(cell))
        compared += len(expected)
    return compared


OF_FEW_ROWS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}
"""Spark plans and compiles longer than it computes: with these it does less of it, for equal results."""


@contextmanager
def few_rows(session: SparkSession) -> Iterator[None]:
    before = {name: session.conf.get(name) for name in OF_FEW_ROWS}
    for name, value in OF_FEW_ROWS.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            session.conf.set(name, str(value))


def by_cell(rows: pa.Table) -> dict[tuple[int, date], dict[str, Any]]:
    cells = {(row["part"], row["day"]): row for row in rows.to_pylist()}
    assert len(cells) == len(rows), "a row per part and day"
    return cells


def events_of(session: SparkSession, parts: Sequence[Part]) -> dict[tuple[int, date], int]:
    """How many events each day has by Pulse's rollup."""
    assert DAILY.query
    cells = by_cell(day_tasks.answers(session, DAILY.query, parts))
    return {cell: row["events"] for cell, row in cells.items()}


def same(actual: Any, expected: Any, where: str, scale: float = 1.0) -> None:
    """Equal; a mean, whose sum depends on its order in Spark, to a billionth of the values' size."""
    assert type(actual) is type(expected), where
    if isinstance(expected, dict):
        assert list(actual) == list(expected), where
        if {"min", "max"} <= expected.keys():
            ends = [abs(v) for v in (expected["min"], expected["max"]) if v is not None and math.isfinite(v)]
            scale = max([1.0, *ends])
        for key, value in expected.items():
            same(actual[key], value, f"{where}.{key}", scale)
    elif isinstance(expected, list):
        assert len(actual) == len(expected), where
        for number, value in enumerate(expected):
            same(actual[number], value, f"{where}[{number}]", scale)
    elif isinstance(expected, float) and where.endswith((".mean", "_mean")):
        close = math.isclose(actual, expected, rel_tol=1e-9, abs_tol=1e-9 * scale)
        assert close or (math.isnan(actual) and math.isnan(expected)), (where, actual, expected)
    elif isinstance(expected, float) and math.isnan(expected):
        assert math.isnan(actual), where
    else:
        assert actual == expected, (where, actual, expected)


@pytest.fixture(scope="module")
def zones(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Zone]:
    """Two tenants with `visits`, whose type is `kind` and whose actor is a text."""
    return [make_zone(spark_session, tmp_path_factory.mktemp("rollups")) for _ in range(2)]


@pytest.mark.slow
@settings(
    max_examples=5,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # each takes seconds: what is found is not made smaller
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(files=st.tuples(FILES, FILES), rows_at_once=st.sampled_from([1, 10, 1_000_000]))
def test_any_rows(zones: Sequence[Zone], files: Any, rows_at_once: int) -> None:
    """What is written stays, so that later examples look at tables of many files."""
    for zone, mine in zip(zones, files, strict=True):
        written(zone.owner, mine)
    many = [{"at": n, "who": None, "kind": f"k{n % 130}", "amount": None, "count": 1} for n in range(140)]
    twice = {"at": 5, "who": "ann", "kind": None, "amount": 1.0, "count": None, "id": "sent-twice"}
    written(zones[0].owner, [(DAYS[2], many), (DAYS[3], [twice, twice])])
    written(zones[1].owner, [(day, [{"at": 7, "who": "bob", "kind": "x"}]) for day in DAYS])
    parts = parts_of([zone.owner for zone in zones])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(day_tasks, "DAYS_AT_ONCE", 2)
        assert compare(zones[0].session, parts) >= 2 * len(DAYS)
    for piece in (days for part in parts for days in day_tasks._pieces(part, query_of(DAILY, part))):
        together = answer(piece)
        with pytest.MonkeyPatch.context() as patch:  # days that have too many rows to be kept, here
            patch.setattr(day_tasks, "ROWS_AT_ONCE", rows_at_once)
            apart = answer(piece)
        for one, other in zip(apart, together, strict=True):
            same(one, other, str(piece))


def query_of(rollup: Rollup, part: Part) -> DayQuery:
    assert rollup.query
    return rollup.query(part)


def answer(piece: day_tasks.Days) -> list[dict[str, Any]]:
    """What a task makes of it, here."""
    rows = pa.concat_tables(day_tasks._of_table(piece)).sort_by("day").to_pylist()
    assert isinstance(rows, list)
    return rows


def of_many_types(owner: Owner) -> Part:
    """A day with more types than are listed, several of them as frequent as others."""
    kinds = [None, None, "b", "b", *(f"k{n}" for n in range(MOST_TYPES + 9)), "k7"]
    rows = [{"at": n, "kind": kind, "who": "ann"} for n, kind in enumerate(kinds)]
    written(owner, [(DAYS[2], rows[:50]), (DAYS[2], rows[50:])])
    (part,) = parts_of([owner])
    return part


@pytest.mark.parametrize("with_spark", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_most_frequent_types_other_schemas_and_deletes_of_other_engines(
    zone: Zone, *, with_spark: bool
) -> None:
    """A column that became another, one that came, rows deleted with files and beside them.

    A comparison with Spark takes long, however little it compares: three snapshots and another tenant are
    in one, and `make test` only counts.
    """
    owner, tenant = zone.owner, zone.owner.tenant
    day = DAYS[2]
    rows = [{"at": n, "who": "ann", "kind": "a", "amount": n / 3, "count": n} for n in range(20)]
    written(owner, [(day, rows), (DAYS[3], rows[:3])])
    document = {
        "type": "object",
        "x-pulse-actor": "kind",
        "x-pulse-type": "place",
        "properties": {
            "who": {"type": "string"},
            "kind": {"type": "string"},
            "amount": {"type": "number"},
            "count": {"type": "number"},
            "place": {"type": "string"},
            "seats": {"type": "integer"},
        },
    }
    uri = registry.publish_schema(tenant, "visits", json.dumps(document)).schema_uri
    before = parts_of([owner])
    moved(tenant, "visits", uri)
    more = [{"at": n, "kind": "b", "place": "x", "count": n / 2, "seats": n} for n in range(5)]
    written(owner, [(day, more)])
    parts = parts_of([owner])
    assert parts[0].columns["count"] == "double"
    fewer = changed(owner, lambda table: table.delete("count = 3.0"), "visits")
    with pointing_at(owner, fewer, "visits"):
        parts += [replace(part, number=1) for part in parts_of([owner])]
        # An older snapshot, by a dataset that moved on.
        parts += [replace(part, number=2, dataset=parts[0].dataset) for part in before]
        many = of_many_types(make_zone(zone.session, zone.folder).owner)
        together = [*parts, replace(many, number=3)]
        assert events_of(zone.session, together) == {
            (0, day): 25,
            (0, DAYS[3]): 3,
            (1, day): 24,
            (1, DAYS[3]): 3,
            (2, day): 20,
            (2, DAYS[3]): 3,
            (3, day): MOST_TYPES + 14,
        }
        if with_spark:
            assert compare(zone.session, together) == 14
    assert DAILY.query
    (row,) = day_tasks.answers(zone.session, DAILY.query, [many]).to_pylist()
    assert [entry["type"] for entry in row["by_type"][:4]] == [None, "b", "k7", "k0"]
    assert (len(row["by_type"]), row["types"], row["events_of_other_types"]) == (MOST_TYPES, 111, 11)
    name = f"{iceberg.CATALOG}.{tenant.namespace}.visits"
    zone.session.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    zone.session.sql(f"DELETE FROM {name} WHERE count < 2 AND who IS NOT NULL").collect()
    parts = parts_of([owner])
    metadata = metadata_at((tenant.namespace, "visits"), parts[0].location)
    snapshot = metadata.current_snapshot()
    assert snapshot
    listed = manifests(snapshot.manifest_list)
    assert newest_files(metadata, listed, Span(), ALWAYS, math.inf) is None, "there are delete files"
    if with_spark:
        assert compare(zone.session, parts) == 4
    assert events_of(zone.session, parts) == {(0, day): 23, (0, DAYS[3]): 1}


def test_a_day_whose_file_is_damaged_fails_alone(zone: Zone) -> None:
    days = [date(2026, 11, n) for n in (17, 18, 19)]
    zone.owner.send(*[visit(f"{day}T09:00:00", who="ann", kind="a") for day in days])
    ingest(zone.owner)
    visits = iceberg.load_table((zone.owner.tenant.namespace, "visits"), location(zone.owner, "visits"))
    files = visits.inspect.files()
    of_day = pc.match_substring(files.column("file_path"), f"={days[1]}/")
    (file,) = files.filter(of_day).select(["file_path", "file_size_in_bytes"]).to_pylist()
    with without_object(file["file_path"], b"PAR1" + bytes(file["file_size_in_bytes"] - 8) + b"PAR1"):
        results, failures = compute(zone.session, [d for d in zone.due() if d.dataset.slug == "visits"])
    assert {result.rollup.name: set(result.rows) for result in results[0]} == {
        "daily": {days[0], days[2]},
        "behaviour": {days[0], days[2]},
    }
    assert {failure.work.day for failure in failures} == {days[1]}
    assert all("damaged" in failure.error for failure in failures), failures
