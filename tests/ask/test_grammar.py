"""The grammar: what is understood is right, and what could be wrong is not understood."""

import asyncio
import json
from collections import Counter

import duckdb
import pytest

from benchmarks import ask
from pulse_pipelines.ask import meaning, plan, read
from pulse_pipelines.ask.meaning import Meaning
from pulse_pipelines.ask.read import NotUnderstood, QueryResult
from pulse_pipelines.domain.schemas.columns import columns

ASKED = json.loads(ask.QUESTIONS.read_text())


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    return ask.database(tmp_path_factory.mktemp("flights"))


@pytest.fixture(scope="module")
def known() -> list[Meaning]:
    return ask.meanings()


def understood(flights: duckdb.DuckDBPyConnection, known: list[Meaning], question: str) -> str:
    async def run(sql: str) -> QueryResult:
        return QueryResult("", [], flights.execute(sql).to_arrow_table().to_pylist(), {})

    planned = asyncio.run(read.read(known, question, ask.NOW, run))
    return plan.in_words(plan.Plan(**{**vars(planned), "notes": ()}))


def test_there_are_enough_questions() -> None:
    assert len({entry["question"] for entry in ASKED}) == len(ASKED) >= 150


@pytest.mark.long
@pytest.mark.parametrize("annotated", [True, False])
@pytest.mark.parametrize(
    "every", [pytest.param(16, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
@pytest.mark.sample(1)
def test_no_answer_is_wrong_and_most_are_right(
    flights: duckdb.DuckDBPyConnection, annotated: bool, every: int
) -> None:
    verdicts = ask.verdicts(flights, ask.meanings(annotated=annotated), ASKED[::every])
    assert not [verdict for verdict in verdicts if verdict.outcome == "wrong"]
    assert Counter(verdict.outcome for verdict in verdicts)["right"] >= 0.6 * len(verdicts)


@pytest.mark.sample(16)
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
        "How many flights from December 2013 to March?",
        "How many airports were there yesterday?",
        "airports per month",
        "total seats by day",
        "What is the number of seats?",
        "what is the number of engines",
        "How many flights from JFK or LGA vs EWR?",
        "flights from LAX",
        "total distance per flight",
        "total distance in hours",
        "How many flights were there in the 2013 season?",
        "'; DROP TABLE flights --",
        "How many flights? SELECT * FROM flights",
        "how many " * 29,
        "and " * 200,
        "",
    ],
)
def test_a_question_with_more_than_one_meaning_is_refused(
    flights: duckdb.DuckDBPyConnection, known: list[Meaning], question: str
) -> None:
    with pytest.raises(NotUnderstood) as refused:
        understood(flights, known, question)
    assert refused.value.fix


@pytest.mark.parametrize(
    ("question", "explanation"),
    [
        ("How many flights in March 2012?", "from 2012-03-01 00:00 before 2012-04-01 00:00 UTC"),
        ("flights per week since June 1", "from 2013-06-01 00:00 UTC"),
        ("How many flights from March to May?", "from 2013-03-01 00:00 before 2013-06-01 00:00 UTC"),
        ("How many flights from November to January?", "from 2012-11-01 00:00 before 2013-02-01 00:00 UTC"),
        ("How many flights from May 2012 to March?", "from 2012-05-01 00:00 before 2013-04-01 00:00 UTC"),
        ("How many flights today?", "from 2013-12-31 00:00 before 2014-01-01 00:00 UTC"),
        ("How many flights last week?", "from 2013-12-23 00:00 before 2013-12-30 00:00 UTC"),
        ("How many flights had a departure delay over 2 hours?", "where dep_delay > 120"),
        ("average distance excluding carrier UA", "where carrier != 'UA'"),
        ("How many flights from JFK, EWR or LGA?", "where origin = 'JFK' or 'EWR' or 'LGA'"),
        ("How many flights had 60 minutes or more?", None),
        ("average number of seats", "average seats in planes"),
        ("average distance per flight", "average distance (miles) in flights"),
        ("total distance in miles last month", "total distance (miles) in flights"),
        ("flights from JFK vs LGA", "by origin; where origin = 'JFK' or 'LGA'"),
        (
            "How many carriers have flights to BOS?",
            "number of distinct carrier in flights; where dest = 'BOS'",
        ),
        ("top five carriers by flights", "the first 5"),
    ],
)
def test_an_answer_explains_how_the_question_was_understood(
    flights: duckdb.DuckDBPyConnection, known: list[Meaning], question: str, explanation: str | None
) -> None:
    if explanation is None:
        with pytest.raises(NotUnderstood):
            understood(flights, known, question)
        return
    assert explanation in understood(flights, known, question)


TRIPS = {
    "origin": {"type": "string"},
    "destination": {"type": "string"},
    "distance_km": {"type": "number"},
    "wait_mins": {"type": "integer"},
    "tz": {"type": "string"},
    "tzone": {"type": "string"},
    "orders_30_days": {"type": "integer"},
    "driver_id": {"type": "integer"},
    "is_shared": {"type": "boolean"},
}


@pytest.mark.parametrize(
    ("question", "explanation"),
    [
        ("average distance", "average distance_km (km) in trips"),
        ("average wait in minutes", "average wait_mins (minutes) in trips"),
        ("How many trips had a wait over 2 hours?", "where wait_mins > 120"),
        ("How many trips had a wait over 8.2 hours?", "where wait_mins > 492"),
        ("How many trips had a wait over 9 seconds?", "where wait_mins > 0.15"),
        ("How many trips had a wait over 20 seconds?", "where wait_mins > 0.3333333333333333"),
        ("How many trips had a wait over 9007199254740993.5 minutes?", "wait_mins > 9007199254740993.5"),
        ("How many trips from Berlin to Rome?", "where origin = 'Berlin' and destination = 'Rome'"),
        ("trips from Berlin by month", "by month; where origin = 'Berlin'"),
        ("How many trips with a distance over 2 miles?", "'miles' means nothing"),
        ("How many trips from Rome?", "Say what 'Rome' is, as in: where destination is Rome"),
        ("trips by hour", "Say hourly, or by hour of the day"),
        ("hourly trips", "number of rows in trips; by hour"),
        ("trips by time zone", "by tz | number of rows in trips; by tzone"),
        ("How many trips have orders 30 days over 2 days?", "not understood"),
        ("average distance in kilometers by driver", "average distance_km (km) in trips; by driver_id"),
        ("total drivers", "not understood"),
        ("How many trips are shared?", "where is_shared = True"),
        ("How many shared were there?", "not understood"),
    ],
)
def test_units_and_words_follow_from_column_names(question: str, explanation: str) -> None:
    """Units and usual words follow from names; two columns of one name are a question, not a guess."""
    document = {"type": "object", "properties": TRIPS}
    typed = [(column.field, column.name, column.type) for column in columns(document)]
    trips = meaning.of_schema("trips", document, typed)

    async def run(sql: str) -> QueryResult:
        matches = ([value] if f"'{value.lower()}'" in sql else [] for value in ("Berlin", "Rome", "-", "-"))
        return QueryResult("", [], [{f"f{n}": values for n, values in enumerate(matches)}], {})

    try:
        reply = plan.in_words(asyncio.run(read.read([trips], question, ask.NOW, run)))
    except NotUnderstood as refused:
        reply = str(refused)
    assert explanation in reply
