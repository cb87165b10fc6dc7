"""The cost model of validation: an upper bound on an event's CPU time, by its schema and size alone.

Time is spent per value and per byte. A named member occurs at most once in its object, so its cost is paid
once per event; the cost of items and other members may be paid for every few bytes. The bound therefore has a
part per event, a part per byte, and a part that grows with the square where items are compared with each
other.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

import orjson

from pulse_pipelines.domain.schemas.applications import MAX_LEVELS, Looks, Place, Way
from pulse_pipelines.domain.schemas.bundle import bundled
from pulse_pipelines.domain.schemas.cheap_checks import guards
from pulse_pipelines.domain.schemas.keyword_costs import BASE, NOTHING, Weight, of_union, weights
from pulse_pipelines.domain.schemas.subschemas import Subschema, subschemas
from pulse_resources.errors import UserError

ORDINARY_BYTES = 8_192
MESSAGE_BYTE_NS = 200.0
"""Nanoseconds per byte of an invalid value, which is written into the error message."""
NAMED = 3
"""Keywords that a refusal tries to leave out, the heaviest first."""


@dataclass(frozen=True)
class Bound:
    """The maximum cost of the largest event."""

    max_bytes: int = 262_144
    seconds: float = 10.0


@dataclass(frozen=True)
class Cost:
    """The upper bound on the nanoseconds of validating an event."""

    event: float
    byte: float
    """Nanoseconds for each byte of the event."""

    def seconds(self, size: int) -> float:
        """The bound in seconds for an event of `size` bytes."""
        return (self.event + self.byte * size) / 1e9

    def largest(self, seconds: float) -> int:
        """Size in bytes of the largest event within this time."""
        return max(0, int((seconds * 1e9 - self.event) / self.byte))


@lru_cache(maxsize=1024)
def cost_of(document: str) -> Cost:
    """The cost of a published document, tight for ordinary events; cached, since documents are immutable."""
    return cost(orjson.loads(document), ORDINARY_BYTES)


def cost(document: Mapping[str, Any], max_bytes: int) -> Cost:
    """The bound for a document that `safety.check_bounds` accepts, tight for events of `max_bytes`."""
    bundle = bundled(document)
    return _Costs(bundle, Looks(bundle), max_bytes).whole()


def check_cost(document: Mapping[str, Any], bound: Bound) -> None:
    """Refuse a schema by which validating the largest event could take too long.

    Raises:
        UserError: the schema is too expensive; names the most expensive keyword.
    """
    bundle = bundled(document)
    looks = Looks(bundle)
    costs = _Costs(bundle, looks, bound.max_bytes)
    seconds = costs.whole().seconds(bound.max_bytes)
    if seconds <= bound.seconds:
        return
    pointers = {id(node): pointer for pointer, node in subschemas(bundle)}
    heaviest = sorted(costs.keywords(), key=lambda entry: _heaviness(entry[2]), reverse=True)[:NAMED]
    trials = []
    for key, keyword, _ in heaviest:
        without = _Costs(bundle, looks, bound.max_bytes, (key, keyword)).whole()
        trials.append((without.seconds(bound.max_bytes), key, keyword))
    remaining, key, keyword = min(trials, key=itemgetter(0), default=(seconds, id(bundle), "properties"))
    where = f"#{pointers.get(key, '')}/{keyword}"
    raise UserError(
        f"validating an event of {bound.max_bytes:,} bytes by this schema could take {_text(seconds)}, the "
        f"limit is {_text(bound.seconds)}: {where} costs most (without it {_text(remaining)})",
        fix=_FIXES.get(keyword, "Use fewer subschemas for one value, and fewer for items and any members"),
    )


_FIXES = {
    "enum": "List fewer numbers, objects or arrays (strings may be many), give a range of integers by "
    "minimum and maximum, or move the keyword out of items",
    "const": "Compare with a string or an integer, or move the keyword out of items",
    "multipleOf": "Use a whole number, such as of cents, or move the keyword out of items",
    "pattern": "Make it shorter: fewer alternatives, smaller counts in {}, [0-9A-Za-z_] for \\w",
    "patternProperties": "Use fewer patterns and shorter ones: smaller counts in {}, [0-9A-Za-z_] for \\w",
    "uniqueItems": "Ask for unique items on fewer levels",
    **dict.fromkeys(("dependentRequired", "dependencies"), "Name fewer members, or use required"),
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        "Use whole numbers as limits, or move the keyword out of items",
    ),
}


def _text(seconds: float) -> str:
    return f"{seconds:,.1f} s"


def _heaviness(weight: Weight) -> float:
    return max(weight.ratio(0), weight.unique)


class _Costs:
    """The cost model of one document.

    Args:
        without: a subschema and a keyword of it to leave out.
    """

    def __init__(
        self, document: Subschema, looks: Looks, max_bytes: int, without: tuple[int, str] | None = None
    ) -> None:
        self._document, self._looks, self._bytes, self._without = document, looks, max_bytes, without
        by_node = {key: self._cost_of_node(key) for key in looks.nodes}
        ways = [way for of_node in looks.ways.values() for way in of_node]
        self._of_ways = {
            id(way): _total((by_node[inner], times) for inner, times in way.closure.items()) for way in ways
        }
        self._weights = {
            key: _most(self._of_ways[id(way)] for way in of_node) for key, of_node in looks.ways.items()
        }
        self._totals = {
            id(place): _total((self._weights[child], times) for child, times in place.looks.items())
            for way in ways
            for place in way.places
        }
        self._unique = {key: weight.unique for key, weight in self._weights.items()}
        self._many = dict.fromkeys(looks.ways, 0.0)
        self._descend()
        self._once: dict[int, tuple[float, float]] = {}

    def keywords(self) -> Iterable[tuple[int, str, Weight]]:
        """Every keyword of every subschema that applies to some value, with its cost."""
        for key in self._looks.nodes:
            for keyword, weight in self._of_keywords(key).items():
                yield key, keyword, weight

    def whole(self) -> Cost:
        """The bound for a whole event."""
        root = id(self._document)
        event, byte = self._one(root, ())
        weight = self._weights[root]
        return Cost(event + weight.visit, max(byte, weight.byte) + self._unique[root] + MESSAGE_BYTE_NS)

    def _cost_of_node(self, key: int) -> Weight:
        by_keyword = self._of_keywords(key)
        if self._without is not None and self._without[0] == key:
            by_keyword.pop(self._without[1], None)
        return _total([(BASE, 1), *((weight, 1) for weight in by_keyword.values())])

    def _of_keywords(self, key: int) -> dict[str, Weight]:
        node = self._looks.nodes[key]
        by_keyword = weights(node, guards(node, self._document))
        if (union := self._looks.unions.get(key)) is not None:
            by_keyword[union.keyword] = of_union(union)
        return by_keyword

    def _descend(self) -> None:
        """Compute, below each subschema, the maximum cost per byte, and of comparing items."""
        for _ in range(MAX_LEVELS):  # one more level of the event each time, up to a fixed point
            before = (dict(self._many), dict(self._unique))
            for key, ways in self._looks.ways.items():
                for place in (place for way in ways for place in way.places):
                    looks = place.looks.items()
                    self._many[key] = max(self._many[key], self._ratio(place))
                    below = sum(before[1][child] * times for child, times in looks)
                    self._unique[key] = max(self._unique[key], self._weights[key].unique + below)
            if before == (self._many, self._unique):
                break

    def _ratio(self, place: Place) -> float:
        """The maximum cost per byte of the values at a place, and below them."""
        below = sum(self._many[child] * times for child, times in place.looks.items())
        return max(self._totals[id(place)].ratio(place.least), below)

    def _one(self, key: int, path: tuple[int, ...]) -> tuple[float, float]:
        """Below one value of a subschema: the cost paid once, and the maximum per byte."""
        if (cached := self._once.get(key)) is not None:
            return cached
        by_way = [self._one_way(way, (*path, key)) for way in self._looks.ways[key]]
        self._once[key] = (max(once for once, _ in by_way), max(byte for _, byte in by_way))
        return self._once[key]

    def _one_way(self, way: Way, path: tuple[int, ...]) -> tuple[float, float]:
        byte, choices = 0.0, []
        for place in way.places:
            total, often = self._totals[id(place)], self._ratio(place)
            if not place.once or not place.looks or len(path) > MAX_PATH or path[-1] in path[:-1]:
                byte = max(byte, often)
                continue
            once, rate = total.visit, 0.0
            for child, times in place.looks.items():
                inner, inner_rate = self._one(child, path)
                once, rate = once + times * inner, rate + times * inner_rate
            choices.append((often, once, max(rate, total.byte)))
        return self._cheapest(byte, choices)

    def _cheapest(self, byte: float, choices: list[tuple[float, float, float]]) -> tuple[float, float]:
        """Choose which places count as paid once and which per byte: any choice is an upper bound."""
        choices.sort(key=lambda choice: choice[0] - choice[2])
        rates = [byte]
        for often, _, _ in choices:  # the first so many are paid per byte ...
            rates.append(max(rates[-1], often))
        once, rate = 0.0, 0.0
        best = (0.0, rates[-1])
        for index in range(len(choices) - 1, -1, -1):  # ... and the others once
            once, rate = once + choices[index][1], max(rate, choices[index][2])
            candidate = (once, max(rate, rates[index]))
            if candidate[0] + candidate[1] * self._bytes < best[0] + best[1] * self._bytes:
                best = candidate
        return best


MAX_PATH = 64
"""Maximum nesting of named members whose cost counts once; deeper ones count per byte."""


def _most(weights: Iterable[Weight]) -> Weight:
    """The component-wise maximum."""
    return Weight(*map(max, zip(*weights, strict=True)))


def _total(parts: Iterable[tuple[Weight, int]]) -> Weight:
    total = NOTHING
    for weight, times in parts:
        total = weight if total is NOTHING and times == 1 else total.plus(weight, times)
    return total
