"""Splitting an array of which one element is not JSON: the others are as they were, or nothing is taken."""

import json

import pytest
from hypothesis import example, given, strategies as st

from pulse_api.http.collect import values
from pulse_api.http.collect.split import split
from pulse_api.http.problems import ProblemError

EVENTS = [json.dumps({"event_id": f"e{number}", "data": {"a": ["x", {"b": number}]}}) for number in range(5)]
MARKS = '"{}[],:\\ a1'


def items(elements: list[str]) -> list[bytes] | None:
    """Payloads of the events of an array; None if it is refused."""
    try:
        events = split(
            f"[{', '.join(elements)}]".encode(),
            {},
            max_events=100,
            max_values=10_000,
            max_depth=100,
            max_bytes=1_000,
        )
    except ProblemError:
        return None
    return [event.payload for event in events]


WHOLE = items(EVENTS)


@given(
    at=st.integers(0, len(EVENTS[2]) - 1),
    mark=st.sampled_from(MARKS),
    removed=st.integers(0, 1),
    other=st.none() | st.integers(0, len(EVENTS[3]) - 1),
)
@example(at=EVENTS[2].index("e2") + 2, mark="", removed=1, other=EVENTS[3].index("e3") + 2)
@example(at=EVENTS[2].index('"x"') + 2, mark="", removed=1, other=None)
def test_a_mark_more_or_less_changes_no_other_event(
    at: int, mark: str, removed: int, other: int | None
) -> None:
    elements = list(EVENTS)
    elements[2] = elements[2][:at] + mark + elements[2][at + removed :]
    if other is not None:
        elements[3] = elements[3][:other] + elements[3][other + 1 :]
    payloads = items(elements)
    if payloads is not None:
        assert WHOLE is not None
        assert len(payloads) == len(WHOLE)
        assert (payloads[:2], payloads[4:]) == (WHOLE[:2], WHOLE[4:])
        if other is None:
            assert payloads[3] == WHOLE[3]


@pytest.mark.parametrize(
    ("element", "clear"),
    [
        (b'{"a": NaN, "b": -Infinity, "c": 1e400, "d": 01}', True),
        (b'{"a": "\xff\x01\n", "b": "\\"quoted\\"", }', True),
        (b'{a: 1, "b": [1, 2,,]}', True),
        (b'{/* a comment */ "a": 1}', False),
        (b'{"a": 1 /* a comment */}', True),
        (b'{"a": "x}, {"b": "y"}', False),
        (b'{"a": 1} {"b": 2}', False),
        (b'{"a": "x" "b"}', False),
        (b'{"a": "x', False),
        (b'{"a": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", True),
        (b'"' + b"a" * 100_000 + b'"', True),
        (b'{"a": "' + b"x, " * 5_000 + b'", "b": "c"d"}', False),
    ],
)
def test_an_element_surely_ends_where_it_seems_to(element: bytes, clear: bool) -> None:
    assert values.is_delimited(element) == clear
