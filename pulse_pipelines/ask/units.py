"""Units of numbers: their names, and numbers in another unit."""

from decimal import Decimal
from fractions import Fraction

_TIMES = {"ms": 1, "second": 1_000, "sec": 1_000, "minute": 60_000, "min": 60_000}
MILLISECONDS = _TIMES | {"hour": 3_600_000, "day": 86_400_000}
"""Units that are converted: how many milliseconds one has."""
CURRENCIES = {"€": "eur", "$": "usd", "£": "gbp"}
"""Signs of a unit, which may stand before the number, too. "Pounds" may be a weight."""
SAME_UNIT = CURRENCIES | {
    "%": "percent",
    "°": "degree",
    "°c": "celsius",
    "°f": "fahrenheit",
    "dollar": "usd",
    "euro": "eur",
    "kilogram": "kg",
    "kilometer": "km",
    "kilometre": "km",
    "metre": "meter",
    "millisecond": "ms",
}
MAX_DIGITS = 20
"""Longest number: beyond it a number is not what it was."""


def in_unit(number: int | Decimal, factor: int | Fraction) -> int | Decimal:
    """A number in another unit, computed exactly: 8.2 hours are 492 minutes, and not slightly fewer."""
    converted = Fraction(number) * factor
    if factor == 1:
        return number
    if converted.denominator == 1:
        return int(converted)
    exact = Decimal(converted.numerator) / converted.denominator
    return exact if len(exact.as_tuple().digits) <= MAX_DIGITS else Decimal(repr(float(converted)))
