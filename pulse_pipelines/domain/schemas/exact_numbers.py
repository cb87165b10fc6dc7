"""Numbers of a schema that its validator would round: it compares fractions as doubles.

Integers of 64 bits are compared exactly, except that a double of 2^63 is taken for 2^63 + 1, or 2^63 - 1.
"""

from collections.abc import Iterator
from typing import Any

from pulse_pipelines.domain.json_values import Number
from pulse_pipelines.domain.schemas.subschemas import subschemas
from pulse_resources.errors import UserError

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
OPTIONS = ("const", "enum")
_EDGE = 2.0**63


def check_numbers(document: Any) -> None:
    """Refuse a schema, decoded by `json_values.exact`, with a bound or option that validators would round.

    Raises:
        UserError: the first of these numbers, and its place.
    """
    for pointer, node in subschemas(document):
        for keyword in (*BOUNDS, *OPTIONS):
            for value in _numbers(node.get(keyword)):
                if _is_rounded(value) or (keyword in BOUNDS and _is_at_edge(value)):
                    text = value.text if isinstance(value, Number) else value
                    raise UserError(
                        f"{text} at #{pointer}/{keyword} would be compared as {float(value)!r}",
                        fix="Write an integer of 64 bits without a fraction, or up to 15 digits",
                    )


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for member in value.values() if isinstance(value, dict) else value:
            yield from _numbers(member)
    elif isinstance(value, float | int) and not isinstance(value, bool):
        yield value


def _is_rounded(value: float) -> bool:
    if isinstance(value, int):
        return not -(2**63) <= value < 2**64 and float(value) != value
    return isinstance(value, Number) and not value.is_exact


def _is_at_edge(value: float) -> bool:
    return isinstance(value, float) and abs(value) == _EDGE
