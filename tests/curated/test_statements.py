"""What one statement asks for: all of it once, within its bounds."""

from datetime import date, timedelta

from hypothesis import given, strategies as st

from pulse_pipelines.curated import statements
from pulse_pipelines.curated.statements import chunks, halves, pieces, spans

FIRST = date(2026, 1, 1)
DAYS = st.sets(st.integers(0, 2_000), min_size=1, max_size=300).map(
    lambda numbers: tuple(FIRST + timedelta(n) for n in sorted(numbers))
)


def of_spans(intervals: list[tuple[date, date]]) -> list[date]:
    return [first + timedelta(n) for first, last in intervals for n in range((last - first).days + 1)]


def test_days_that_follow_one_another_are_one_span() -> None:
    a, b, c, d = (FIRST + timedelta(n) for n in (0, 1, 2, 9))
    assert spans([c, a, d, b, a]) == [(a, c), (d, d)]
    assert spans([]) == []


@given(DAYS)
def test_spans_are_of_the_days_and_no_others(days: tuple[date, ...]) -> None:
    assert of_spans(spans(days)) == list(days)


@given(st.lists(DAYS, max_size=20), st.integers(1, 400))
def test_each_day_is_in_one_statement(datasets: list[tuple[date, ...]], most: int) -> None:
    cut = [(number, piece) for number, days in enumerate(datasets) for piece in pieces(days, most)]
    all_chunks = list(chunks(cut, most))
    assert [(n, day) for chunk in all_chunks for n, days in chunk for day in days] == [
        (n, day) for n, days in enumerate(datasets) for day in days
    ]
    for chunk in all_chunks:
        assert 0 < sum(len(days) for _, days in chunk) <= most
        assert sum(len(spans(days)) for _, days in chunk) <= statements.SPANS


@given(st.lists(DAYS, min_size=1, max_size=20))
def test_few_statements_isolate_the_day_at_fault(datasets: list[tuple[date, ...]]) -> None:
    chunk, count = list(enumerate(datasets)), 0
    total = sum(len(days) for days in datasets)
    fault = len(datasets) // 2, datasets[len(datasets) // 2][0]
    while sum(len(days) for _, days in chunk) > 1:
        one, other = halves(chunk)
        assert [(n, d) for half in (one, other) for n, days in half for d in days] == [
            (n, d) for n, days in chunk for d in days
        ]
        chunk = one if any(fault[0] == n and fault[1] in days for n, days in one) else other
        count += 2
    assert (chunk[0][0], chunk[0][1][0]) == fault
    assert count <= 2 * (len(datasets).bit_length() + total.bit_length())
