"""Values of expressions in Python; `compiler` uses them, beside SQL."""

from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any

Row = Mapping[str, Any]
Evaluator = Callable[[Row], Any]
SIGNS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
PARTS: Mapping[str, Callable[[Any], int]] = {
    "year": lambda at: int(at.year),
    "month": lambda at: int(at.month),
    "day": lambda at: int(at.day),
}
# Capitals of Latin, Greek and Cyrillic with one small letter: what is beyond depends on an engine's Unicode.
_CAPITALS = [
    letter for letter in map(chr, range(0x530)) if len(letter.lower()) == 1 and letter.lower() != letter
]
SMALL = str.maketrans({letter: letter.lower() for letter in _CAPITALS})
CAPITALS = "".join(_CAPITALS)


def text_of(value: Any) -> str | None:
    """The text of a value of one of the kinds `KEYS`."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case date():
            return value.isoformat()
    return str(value)


def property_at(path: list[str]) -> Evaluator:
    """The property at a path of a column and members of structs."""
    first, *members = path

    def value(row: Row) -> Any:
        current = row[first]
        for name in members:
            if current is None:
                return None
            current = current[name]
        return current

    return value


def number(of: Evaluator) -> Evaluator:
    """A double; None for NaN, which JSON does not have."""
    return lambda row: operand if (operand := of(row)) == operand else None


def concatenated(of: list[Evaluator]) -> Evaluator:
    """The texts one after the other; None if one is None."""

    def value(row: Row) -> str | None:
        texts = [text_of(evaluate(row)) for evaluate in of]
        return None if None in texts else "".join(map(str, texts))

    return value


def small(of: Evaluator) -> Evaluator:
    """A text in lower case."""
    return lambda row: None if (operand := of(row)) is None else operand.translate(SMALL)


def first(of: list[Evaluator]) -> Evaluator:
    """The first value that is not None."""
    return lambda row: next((operand for evaluate in of if (operand := evaluate(row)) is not None), None)


def date_of(of: Evaluator) -> Evaluator:
    """The date of a date or of a timestamp, in UTC."""
    return lambda row: operand.date() if isinstance(operand := of(row), datetime) else operand


def date_part(part: Callable[[Any], int], of: Evaluator) -> Evaluator:
    """A part of a date."""
    return lambda row: None if (operand := of(row)) is None else part(operand)


def compared(sign: Callable[[Any, Any], bool], lhs: Evaluator, rhs: Evaluator) -> Evaluator:
    """Whether a comparison holds; None if a side is None."""

    def value(row: Row) -> bool | None:
        a, b = lhs(row), rhs(row)
        return None if a is None or b is None else sign(a, b)

    return value
