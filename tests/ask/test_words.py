"""Words of a question: no character is passed over, apart from white space and ordinary punctuation."""

import asyncio

import pytest
from hypothesis import assume, example, given, strategies as st

from benchmarks import ask
from pulse_pipelines.ask import meaning, plan, read
from pulse_pipelines.ask.read import NotUnderstood, QueryResult
from pulse_pipelines.ask.words import words
from pulse_pipelines.domain.schemas.columns import columns

DOCUMENT = {
    "type": "object",
    "properties": {
        "vehicle": {"type": "string", "enum": ["car", "bus"]},
        "city": {"type": "string", "enum": ["Oslo"], "x-pulse-synonyms": ["from"]},
        "fare": {"type": "number", "x-pulse-unit": "euros"},
        "humidity": {"type": "number", "x-pulse-unit": "percent"},
        "wait_seconds": {"type": "integer"},
        "temp_celsius": {"type": "number"},
    },
}
TRIPS = meaning.of_schema(
    "trips", DOCUMENT, [(column.field, column.name, column.type) for column in columns(DOCUMENT)]
)


def understood(question: str) -> str:
    async def run(sql: str) -> QueryResult:
        return QueryResult("", [], [], {})

    return plan.in_words(asyncio.run(read.read([TRIPS], question, ask.NOW, run)))


@pytest.mark.parametrize(
    ("question", "explanation"),
    [
        ("vehicle ≠ car", "vehicle != 'car'"),
        ("vehicle <> car", "vehicle != 'car'"),
        ("from ≠Oslo", "city != 'Oslo'"),
        ("vehicle is “car”", "vehicle = 'car'"),
        ("temp below \u22125", "temp_celsius < -5"),
        ("temp below \u20135", "temp_celsius < -5"),
        ("temp is \u22125", "temp_celsius = -5"),
        ("temp over 5°C", "temp_celsius > 5"),
        ("fare ≥ 50", "fare >= 50"),
        ("fare > = 50", "fare >= 50"),
        ("fare ≤ 50", "fare <= 50"),
        ("fare over €50", "fare > 50"),
        ("fare over 50 €", "fare > 50"),
        ("fare over 1,500", "fare > 1500"),
        ("humidity over 50%", "humidity > 50"),
        ("fare over 50?!", "fare > 50"),
    ],
)
def test_signs_and_symbols_are_understood(question: str, explanation: str) -> None:
    assert explanation in understood(f"how many trips where {question}")


@pytest.mark.parametrize(
    ("question", "sign"),
    [
        ("vehicle is ¬car", "¬"),
        ("vehicle is ~car", "~"),
        ("from -Oslo", "-"),
        ("vehicle is !car", "!"),
        ("vehicle is ! car", "!"),
        ("fare => 50", "=>"),
        ("fare over $50", "$"),
        ("fare over 50 £", "£"),
        ("fare over 10,5", "10,5"),
        ("fare over 5\u201310", "5\u201310"),
        ("fare over -", "-"),
        ("wait over 5'", "'"),
        ("wait over $300", "$"),
        ("wait over 20°", "°"),
        ("temp over 5°F", "°F"),
        ("fare =\u0338 50", "\u0338"),
    ],
)
def test_a_sign_without_a_meaning_is_named(question: str, sign: str) -> None:
    with pytest.raises(NotUnderstood) as refused:
        understood(f"how many trips where {question}")
    assert f"{sign!r} means nothing in trips" in str(refused.value) or f"{sign!r}," in str(refused.value)


@pytest.mark.parametrize(
    "time",
    [
        "on 9999-12-31",
        "since 9999-12-31",
        "after 9999-12-31",
        "from 9999-12-30 to 9999-12-31",
        "in the last 2500 years",
        "in the last 5000 years",
        "from February 29 to March 5 2023",
    ],
)
def test_a_time_outside_the_calendar_is_refused(time: str) -> None:
    with pytest.raises(NotUnderstood):
        understood(f"how many trips {time}")


MEANT = "-\u2212\u2013<>=!≠≤≥%€$£°,.?:'\"“"
"""Signs that may mean something, or nothing, by their place."""
ASKED = "how many trips from Oslo with a fare over 50 and a wait of 5 seconds"


@given(
    sign=st.characters(exclude_categories=("L", "N", "Z", "Cs"), exclude_characters=MEANT),
    place=st.integers(0, len(ASKED)),
)
@example(sign="\u200b", place=8)
@example(sign="¬", place=20)
@example(sign="+", place=46)
def test_no_character_is_passed_over(sign: str, place: int) -> None:
    assume(not sign.isspace())
    with pytest.raises(NotUnderstood) as refused:
        understood(ASKED[:place] + sign + ASKED[place:])
    assert refused.value.fix
    if sign != "_" and sign != "/":  # those join words
        assert repr(sign) in str(refused.value)


@given(
    st.text(
        st.sampled_from(f"{MEANT}¬;()/& \tab1'\u2019s") | st.characters(exclude_categories=("Cs",)),
        max_size=40,
    )
)
def test_every_character_is_in_a_word(question: str) -> None:
    text = "".join(word.text for word in words(question))
    dropped = "'\"“”\u2019s\u2212\u2013"  # quotes and the possessive; a minus is written in one way
    plain = str.maketrans("", "", dropped + "-")
    assert "".join(text.translate(plain).split()) == "".join(question.translate(plain).split())
