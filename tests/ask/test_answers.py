"""Answers of the grammar over a few rows: those without a value, and days without rows."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import duckdb
import pytest

from pulse_pipelines.ask import meaning, plan, read
from pulse_pipelines.ask.read import NotUnderstood, Ran
from pulse_pipelines.domain.columns import columns
from pulse_pipelines.sql import engine

DOCUMENT = {
    "type": "object",
    "properties": {
        "vehicle": {"type": "string", "enum": ["car", "bus"]},
        "status": {"type": "string"},
        "fare": {"type": "number", "x-pulse-measure": "sum"},
        "passengers": {"type": "integer"},
        "is_late": {"type": "boolean"},
        "is_cancelled": {"type": "boolean"},
    },
}
TRIPS = meaning.of_schema(
    "trips", DOCUMENT, [(each.field, each.name, each.type) for each in columns(DOCUMENT)]
)
NOW = datetime(2026, 11, 25, 8, tzinfo=UTC)
ROWS = """
CREATE TABLE trips AS SELECT * FROM (VALUES
    ('car', 'paid', 10.0, 1, true, false, TIMESTAMPTZ '2026-11-01 10:00:00Z'),
    ('bus', 'not paid', 20.0, 2, false, false, TIMESTAMPTZ '2026-11-01 12:00:00Z'),
    (NULL, 'paid', 30.0, 3, NULL, NULL, TIMESTAMPTZ '2026-11-20 10:00:00Z'),
    ('car', NULL, 40.0, 4, true, true, TIMESTAMPTZ '2026-11-24 10:00:00Z')
) AS t(vehicle, status, fare, passengers, is_late, is_cancelled, "timestamp")
"""


@pytest.fixture(scope="module")
def trips() -> duckdb.DuckDBPyConnection:
    made = engine.instance()
    made.execute("SET TimeZone = 'UTC'")
    made.execute(ROWS)
    return made


def answered(trips: duckdb.DuckDBPyConnection, question: str) -> tuple[Any, str]:
    """The first value of the answer, and how the question was understood."""

    async def run(sql: str) -> Ran:
        return Ran("", [], trips.execute(sql).to_arrow_table().to_pylist(), {})

    found = asyncio.run(read.read([TRIPS], question, NOW, run))
    row = trips.execute(read.sql_of(found)).fetchone()
    assert row is not None
    return row[0], plan.said(found)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("how many trips with vehicle car", "how many trips excluding vehicle car"),
        ("how many trips where vehicle is car or bus", "how many trips where vehicle is not car or bus"),
        ("how many trips were late", "how many trips were not late"),
        ("how many trips with fare = 10", "how many trips with fare ≠ 10"),
    ],
)
def test_a_row_has_a_value_or_not(trips: duckdb.DuckDBPyConnection, one: str, other: str) -> None:
    (with_it, _), (without, said) = answered(trips, one), answered(trips, other)
    assert with_it + without == 4
    assert "(or missing)" in said


def test_shares_add_up(trips: duckdb.DuckDBPyConnection) -> None:
    late, not_late = (
        answered(trips, f"what percentage of trips were {what}") for what in ("late", "not late")
    )
    assert (late[0], not_late[0]) == (50, 50)
