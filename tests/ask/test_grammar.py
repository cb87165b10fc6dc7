"""The grammar: what is understood is right, and what could be wrong is not understood."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import duckdb
import pytest

from benchmarks import ask
from pulse_pipelines.ask import plan, read
from pulse_pipelines.ask.meaning import Meaning
from pulse_pipelines.ask.read import NotUnderstood, Ran

ASKED = json.loads(ask.QUESTIONS.read_text())


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    return ask.database(tmp_path_factory.mktemp("flights"))


@pytest.fixture(scope="module")
def known() -> list[Meaning]:
    return ask.meanings()


def understood(flights: duckdb.DuckDBPyConnection, known: list[Meaning], question: str) -> str:
    async def run(sql: str) -> Ran:
        return Ran("", [], flights.execute(sql).to_arrow_table().to_pylist(), {})

    found = asyncio.run(read.read(known, question, ask.NOW, run))
    return plan.said(plan.Plan(**{**vars(found), "notes": ()}))


def test_there_are_enough_questions() -> None:
    assert len({each["question"] for each in ASKED}) == len(ASKED) >= 150


@pytest.mark.parametrize(
    "every", [pytest.param(7, id="a seventh"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
def test_no_answer_is_wrong(flights: duckdb.DuckDBPyConnection, known: list[Meaning], every: int) -> None:
    verdicts = ask.judge(flights, known, ASKED[::every])
    assert not [each for each in verdicts if each.outcome == "wrong"]
    assert Counter(each.outcome for each in verdicts)["right"] >= 0.6 * len(verdicts)


@pytest.mark.slow
def test_no_answer_is_wrong_without_annotations(flights: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    verdicts = ask.judge(flights, ask.meanings(annotated=False), ASKED)
    assert not [each for each in verdicts if each.outcome == "wrong"]


@pytest.mark.parametrize(
    "question",
    [
        "How many flights were not cancelled?",
        "How many flights from JFK were late?",
        "What is the average delay?",
        "Which day had the highest temperature?",
        "Which carriers have the most flights?",
        "How many flights are there without a departure delay?",
        "flights by hour",
        "How many flights from BOS?",
        "How many flights had a departure delay of more than 60 miles?",
        "How many flights in March from JFK in April?",
        "total average departure delay",
        "average departure delay of the 5 carriers with the most flights",
        "carriers with more than 1000 flights",
        "How many flights between JFK and LAX?",
        "How many flights on Monday?",
        "How many flights on February 30?",
        "How many flights were there in the 2013 season?",
        "'; DROP TABLE flights --",
        "How many flights? SELECT * FROM flights",
        "how many " * 29,
        "and " * 200,
        "",
    ],
)
def test_what_could_be_wrong_is_refused(
    flights: duckdb.DuckDBPyConnection, known: list[Meaning], question: str
) -> None:
    with pytest.raises(NotUnderstood) as refused:
        understood(flights, known, question)
    assert refused.value.fix


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("How many flights in March 2012?", "from 2012-03-01 00:00 before 2012-04-01 00:00 UTC"),
        ("flights per week since June 1", "from 2013-06-01 00:00 UTC"),
        ("How many flights from March to May?", "from 2013-03-01 00:00 before 2013-06-01 00:00 UTC"),
        ("How many flights today?", "from 2013-12-31 00:00 before 2014-01-01 00:00 UTC"),
        ("How many flights last week?", "from 2013-12-23 00:00 before 2013-12-30 00:00 UTC"),
        ("How many flights had a departure delay over 2 hours?", "where dep_delay > 120"),
        ("average distance excluding carrier UA", "where carrier != 'UA'"),
        ("How many flights from JFK, EWR or LGA?", "where origin = 'JFK' or 'EWR' or 'LGA'"),
        ("How many flights had 60 minutes or more?", None),
    ],
)
def test_what_is_understood_is_said(
    flights: duckdb.DuckDBPyConnection, known: list[Meaning], question: str, said: str | None
) -> None:
    if said is None:
        with pytest.raises(NotUnderstood):
            understood(flights, known, question)
        return
    assert said in understood(flights, known, question)
