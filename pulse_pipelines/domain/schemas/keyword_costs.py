"""Weights: the validator's costs of the keywords of a subschema, in nanoseconds (jsonschema-rs 0.60).

Costs differ by the kind of the value. Each is that of the worst value of the kind: numbers with large
exponents, for instance, are compared exactly and digit by digit, so that any number in a schema that is not a
64-bit integer is expensive. They are generous, as an upper bound must be.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from pulse_pipelines.domain.schemas.cheap_checks import INT64
from pulse_pipelines.domain.schemas.discriminators import Union
from pulse_pipelines.domain.schemas.patterns import compiles, equivalent, patterns_in
from pulse_pipelines.domain.schemas.subschemas import Subschema, dict_of, list_of


class Weight(NamedTuple):
    """Nanoseconds of validating one value, by its kind: for the value, and for each of its own bytes.

    Members and items are separate values. A number has no part per byte: its cost depends little on its
    length.
    """

    number: float = 0.0
    string: float = 0.0
    string_byte: float = 0.0
    object: float = 0.0
    object_byte: float = 0.0
    array: float = 0.0
    array_byte: float = 0.0
    unique: float = 0.0
    """Per byte of an array's whole content, if its items are compared with each other."""

    def plus(self, other: "Weight", times: int = 1) -> "Weight":
        """The sum of this weight and `times` the other."""
        return Weight(
            self.number + times * other.number,
            self.string + times * other.string,
            self.string_byte + times * other.string_byte,
            self.object + times * other.object,
            self.object_byte + times * other.object_byte,
            self.array + times * other.array,
            self.array_byte + times * other.array_byte,
            self.unique + times * other.unique,
        )

    @property
    def visit(self) -> float:
        """The cost of a value of the most expensive kind, regardless of size."""
        return max(self.number, self.string, self.object, self.array)

    @property
    def byte(self) -> float:
        """The cost per own byte of a value of the most expensive kind."""
        return max(self.string_byte, self.object_byte, self.array_byte)

    def ratio(self, least: int) -> float:
        """The maximum cost per byte of the event, if values follow each other, each after `least` bytes.

        The shortest values are `"",`, `{},` and `[],` with 3 bytes. Numbers that cost `number` have an
        exponent, and so at least 5 bytes; shorter ones cost less.
        """
        return max(
            self.number / (5 + least),
            self.string / (3 + least) + self.string_byte,
            self.object / (3 + least) + self.object_byte,
            self.array / (3 + least) + self.array_byte,
        )


NOTHING = Weight()
BASE = Weight(100.0, 40.0, 1.0, 60.0, 8.0, 60.0, 4.0)
"""Weight of every subschema, including all keywords that are not listed below."""


def weights(node: Subschema, guards: frozenset[str]) -> dict[str, Weight]:
    """The weights of a subschema's keywords beyond `BASE`; those in `guards` are guarded."""
    by_keyword = {
        keyword: weigh(value) for keyword, value in node.items() if (weigh := _WEIGH.get(keyword)) is not None
    }
    if "enum" in guards:
        by_keyword["enum"] = Weight(number=1_000.0 + 400 * len(node["enum"]))
    if node.get("uniqueItems") is True:
        by_keyword["uniqueItems"] = Weight(array=2_000, unique=180)
    if "additionalProperties" in node or "unevaluatedProperties" in node:  # names are looked up once more
        for keyword in ("properties", "patternProperties"):
            if keyword in by_keyword:
                by_keyword[keyword] = by_keyword[keyword].plus(by_keyword[keyword])
    if "unevaluatedProperties" in node or "unevaluatedItems" in node:
        return {keyword: weight.plus(weight) for keyword, weight in by_keyword.items()}
    return by_keyword


def of_union(union: Union) -> Weight:
    """The weight of selecting a union's choice by its discriminator."""
    longest = max(len(text.encode()) for choice in union.choices for text in choice.values)
    return Weight(object=(300.0 + longest) * len(union.choices))


def _sum(parts: Iterable[Weight]) -> Weight:
    total = NOTHING
    for part in parts:
        total = total.plus(part)
    return total


def _exponent(number: float) -> float:
    return abs(math.log10(abs(number))) if number else 0.0


def _whole(number: float) -> bool:
    return isinstance(number, int) or number.is_integer()


def _equal(option: Any) -> Weight:
    """The weight of comparing a value with an option."""
    if isinstance(option, bool) or option is None:
        return Weight(number=10, string=10, object=10, array=10)
    if isinstance(option, int | float):
        return Weight(number=16_000 + 100 * _exponent(option))
    if isinstance(option, str):
        return Weight(string=20, string_byte=0.05)
    return Weight(object=_deeply(option)) if isinstance(option, dict) else Weight(array=_deeply(option))


def _deeply(option: Any) -> float:
    if isinstance(option, dict):
        return 60 + sum(40 + _deeply(member) for member in option.values())
    if isinstance(option, list):
        return 60 + sum(40 + _deeply(item) for item in option)
    if isinstance(option, bool) or not isinstance(option, int | float):
        return 20
    return 16_000 + 100 * _exponent(option)


def _enum(options: Any) -> Weight:
    choices = list_of(options)
    if len(choices) > 1 and all(option is None or isinstance(option, str) for option in choices):
        return Weight(string=100, string_byte=1)  # few are compared, by their first bytes; many are hashed
    return _sum(_equal(option) for option in choices)


def _limit(limit: Any) -> Weight:
    if isinstance(limit, bool):  # of draft 4
        return NOTHING
    if isinstance(limit, int) and limit in INT64:
        return Weight(number=800)
    return Weight(number=3_000 if _whole(limit) else 20_000)


def _multiple(divisor: Any) -> Weight:
    return Weight(number=3_500 if _whole(divisor) else 45_000 + 100 * _exponent(divisor))


def _pattern(pattern: Any) -> Weight:
    parts = [str(pattern)] if compiles(str(pattern)) else patterns_in(equivalent(str(pattern)) or [])
    return Weight(string=200.0 * len(parts), string_byte=sum(map(pattern_cost, parts)))


def _pattern_properties(patterns: Any) -> Weight:
    costs = [pattern_cost(pattern) for pattern in dict_of(patterns)]
    return Weight(object=30.0 * len(costs), object_byte=30 * len(costs) + sum(costs))


def _properties(properties: Any) -> Weight:
    return Weight(object=40, object_byte=10 + 0.5 * len(dict_of(properties)))


def _dependencies(dependencies: Any) -> Weight:
    lists = [len(list_of(names)) for names in dict_of(dependencies).values()]
    return Weight(object=25.0 * len(lists), object_byte=8.0 * max(lists, default=0))


_WEIGH: Mapping[str, Callable[[Any], Weight]] = {
    "enum": _enum,
    "const": _equal,
    "minimum": _limit,
    "maximum": _limit,
    "exclusiveMinimum": _limit,
    "exclusiveMaximum": _limit,
    "multipleOf": _multiple,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "properties": _properties,
    "required": lambda _: Weight(object=30, object_byte=20),
    "dependentRequired": _dependencies,
    "dependentSchemas": _dependencies,
    "dependencies": _dependencies,
    "contentEncoding": lambda _: Weight(string=100, string_byte=30),
    "contentMediaType": lambda _: Weight(string=100, string_byte=30),
    "unevaluatedItems": lambda _: Weight(array=100, array_byte=50),
    "propertyNames": lambda _: Weight(object=50, object_byte=30),
}


# Patterns: the engine is linear in the string, with a factor that grows with the compiled program.
_STEPS = tuple(int(1_024 * 2 ** (step / 2)) for step in range(15))
"""Steps, in bytes, to which sizes of compiled patterns are rounded up."""
_STEEP = 24_000
"""Size up to which the time per byte grows steeply with the program; beyond it, more slowly."""


@lru_cache(maxsize=4096)
def pattern_cost(pattern: str) -> float:
    """Nanoseconds per byte of matching the worst string."""
    low, high = 0, len(_STEPS) - 1
    while low < high:
        middle = (low + high) // 2
        if compiles(pattern, _STEPS[middle]):
            high = middle
        else:
            low = middle + 1
    size = _STEPS[low]
    return 20 + 0.55 * min(size, _STEEP) + 0.16 * max(0, size - _STEEP)
