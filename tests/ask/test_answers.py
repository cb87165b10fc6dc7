"""Answers of the grammar over a few rows: those without a value, and days without rows."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import duckdb
import pytest

from pulse_pipelines.ask import meaning, plan, read
from pulse_pipelines.ask.read import NotUnderstood, QueryResult
from pulse_pipelines.domain.schemas.columns import columns
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
    "trips", DOCUMENT, [(column.field, column.name, column.type) for column in columns(DOCUMENT)]
)
NOW = datetime(2026, 11, 25, 8, tzinfo=UTC)
ROWS = """
CREATE TABLE trips AS SELECT * REPLACE (fare::DOUBLE AS fare, passengers::BIGINT AS passengers) FROM (VALUES
    ('car', 'paid', 10.0, 1, true, false, TIMESTAMPTZ '2026-11-01 10:00:00Z'),
    ('bus', 'not paid', 20.0, 2, false, false, TIMESTAMPTZ '2026-11-01 12:00:00Z'),
    (NULL, 'paid', 30.0, 3, NULL, NULL, TIMESTAMPTZ '2026-11-20 10:00:00Z'),
    ('car', 'May', 40.0, 4, true, true, TIMESTAMPTZ '2026-11-24 10:00:00Z')
) AS t(vehicle, status, fare, passengers, is_late, is_cancelled, "timestamp")
"""


@pytest.fixture(scope="module")
def trips() -> duckdb.DuckDBPyConnection:
    database = engine.instance()
    database.execute("SET TimeZone = 'UTC'")
    database.execute(ROWS)
    return database


def answer_of(trips: duckdb.DuckDBPyConnection, question: str) -> tuple[Any, str]:
    """The first value of the answer, and how the question was understood."""

    async def run(sql: str) -> QueryResult:
        return QueryResult("", [], trips.execute(sql).to_arrow_table().to_pylist(), {})

    planned = asyncio.run(read.read([TRIPS], question, NOW, run))
    row = trips.execute(read.sql_of(planned)).fetchone()
    assert row is not None
    return row[0], plan.in_words(planned)


@pytest.mark.parametrize(
    ("included", "excluded"),
    [
        ("how many trips with vehicle car", "how many trips excluding vehicle car"),
        ("how many trips where vehicle is car or bus", "how many trips where vehicle is not car or bus"),
        ("how many trips were late", "how many trips were not late"),
        ("how many trips with fare = 10", "how many trips with fare ≠ 10"),
    ],
)
def test_a_row_has_a_value_or_not(trips: duckdb.DuckDBPyConnection, included: str, excluded: str) -> None:
    (with_it, _), (without, explanation) = answer_of(trips, included), answer_of(trips, excluded)
    assert with_it + without == 4
    assert "(or missing)" in explanation


@pytest.mark.parametrize(
    ("question", "number", "explanation"),
    [
        ("average number of trips per day", 4 / 24, "the average of each day from the first to the last"),
        ("average number of trips per day this month", 4 / 25, "the average of all 25 days of the range"),
        ("average number of trips per day this year", 4 / 329, "all 329 days of the range"),
        ("average number of trips per day in the last 7 days", 2 / 7, "all 7 days of the range"),
        ("average number of trips per day yesterday", 1, "all 1 day of the range"),
        ("average number of trips per day since 2026-11-20", 2 / 6, "all 6 days of the range"),
        ("average number of trips per month this year", 4 / 11, "all 11 months of the range"),
        ("average number of trips per week this month", 1, "all 4 weeks of the range"),
        ("average number of trips per vehicle", 4 / 3, "the average of those that have any"),
        ("average number of trips per day on weekends", 2, "the average of those that have any"),
    ],
)
def test_a_mean_counts_the_days_without_rows(
    trips: duckdb.DuckDBPyConnection, question: str, number: float, explanation: str
) -> None:
    mean, understood = answer_of(trips, question)
    assert mean == pytest.approx(number)
    assert explanation in understood


@pytest.mark.parametrize(
    "question",
    [
        "average number of trips per week last month",
        "average number of trips per day this month vs last month",
        "average number of trips per day in 2027",
    ],
)
def test_an_average_over_an_undefined_number_of_days_is_refused(
    trips: duckdb.DuckDBPyConnection, question: str
) -> None:
    with pytest.raises(NotUnderstood):
        answer_of(trips, question)


def test_a_ranking_explains_left_out_days_and_ties(trips: duckdb.DuckDBPyConnection) -> None:
    _, explanation = answer_of(trips, "which day had the fewest trips")
    assert "of each day that has any, of equal ones the first by day" in explanation
    _, explanation = answer_of(trips, "the 3 trips with the highest fare")
    assert "of equal ones the first by time" in explanation


@pytest.mark.parametrize(
    "question",
    [
        "how many trips are not paid",
        "how many trips where status is not paid",
        "how many trips were not cancelled and late",
        "how many trips were not cancelled, late",
        "what percentage of trips were not cancelled and late",
        "average fare per passenger",
        "total fare for each passenger",
        "average number of trips per passenger",
        "how many trips in May",
        "how many trips with fare between 20 and 10",
        "which -3 vehicles have the most trips",
        "top 2.5 vehicles by trips",
        "the latest 0 trips",
    ],
)
def test_an_ambiguous_question_is_refused(trips: duckdb.DuckDBPyConnection, question: str) -> None:
    with pytest.raises(NotUnderstood):
        answer_of(trips, question)


@pytest.mark.parametrize(
    ("question", "number"),
    [
        ("how many trips where status is 'not paid'", 1),
        ("how many trips where status is paid", 2),
        ("how many trips where status is May", 1),
        ("how many trips in November", 4),
        ("how many trips were not cancelled and not late", 2),
        ("how many trips were late and not cancelled", 1),
        ("average fare by passengers", 1),
        ("how many trips with fare between 10 and 20", 2),
    ],
)
def test_an_unambiguous_question_is_answered(
    trips: duckdb.DuckDBPyConnection, question: str, number: int
) -> None:
    assert answer_of(trips, question)[0] == number


def test_shares_add_up(trips: duckdb.DuckDBPyConnection) -> None:
    late, not_late = (
        answer_of(trips, f"what percentage of trips were {condition}") for condition in ("late", "not late")
    )
    assert (late[0], not_late[0]) == (50, 50)


@pytest.mark.parametrize(
    ("column", "value", "condition", "number"),
    [
        ("passengers", 2**53 + 1, "over 9007199254740992.5", 1),
        ("passengers", 2**53 + 1, "over 9007199254740993.5", 0),
        ("passengers", 2**53 + 1, "under 9007199254740993.5", 1),
        ("passengers", 922337203685477581, "over 922337203685477580.5", 1),
        ("passengers", 2, "= 1.5", 0),
        ("fare", 0.9366088668340495, "= 0.9366088668340495", 1),
        ("fare", 0.9260948304880197, "over 0.9260948304880197", 0),
        ("fare", 0.1, "= 0.1", 1),
    ],
)
def test_a_number_is_compared_with_all_its_digits(
    trips: duckdb.DuckDBPyConnection, column: str, value: float, condition: str, number: int
) -> None:
    """Neither as the double that is nearest to it, nor as what DuckDB makes of a decimal."""
    with trips.cursor() as beside:
        beside.begin()
        beside.execute(f"UPDATE trips SET {column} = CASE WHEN passengers = 1 THEN ? END", [value])
        assert answer_of(beside, f"how many trips with {column} {condition}")[0] == number
        beside.rollback()
