"""Deletes by equality: DuckDB deletes exactly the equal rows, or the table is refused."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform, VoidTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType
from support.delete_files import delete_equal
from support.sql import local_view

from pulse_pipelines.sql import engine, equality
from pulse_pipelines.sql.engine import View
from pulse_resources.errors import UserError

ROWS: list[dict[str, Any]] = [
    {"id": 1, "part": "a", "number": 1},
    {"id": 1, "part": "b", "number": 2},
    {"id": 2, "part": "a", "number": 3},
]


@dataclass(frozen=True)
class Case:
    """A table, and a file of deletes in the partition of its first row."""

    keys: dict[str, Any]
    """What is deleted: values by column."""
    left: list[int] | None
    """Numbers of the rows that Iceberg leaves; None: the table is refused."""
    required: bool = True
    transform: Transform[Any, Any] | None = None
    """Of the column `part`, if the table is partitioned."""
    partition: Any = None
    rows: list[dict[str, Any]] = field(default_factory=lambda: ROWS)
    kind: Any = field(default_factory=LongType)
    """The type of the column `id`."""


CASES = {
    "required columns": Case({"id": 1}, [3]),
    "a value of no row": Case({"id": 7}, [1, 2, 3]),
    "columns that contain the partition's": Case(
        {"id": 1, "part": "a"}, [2, 3], transform=IdentityTransform(), partition="a"
    ),
    "columns that contain those of a bucket": Case(
        {"part": "b", "id": 1}, [1, 3], transform=BucketTransform(1), partition=0
    ),
    "columns beside the partition": Case({"id": 1}, None, transform=IdentityTransform(), partition="a"),
    "columns with nulls": Case({"id": 1}, None, required=False, rows=[*ROWS, {"id": None, "number": 4}]),
    "floating-point numbers": Case(
        {"id": 0.0}, None, kind=DoubleType(), rows=[{"id": -0.0, "part": "a", "number": 1}]
    ),
}


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with engine.instance() as opened:
        yield opened


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> InMemoryCatalog:
    catalog = InMemoryCatalog("test", warehouse=str(tmp_path_factory.mktemp("lake")))
    catalog.create_namespace("equality")
    return catalog


def empty_table(catalog: InMemoryCatalog, case: Case) -> Table:
    schema = Schema(
        NestedField(1, "id", case.kind, required=case.required),
        NestedField(2, "part", StringType(), required=case.required),
        NestedField(3, "number", LongType()),
    )
    fields = [PartitionField(2, 1000, case.transform, "p")] if case.transform else []
    return catalog.create_table(
        f"equality.t{uuid.uuid4().hex}", schema, partition_spec=PartitionSpec(*fields)
    )


def make_table(catalog: InMemoryCatalog, case: Case) -> Table:
    table = empty_table(catalog, case)
    table.append(pa.Table.from_pylist(case.rows, schema=table.schema().as_arrow()))
    return table


def view_of(table: Table) -> View:
    metadata = table.metadata
    return local_view(table, exact_columns=equality.exact_columns(metadata), scopes=equality.scopes(metadata))


def numbers_of(database: duckdb.DuckDBPyConnection, view: View) -> Sequence[int]:
    engine.create_view(database, view)
    return [number for (number,) in database.execute(f"SELECT number FROM {view.name} ORDER BY 1").fetchall()]


def check(database: duckdb.DuckDBPyConnection, view: View) -> None:
    assert view.manifest_list
    equality.check(database, view.name, view.manifest_list, exact=view.exact_columns, scopes=view.scopes)


@pytest.mark.parametrize("name", CASES)
def test_deletes_by_equality_are_exact_or_the_table_is_refused(
    catalog: InMemoryCatalog, database: duckdb.DuckDBPyConnection, name: str
) -> None:
    case = CASES[name]
    table = make_table(catalog, case)
    check(database, view_of(table))
    delete_equal(table, case.keys, *([case.partition] if case.transform else []))
    view = view_of(table.refresh())
    if case.left is None:
        with pytest.raises(UserError, match="deletes by equality"):
            check(database, view)
        return
    check(database, view)
    assert numbers_of(database, view) == case.left


@pytest.mark.parametrize("name", ["columns beside the partition", "columns with nulls"])
def test_duckdb_deletes_other_rows_than_the_equal_ones(
    catalog: InMemoryCatalog, database: duckdb.DuckDBPyConnection, name: str
) -> None:
    """A newer DuckDB that is exact fails this test: such tables need not be refused then."""
    case = CASES[name]
    table = make_table(catalog, case)
    delete_equal(table, case.keys, *([case.partition] if case.transform else []))
    exact = [row["number"] for row in case.rows if row["id"] != 1 or row["part"] == "b"]
    assert numbers_of(database, view_of(table.refresh())) != exact


def test_deletes_of_a_void_partition_are_those_of_all(catalog: InMemoryCatalog) -> None:
    void = Case({"id": 1}, None, transform=VoidTransform())
    assert equality.scopes(empty_table(catalog, void).metadata) == []


def test_a_column_that_was_optional_in_a_schema_is_not_exact(catalog: InMemoryCatalog) -> None:
    table = make_table(catalog, CASES["required columns"])
    assert equality.exact_columns(table.metadata) == [1, 2]
    with table.update_schema() as change:
        change.make_column_optional("id")
    assert equality.exact_columns(table.refresh().metadata) == [2]
