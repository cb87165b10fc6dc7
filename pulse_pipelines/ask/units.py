"""Units of numbers: their names, and numbers in another unit."""

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


def in_unit(number: int | float, factor: int | Fraction) -> int | float:
    """A number in another unit, computed exactly: 8.2 hours are 492 minutes, and not slightly fewer."""
    converted = Fraction(str(number)) * factor
    return number if factor == 1 else int(converted) if converted.denominator == 1 else float(converted)
