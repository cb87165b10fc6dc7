"""One table, three engines: what was landed is the same to all that read it, through the catalog."""

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan
from pyiceberg.io.pyarrow import PYARROW_PARQUET_FIELD_ID_KEY
from pyiceberg.table import FileScanTask, Table
from pyspark.sql.connect.session import SparkSession
from support.far import ANY_TIME
from support.ingest import Owner, ingest
from support.lake import outside_catalog

from chaos.surroundings import with_settings
from pulse_pipelines import registry
from pulse_pipelines.domain.schemas.columns import METADATA, PARTITION_FIELD, PHYSICAL
from pulse_pipelines.query import duckdb_pool
from pulse_resources import iceberg, object_store
from pulse_resources.settings import Settings, load_settings

FIRST, SECOND = date(2026, 11, 18), date(2026, 11, 19)
EARLIEST, LATEST = date(1, 1, 1), date(9999, 12, 31)
TAKEN = sorted(METADATA | {PARTITION_FIELD, "dataset_id"})
OF_ENGINES = (
    "rowid",
    "filename",
    "file_row_number",
    "file_index",
    "ctid",
    "_metadata",
    "day",
    "part",
    "select",
    "Day_2",
)
NAMES = {name: f"data_{name}" for name in TAKEN} | {name: name for name in OF_ENGINES}
"""Columns by properties with names that engines use, or that Pulse or Iceberg needs."""
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "amount": {"type": "number"},
        "count": {"type": "integer"},
        "active": {"type": "boolean"},
        "at": {"type": "string", "format": "date-time"},
        "born": {"type": "string", "format": "date"},
        "either": {"type": ["string", "integer"]},
        "id": {"type": "string"},
        "address": {
            "type": "object",
            "properties": {
                "zip": {"type": "string"},
                "geo": {"type": "object", "properties": {"lat": {"type": "number"}}},
            },
        },
        "lines": {
            "type": "array",
            "items": {"type": "object", "properties": {"sku": {"type": "string"}, "n": {"type": "integer"}}},
        },
        "tags": {"type": "array", "items": {"type": ["string", "null"]}},
        **{name: {"type": "string"} for name in NAMES},
    },
}
FIELDS = (
    "name",
    "amount",
    "count",
    "active",
    "at",
    "born",
    "either",
    "data_id",
    "address",
    "lines",
    "tags",
    *NAMES.values(),
)


def sale(event_id: str, timestamp: str, **data: Any) -> bytes:
    event = {"event_id": event_id, "dataset": "orders", "timestamp": timestamp, "data": data}
    return json.dumps(event | {"context": {"ip": "::1"}, "trace_id": f"trace-{event_id}"}).encode()


FULL: dict[str, Any] = {
    "name": "Zoë 😀\n\"'",
    "amount": -0.1,
    "count": 2**63 - 1,
    "active": True,
    "at": "1969-12-31T23:59:59.999999Z",
    "born": "1901-02-03",
    "either": 5,
    "id": "own",
    "address": {"zip": "1", "geo": {"lat": 52.5}, "street": "kept"},
    "lines": [{"sku": "a", "n": 1}, {}, {"n": -(2**63)}],
    "tags": ["x", None, ""],
    **{name: f"as {name}" for name in NAMES},
}
ONE = (
    sale("a", "2026-11-18T00:00:00Z", **FULL),
    sale("b", "2026-11-18T23:59:59.999999Z"),
    sale("c", "2026-11-19T00:30:00+01:00", name="", tags=[], lines=[], address={}, amount=0, active=False),
    sale("d", "2026-11-19T00:00:00Z", amount=1e300, count=-(2**63), either="5", new={"x": [1, None]}),
)
TWO = (
    sale("e", "2026-11-18T12:00:00Z", count=0),
    sale("a", "2026-11-18T12:00:00Z", name="a copy"),
    sale("f", "2026-11-19T12:00:00Z", at="9999-12-31T23:59:59.999999Z", born="9999-12-31"),
    sale("g", "0001-01-01T00:00:00Z", at="0001-01-01T00:00:00Z", born="0001-01-01"),
    sale("h", "9999-12-31T23:59:59.999999Z", amount=5e-324),
)
BY_DAY = {FIRST: ["a", "b", "c", "e"], SECOND: ["d", "f"], EARLIEST: ["g"], LATEST: ["h"]}


@dataclass(frozen=True)
class Landed:
    owner: Owner
    batches: tuple[str, str]
    table: Table
    """As another program finds it in the catalog."""


@pytest.fixture(scope="module")
def landed(stack: Settings) -> Iterator[Landed]:
    tenant = registry.create_tenant(f"t{uuid.uuid4().hex[:10]}")
    uri = registry.publish_schema(tenant, "orders", json.dumps(SCHEMA)).schema_uri
    registry.create_dataset(tenant, "orders", uri)
    owner = Owner(tenant)
    with with_settings(**ANY_TIME):
        owner.send(*ONE)
        first = ingest(owner)
        owner.send(*TWO)
        second = ingest(owner)
    catalog = outside_catalog(stack)
    try:
        yield Landed(owner, (first, second), catalog.load_table((tenant.namespace, "orders")))
    finally:
        catalog.engine.dispose()


def by_spark(landed: Landed) -> pa.Table:
    spark = SparkSession.builder.remote(load_settings().spark.remote).getOrCreate()
    return spark.sql(f"SELECT * FROM {_name(landed)}").toArrow()


def _name(landed: Landed) -> str:
    return f"{iceberg.CATALOG}.{landed.owner.tenant.namespace}.orders"


def by_duckdb(landed: Landed) -> pa.Table:
    location = registry.current_table(landed.owner.tenant, "orders").metadata_location
    with duckdb_pool.connect() as connection:
        return connection.execute(f"SELECT * FROM {duckdb_pool.SCAN}", [location]).to_arrow_table()


def by_pyiceberg(landed: Landed) -> pa.Table:
    """A null list of structs is told apart by its file: PyIceberg 0.12 reads it as an empty one."""
    content = landed.table.scan().to_arrow()
    files = (_read(task.file.file_path) for task in landed.table.scan().plan_files())
    null = {row["id"] for file in files for row in file.to_pylist() if row["lines"] is None}
    assert null == set("bdefgh")
    ids, lines = content.column("id"), content.column("lines")
    lists = [
        None if i in null and not value else value
        for i, value in zip(ids.to_pylist(), lines.to_pylist(), strict=True)
    ]
    index = content.schema.get_field_index("lines")
    return content.set_column(index, "lines", pa.array(lists, lines.type))


def rows(table: pa.Table) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = table.to_pylist()
    return sorted(content, key=lambda row: int(row["_offset"]))


ENGINES = [by_spark, by_duckdb, by_pyiceberg]


@pytest.mark.parametrize("read", ENGINES)
def test_an_engine_reads_the_sent_values(landed: Landed, read: Callable[[Landed], pa.Table]) -> None:
    landed_rows = rows(read(landed))
    assert [row["id"] for row in landed_rows] == ["a", "b", "c", "d", "e", "f", "g", "h"]
    a, b, c, d, e, f, g, h = landed_rows
    assert {name: a[name] for name in FIELDS} == {
        "name": FULL["name"],
        "amount": -0.1,
        "count": 2**63 - 1,
        "active": True,
        "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        "born": date(1901, 2, 3),
        "either": "5",
        "data_id": "own",
        "address": {"zip": "1", "geo": {"lat": 52.5}},
        "lines": [{"sku": "a", "n": 1}, {"sku": None, "n": None}, {"sku": None, "n": -(2**63)}],
        "tags": ["x", None, ""],
        **{column: f"as {name}" for name, column in NAMES.items()},
    }
    assert json.loads(a["_extra"]) == {"address": {"street": "kept"}}
    assert [b[name] for name in FIELDS] == [None] * len(FIELDS)
    assert (c["name"], c["tags"], c["lines"], c["amount"], c["active"]) == ("", [], [], 0.0, False)
    assert c["timestamp"] == datetime(2026, 11, 18, 23, 30, tzinfo=UTC)
    assert (d["amount"], d["count"], d["either"]) == (1e300, -(2**63), '"5"')
    assert json.loads(d["_extra"]) == {"new": {"x": [1, None]}}
    assert e["count"] == 0
    assert (f["at"], f["born"]) == (datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), LATEST)
    assert (g["timestamp"], g["at"], g["born"]) == (*[datetime(1, 1, 1, tzinfo=UTC)] * 2, EARLIEST)
    assert (h["timestamp"], h["amount"]) == (datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), 5e-324)
    assert {row["tenant_id"] for row in landed_rows} == {str(landed.owner.tenant.tenant_id)}
    assert [row["_batch"] for row in landed_rows] == [*[landed.batches[0]] * 4, *[landed.batches[1]] * 4]
    assert [row["_offset"] for row in landed_rows] == [0, 1, 2, 3, 4, 6, 7, 8]
    assert {(row["context"], row["schema_version"]) for row in landed_rows} == {('{"ip":"::1"}', 1)}


def test_spark_reads_every_column(landed: Landed) -> None:
    spark = SparkSession.builder.remote(load_settings().spark.remote).getOrCreate()
    assert spark.sql(f"SELECT * FROM {_name(landed)}").toArrow().num_rows == 8


def test_all_engines_read_equal_rows_and_columns(landed: Landed) -> None:
    spark, duckdb, pyiceberg = (read(landed) for read in ENGINES)
    names = [*PHYSICAL[:-1], *FIELDS, "_extra"]
    assert duckdb.column_names == pyiceberg.column_names == names
    assert rows(duckdb) == rows(pyiceberg)
    assert spark.column_names == names
    assert rows(spark) == rows(duckdb)


@pytest.mark.parametrize("day", BY_DAY)
def test_engines_find_a_days_rows_by_its_timestamps(landed: Landed, day: date) -> None:
    expected = sorted(BY_DAY[day])
    spark = SparkSession.builder.remote(load_settings().spark.remote).getOrCreate()
    query = f"SELECT id FROM {_name(landed)} WHERE to_date(timestamp) = DATE '{day}'"
    assert sorted(spark.sql(query).toArrow().column("id").to_pylist()) == expected
    location = registry.current_table(landed.owner.tenant, "orders").metadata_location
    with duckdb_pool.connect() as connection:
        query = f"SELECT id FROM {duckdb_pool.SCAN} WHERE timestamp::date = ? ORDER BY id"
        assert [row[0] for row in connection.execute(query, [location, day]).fetchall()] == expected
    scan = landed.table.scan(row_filter=_within(day))
    assert sorted(scan.to_arrow().column("id").to_pylist()) == expected


def _within(day: date) -> Any:
    first = GreaterThanOrEqual("timestamp", f"{day}T00:00:00+00:00")
    if day == LATEST:
        return first
    return And(first, LessThan("timestamp", f"{date.fromordinal(day.toordinal() + 1)}T00:00:00+00:00"))


def _day(task: FileScanTask) -> date:
    return date.fromordinal(date(1970, 1, 1).toordinal() + task.file.partition[0])


@pytest.mark.parametrize("day", BY_DAY)
def test_a_day_is_planned_from_its_own_files_alone(landed: Landed, day: date) -> None:
    everything = list(landed.table.scan().plan_files())
    own = {task.file.file_path for task in everything if _day(task) == day}
    planned = {task.file.file_path for task in landed.table.scan(row_filter=_within(day)).plan_files()}
    assert planned == own
    assert 0 < len(own) < len(everything)


def test_the_bounds_of_a_file_select_its_ids(landed: Landed) -> None:
    planned = list(landed.table.scan(row_filter=EqualTo("id", "h")).plan_files())
    assert [_day(task) for task in planned] == [LATEST]


def test_files_hold_one_day_of_one_batch_and_their_entries_describe_them(landed: Landed) -> None:
    tasks = list(landed.table.scan().plan_files())
    assert {(_day(task), _batch(task)) for task in tasks} == {
        *((day, landed.batches[0]) for day in (FIRST, SECOND)),
        *((day, landed.batches[1]) for day in BY_DAY),
    }
    ids_by_day: dict[date, list[str]] = {}
    for task in tasks:
        day, path = _day(task), task.file.file_path
        content = _read(path)
        days = pc.cast(pc.floor_temporal(content.column("timestamp"), unit="day"), pa.date32())
        assert set(days.to_pylist()) == {day}
        assert set(content.column("_batch").to_pylist()) == {_batch(task)}
        assert f"/data/timestamp_day={day}/" in path
        bucket = load_settings().object_store.bucket
        dataset = registry.find_dataset(landed.owner.tenant, "orders")
        assert path.startswith(landed.owner.tenant.table_location(bucket, "orders", dataset.dataset_id))
        assert task.file.record_count == content.num_rows
        info = object_store.file_system().get_file_info(object_store.key(path))
        assert task.file.file_size_in_bytes == info.size
        ids_by_day.setdefault(day, []).extend(content.column("id").to_pylist())
    assert {day: sorted(ids) for day, ids in ids_by_day.items()} == BY_DAY


def _batch(task: FileScanTask) -> str:
    """The batch that a file's name begins with."""
    return task.file.file_path.rpartition("/")[2].partition("-")[0]


def _read(path: str) -> pa.Table:
    with object_store.file_system().open_input_file(object_store.key(path)) as source:
        return pq.read_table(source)


def test_every_column_in_a_file_has_its_field_id(landed: Landed) -> None:
    schema = landed.table.schema()
    for task in landed.table.scan().plan_files():
        with object_store.file_system().open_input_file(object_store.key(task.file.file_path)) as source:
            arrow = pq.read_schema(source)
        ids = dict(_ids(arrow))
        assert {name: schema.find_field(name).field_id for name in ids} == ids
        assert len(ids) == len(schema.column_names)


def _ids(fields: Iterable[pa.Field], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Dotted names, as Iceberg writes them, with the ids in the file."""
    for field in fields:
        name = prefix + field.name
        yield name, int(field.metadata[PYARROW_PARQUET_FIELD_ID_KEY])
        if pa.types.is_list(field.type):
            yield from _ids([field.type.value_field.with_name("element")], f"{name}.")
        elif pa.types.is_struct(field.type):
            yield from _ids(field.type, f"{name}.")


def test_snapshots_name_their_batch(landed: Landed) -> None:
    summaries = [snapshot.summary for snapshot in landed.table.snapshots()]
    assert [summary["pulse.batch-id"] for summary in summaries if summary] == list(landed.batches)
    assert [summary["added-records"] for summary in summaries if summary] == ["4", "4"]
