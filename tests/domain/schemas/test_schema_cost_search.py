"""An adversary against the cost model: random schemas and events, and a climber that makes the worst worse.

Measured is the CPU time of the validator against the model's bound for the very event, in units of this
machine: a check of known cost is measured beside it. The model may be beaten by a factor, never by far.
"""

import copy
import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, strategies as st
from support.examples import times

from pulse_pipelines.domain.schemas.cost import Bound, check_cost, cost
from pulse_pipelines.domain.schemas.safety import check_bounds
from pulse_pipelines.domain.schemas.schema import validator
from pulse_pipelines.domain.schemas.violations import violation
from pulse_resources.errors import UserError

Schema = dict[str, Any]
FACTOR = 3.0
"""By which the model may be beaten: machines differ in what they are fast at."""
FLOOR_S = 0.002
"""Below this nobody is held up, and clocks are coarse."""
MAX_BYTES = 30_000
"""Of an event that is tried."""

NUMBERS = (
    0,
    1,
    -7,
    2**53 + 1,
    10**18,
    0.5,
    0.1,
    123456.789,
    1e22,
    1e300,
    1e-5,
    1e-30,
    1e-300,
    5e-324,
    1.2e-300,
)
KINDS = ("k0", "k1", "k2", "k3")
STRINGS = (*KINDS, "", "a", "ab" * 30, "n1", "é" * 9, "abaabbbab" * 50, "2026-01-01", "x@y.z", " ")
PATTERNS = (
    "^a+$", "(a|b)*a(a|b){9}c", "[ab]*a[ab]{60}c", r"\w{1,20}$", "^[a-z]{2}$", "(a+)+c", r"(\w\s?){5}x",
    r"^[^@\s]+@[^@\s]+\.[^@\s]+$", "(?:[ab]{1,20}[ab]{1,20})*c",
)  # fmt: skip
NO_PERIOD = "".join(random.Random(1).choices("ab", k=20_000))  # noqa: S311
PIECES = (
    5e-324,
    1.2e-300,
    0,
    "",
    NO_PERIOD,
    {},
    {"n1": 1e-300},
    {"a": "k1", "b": 1e-300, "n1": [1e-300] * 3},
    [],
    [n * 5e-324 for n in range(1, 16)],
)
NAMES = ("a", "b", "n1", "n2", "ab" * 20)


def some(draw: random.Random, options: Any) -> Any:
    return draw.choice(options)


def value(draw: random.Random, depth: int = 0) -> Any:
    """A small value."""
    kind = draw.random()
    if depth > 3 or kind < 0.4:
        return some(draw, NUMBERS)
    if kind < 0.6:
        return some(draw, STRINGS)
    if kind < 0.65:
        return some(draw, (None, True, False))
    size = some(draw, (0, 1, 2, 3, 15, 16))
    if kind < 0.85:
        return [value(draw, depth + 1) for _ in range(size)]
    return {some(draw, NAMES): value(draw, depth + 1) for _ in range(size)}


def fragment(draw: random.Random, depth: int = 0) -> Schema:
    """A small schema of any keywords."""
    schema: Schema = {}
    for _ in range(draw.randrange(1, 4)):
        keyword = some(draw, tuple(KEYWORDS))
        schema[keyword] = KEYWORDS[keyword](draw, depth + 1)
    return schema


def inner(draw: random.Random, depth: int) -> Any:
    return some(draw, (True, {"type": "integer"})) if depth > 3 else fragment(draw, depth)


def several(draw: random.Random, depth: int) -> list[Any]:
    return [inner(draw, depth) for _ in range(draw.randrange(1, 4))]


def choices(draw: random.Random, depth: int) -> list[Any]:
    """Choices, often told apart by a member."""
    if depth > 3 or draw.random() < 0.5:
        return several(draw, depth)
    return [
        {
            "type": "object",
            "required": ["a"],
            "properties": named(draw, depth) | {"a": {"const": kind}},
            **fragment(draw, depth),
        }
        for kind in draw.sample(KINDS, draw.randrange(2, 4))
    ]


def named(draw: random.Random, depth: int) -> dict[str, Any]:
    return {name: inner(draw, depth) for name in draw.sample(NAMES, draw.randrange(1, 4))}


Make = Callable[[random.Random, int], Any]
KEYWORDS: dict[str, Make] = {
    "enum": lambda draw, _: [value(draw, 2) for _ in range(some(draw, (1, 2, 5, 12, 40)))],
    "const": lambda draw, _: value(draw, 1),
    "type": lambda draw, _: some(
        draw, ("integer", "number", "string", "array", "object", ["integer", "null"])
    ),
    "minimum": lambda draw, _: some(draw, NUMBERS),
    "exclusiveMaximum": lambda draw, _: some(draw, NUMBERS),
    "multipleOf": lambda draw, _: abs(some(draw, NUMBERS)) or 1,
    "maxLength": lambda draw, _: draw.randrange(50),
    "pattern": lambda draw, _: some(draw, PATTERNS),
    "patternProperties": lambda draw, depth: {some(draw, PATTERNS): inner(draw, depth)},
    "properties": named,
    "additionalProperties": inner,
    "propertyNames": inner,
    "required": lambda draw, _: draw.sample(NAMES, 2),
    "dependentRequired": lambda draw, _: {name: draw.sample(NAMES, 3) for name in NAMES},
    "dependentSchemas": named,
    "items": inner,
    "prefixItems": several,
    "contains": inner,
    "minContains": lambda draw, _: draw.randrange(3),
    "uniqueItems": lambda draw, _: True,
    "unevaluatedItems": inner,
    "unevaluatedProperties": inner,
    "anyOf": choices,
    "oneOf": choices,
    "allOf": several,
    "not": inner,
    "if": inner,
    "then": inner,
    "else": inner,
}


class Pair:
    """A schema and an event, and how far the event's judging is beyond what the model allows."""

    def __init__(self, schema: Schema, data: dict[str, Any]) -> None:
        self.schema, self.data = schema, data
        self.size = len(json.dumps({"data": data}, separators=(",", ":"), ensure_ascii=False).encode())
        self.bound = cost(schema, MAX_BYTES).seconds(self.size)
        self.taken = measured(schema, data)

    @property
    def beyond(self) -> float:
        return self.taken / (self.bound + FLOOR_S)


def measured(schema: Schema, data: dict[str, Any]) -> float:
    """CPU seconds of a verdict, and of its place."""
    check, text = validator(schema), json.dumps(schema)
    violation(text, {})  # compiled

    def judge() -> None:
        if not check.is_valid(data):
            violation(text, data)

    once = timed(judge)
    return once if once < FLOOR_S else min(once, timed(judge))


def timed(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def pace() -> float:
    """How much slower this machine is now than the one that the model was measured on."""
    check = validator({"type": "object", "properties": {"a": {"items": {"not": {"const": 0.5}}}}})
    return max(1.0, min(timed(lambda: check.is_valid({"a": [1e-300] * 500})) for _ in range(3)) / 0.0068)


def usable(schema: Schema) -> bool:
    try:
        check_bounds(schema)
        validator(schema)
        check_cost(schema, Bound())
    except (UserError, ValueError):
        return False
    return True


def repeated(draw: random.Random, content: Any) -> dict[str, Any]:
    """An event that is full of a value: as items, as members, or one below the other."""
    piece = len(json.dumps(content)) + 8
    count = max(1, MAX_BYTES // some(draw, (1, 1, 4, 40)) // piece)
    way = draw.randrange(3)
    if way == 0:
        return {"a": [content] * count}
    if way == 1:
        return {"a": {f"n{n}": content for n in range(count)}}
    return {"a": [[content] * 15] * max(1, count // 15)}


def seeds(draw: random.Random) -> Iterator[Pair]:
    while True:
        within = fragment(draw)
        schema = {"type": "object", "properties": {"a": some(draw, ({"items": within}, within))}}
        if draw.random() < 0.2:
            schema["properties"]["a"] = {"items": within, "additionalProperties": within}
        if usable(schema):
            yield Pair(schema, repeated(draw, value(draw, 2)))


def changed(draw: random.Random, pair: Pair) -> Pair | None:
    """The pair with another event, or with one more keyword somewhere."""
    if draw.random() < 0.6:
        return Pair(pair.schema, repeated(draw, value(draw, 1)))
    schema = copy.deepcopy(pair.schema)
    node = schema["properties"]["a"]
    while isinstance(node.get("items"), dict) and draw.random() < 0.8:
        node = node["items"]
    keyword = some(draw, tuple(KEYWORDS))
    node[keyword] = KEYWORDS[keyword](draw, 2)
    return Pair(schema, pair.data) if usable(schema) else None


def sweep(draw: random.Random, times: int) -> Iterator[Pair]:
    """Every keyword alone, as a condition of items, with pieces that are dear to some."""
    for _ in range(times):
        for keyword, make in KEYWORDS.items():
            within = {keyword: make(draw, 3)}
            for piece in (*PIECES, value(draw, 1)):
                schema = {
                    "type": "object",
                    "properties": {"a": {"items": some(draw, (within, {"not": within}))}},
                }
                if usable(schema):
                    yield Pair(schema, {"a": [piece] * max(1, MAX_BYTES // 4 // len(json.dumps(piece)))})


def matched() -> Iterator[Pair]:
    """Every pattern, with a string that does not let the engine learn."""
    for pattern in PATTERNS:
        schema = {"type": "object", "properties": {"a": {"items": {"not": {"pattern": pattern}}}}}
        yield Pair(schema, {"a": [NO_PERIOD]})


def climb(draw: random.Random, times: int, seconds: float) -> Pair:
    """The worst pair of a sweep, made worse step by step for so many seconds of CPU time."""
    summits = sorted([*matched(), *sweep(draw, times)], key=lambda pair: pair.beyond, reverse=True)[:20]
    best, until = summits[0], time.process_time() + seconds
    for start in summits:
        worst, idle = start, 0
        while time.process_time() < until and idle < 25:
            step = changed(draw, worst)
            worst, idle = (step, 0) if step is not None and step.beyond > worst.beyond else (worst, idle + 1)
        best = max(best, worst, key=lambda pair: pair.beyond)
    return best


def check(pair: Pair) -> None:
    if pair.beyond <= FACTOR:
        return
    again = Pair(pair.schema, pair.data)  # whoever disturbed the first measurement is gone
    assert again.beyond <= FACTOR * pace(), (
        f"{again.taken:.4f} s, the model allows {again.bound:.4f} s: {json.dumps(again.schema)[:1500]} "
        f"with {json.dumps(again.data)[:200]}"
    )


@times(1.2, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_random_schemas_do_not_beat_the_model(draw: random.Random) -> None:
    check(next(seeds(draw)))


@pytest.mark.slow
def test_a_climber_does_not_beat_the_model() -> None:
    check(climb(random.Random(15), 2, 3))  # noqa: S311


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_climber_with_more_time_does_not_beat_the_model(seed: int) -> None:
    check(climb(random.Random(seed), 20, 60))  # noqa: S311
