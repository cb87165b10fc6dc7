"""Splitting an array of which one element is not JSON: the others are as they were, or nothing is taken."""

import json
from itertools import product

import orjson
import pytest

from pulse_api.http.collect import values
from pulse_api.http.collect.split import split
from pulse_api.http.problems import ProblemError

EVENTS = [json.dumps({"event_id": f"e{number}", "data": {"a": ["x", {"b": number}]}}) for number in range(5)]
MARKS = '"{}[],:\\ a1'


def items(elements: list[str]) -> list[bytes] | None:
    """Payloads of the events of an array, without spaces if they are JSON; None if it is refused."""
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
    return [compact(event.payload) for event in events]


def compact(payload: bytes) -> bytes:
    try:
        return orjson.dumps(orjson.loads(payload))
    except orjson.JSONDecodeError:
        return payload


WHOLE = items(EVENTS)


def test_a_mark_more_or_less_changes_no_other_event() -> None:
    """At each place of an element."""
    assert WHOLE is not None
    for at, mark, removed in product(range(len(EVENTS[2])), ("", *MARKS), (0, 1)):
        odd = EVENTS[2][:at] + mark + EVENTS[2][at + removed :]
        payloads = items([*EVENTS[:2], odd, *EVENTS[3:]])
        if payloads is not None:
            assert payloads[:2] + payloads[3:] == WHOLE[:2] + WHOLE[3:], odd


def test_quotes_that_are_missing_twice_swallow_no_event() -> None:
    """Between them, what is a string and what is not is exchanged."""
    places = [at for at, character in enumerate(EVENTS[1]) if character == '"']
    for first, second in product(places, places):
        odd = EVENTS[1][:first] + EVENTS[1][first + 1 :]
        other = EVENTS[3][:second] + EVENTS[3][second + 1 :]
        payloads = items([EVENTS[0], odd, EVENTS[2], other, EVENTS[4]])
        assert payloads is None or len(payloads) == len(EVENTS), (odd, other)


@pytest.mark.parametrize(
    ("element", "clear"),
    [
        (b'{"a": NaN, "b": -Infinity, "c": 1e400, "d": 01}', True),
        (b'{"a": "\xff\x01\n", "b": "\\"quoted\\"", }', True),
        (b'{a: 1, "b": [1, 2,,]}', True),
        (b'{/* a comment */ "a": 1}', False),
        (b'{{"a": 1}, "b": 2}', False),
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
def test_the_end_of_an_element_is_certain_or_not(element: bytes, clear: bool) -> None:
    assert values.is_delimited(element) == clear
