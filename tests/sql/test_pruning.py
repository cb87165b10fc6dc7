"""Partitions by which DuckDB would leave out rows of a result: every row that a condition selects is read."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    DateType,
    DecimalType,
    IcebergType,
    LongType,
    NestedField,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from support.sql import local_view

from pulse_pipelines.sql import engine, pruning
from pulse_pipelines.sql.engine import View

MOMENTS = (
    datetime(1, 1, 1, 0, 0, 1),
    datetime(1969, 12, 30, 12),
    datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime(1970, 1, 1),
    datetime(2026, 11, 29, 10),
)
IN_UTC = tuple(moment.replace(tzinfo=UTC) for moment in MOMENTS)
AMOUNTS = (Decimal("-10.50"), Decimal("-0.01"), Decimal("0.09"), Decimal("12.34"))
WHOLE: dict[str, tuple[IcebergType, Transform[Any, Any], Sequence[Any]]] = {
    "days": (TimestamptzType(), DayTransform(), IN_UTC),
    "days without a zone": (TimestampType(), DayTransform(), MOMENTS),
    "months": (TimestamptzType(), MonthTransform(), IN_UTC),
    "buckets of UUIDs": (UUIDType(), BucketTransform(4), [UUID(int=n) for n in (1, 2, 2**128 - 1)]),
    "truncated decimals": (DecimalType(9, 2), TruncateTransform(2), AMOUNTS),
}
"""Partitionings that DuckDB misjudges: the column's type, the transform, values."""
PRUNED: dict[str, tuple[IcebergType, Transform[Any, Any], Sequence[Any]]] = {
    "days since 1970": (TimestamptzType(), DayTransform(), IN_UTC[3:]),
    "hours": (TimestamptzType(), HourTransform(), IN_UTC),
    "years": (TimestamptzType(), YearTransform(), IN_UTC),
    "days of dates": (DateType(), DayTransform(), [moment.date() for moment in MOMENTS]),
    "buckets of decimals": (DecimalType(9, 2), BucketTransform(4), AMOUNTS),
    "truncated numbers": (LongType(), TruncateTransform(10), [-11, -1, 0, 9]),
    "decimals": (DecimalType(9, 2), IdentityTransform(), AMOUNTS),
}
"""Others, that it judges as Iceberg does."""
CASES = WHOLE | PRUNED


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with engine.instance() as opened:
        opened.execute("SET TimeZone = 'UTC'")
        yield opened


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> InMemoryCatalog:
    catalog = InMemoryCatalog("test", warehouse=str(tmp_path_factory.mktemp("lake")))
    catalog.create_namespace("own")
    return catalog


def make_table(catalog: InMemoryCatalog, case: str) -> Table:
    """A table of a case's values, and a null, with the numbers of their rows."""
    kind, transform, values = CASES[case]
    schema = Schema(NestedField(1, "number", LongType()), NestedField(2, "value", kind))
    spec = PartitionSpec(PartitionField(2, 1000, transform, "part"))
    table = catalog.create_table(f"own.{case.replace(' ', '_')}", schema, partition_spec=spec)
    cells = [value.bytes if isinstance(value, UUID) else value for value in (*values, None)]
    rows = [{"number": number, "value": cell} for number, cell in enumerate(cells)]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    return table


def view_of(table: Table) -> View:
    view = local_view(
        table,
        whole=pruning.misjudges(table.metadata),
        timestamp_fields=pruning.timestamp_fields(table.metadata),
    )
    return replace(view, bounds=view.manifest_list, manifest_list=None)


def select(
    database: duckdb.DuckDBPyConnection, view: View, case: str, operators: Sequence[str]
) -> list[list[int]]:
    """The numbers of the rows of which each condition holds: by value, then by operator."""
    kind, _, values = CASES[case]
    written = {TimestamptzType(): "TIMESTAMPTZ", LongType(): "BIGINT"}.get(kind, str(kind))
    engine.create_view(database, view)
    try:
        parts = [
            f"SELECT coalesce(list(number ORDER BY number), []) FROM {view.name}"
            f" WHERE value {operator} CAST('{value}' AS {written})"
            for value in values
            for operator in operators
        ]
        return [numbers for (numbers,) in database.execute(" UNION ALL ".join(parts)).fetchall()]
    finally:
        database.execute(f"DROP VIEW {view.name}")


@pytest.mark.parametrize("case", CASES)
def test_every_row_that_a_condition_selects_is_read(
    catalog: InMemoryCatalog, database: duckdb.DuckDBPyConnection, case: str
) -> None:
    table = make_table(catalog, case)
    view = view_of(table)
    rows = range(len(CASES[case][2]))
    expected = [part for row in rows for part in ([row], list(rows[row:]), list(rows[:row]))]
    assert select(database, view, case, ("=", ">=", "<")) == expected

    before = pruning.begins_before_1970(database, view.bounds or "", view.timestamp_fields)
    assert (view.whole or before) == (case in WHOLE), "others are not read whole"
    if case in WHOLE:
        equal = [[row] for row in rows]
        try:
            corrected = select(database, replace(view, whole=False, bounds=None), case, ("=",)) == equal
        except duckdb.InternalException:
            corrected = False
        assert not corrected, "DuckDB judges it correctly now: such tables need not be read whole"


NAN = float("nan")


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("double > 2", [1]),
        ("double = 'nan'", [1]),
        ("NOT double < 2", [1]),
        ("double <= 1", [0, 2]),
        ("short > 2", [1]),
        ("short <> 1", [1, 2]),
        ("member.double > 2", [1]),
        ("number = 1 AND double > 2", [1]),
        ("double = 0 AND double::VARCHAR = '-0.0'", [2]),
    ],
)
def test_a_condition_selects_numbers_that_are_in_no_bounds(
    catalog: InMemoryCatalog, database: duckdb.DuckDBPyConnection, condition: str, expected: list[int]
) -> None:
    """Bounds of a file have no NaN, which is larger than all other numbers."""
    name = f"own.nan_{uuid4().hex}"
    schema = pa.schema(
        [
            ("number", pa.int64()),
            ("double", pa.float64()),
            ("short", pa.float32()),
            ("member", pa.struct([("double", pa.float64())])),
        ]
    )
    table = catalog.create_table(name, schema)
    rows = [
        {"number": number, "double": value, "short": value, "member": {"double": value}}
        for number, value in enumerate((1.0, NAN, -0.0))
    ]
    table.append(pa.Table.from_pylist(rows, schema=schema))
    view = replace(view_of(table), nan=pruning.may_have_nan(table.metadata))
    engine.create_view(database, view)
    select = f"SELECT number FROM {view.name} WHERE {condition} ORDER BY 1"
    assert [number for (number,) in database.execute(select).fetchall()] == expected
    kinds = database.execute(f"SELECT typeof(double), typeof(short) FROM {view.name}").fetchone()
    assert kinds == ("DOUBLE", "FLOAT")
