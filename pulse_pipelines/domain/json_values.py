"""Values of results as JSON, the same at each door: numbers keep all their digits, decimals their scale.

NaN and infinities, which JSON lacks, are null. A reader whose numbers are doubles has to parse larger ones as
decimals.
"""

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import orjson

_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS
_BEYOND_DOUBLES = frozenset({"snapshot_id", "parent_id"})
_LONG = 18
"""Digits that a signed integer of 64 bits surely holds."""
_END = r"(?:[\s,}\]]|$)"
UNUSUAL = rf"[0-9.]{{16}}|[0-9][eE][+-]?[0-9]+{_END}|\.[0-9]+0{_END}"
"""What JSON has if a double would not write one of its numbers so: many digits, an exponent, a final zero."""
_TINY = 1e-290
"""Below it, doubles have fewer than 16 digits."""
_UNUSUAL = re.compile(UNUSUAL, re.ASCII)
_LONG_REAL = re.compile(rb'(?<![\w.+"-])-?(?=[0-9.]{16})\d+(?:\.\d+(?:[eE][+-]?\d+)?|[eE][+-]?\d+)', re.ASCII)
_MANY = b"0" * 16
_DIGITS = bytes(0x30 if chr(byte) in "0123456789." else 0x20 for byte in range(256))
_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?", re.ASCII)


class Number(float):
    """A number of JSON with its original text, where a double would be written otherwise."""

    __slots__ = ("text",)
    text: str

    @property
    def canonical(self) -> str:
        """Its value: equal for all texts of a number."""
        return _value(self.text)

    @property
    def is_exact(self) -> bool:
        """Whether a double holds its value, by the shortest text of it, or its value is below 1e-290."""
        return abs(self) < _TINY or self.canonical == _value(repr(float(self)))


def _value(text: str) -> str:
    match = _NUMBER.fullmatch(text)
    if match is None or len(match[4] or "") > _LONG:
        return text
    sign, whole, fraction, exponent = match.groups(default="")
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    power = int(exponent or 0) - len(fraction) + len(digits) - len(significant)
    return f"{sign}{significant}e{power}" if significant else "0"


def exact(content: bytes | str) -> Any:
    """Decoded JSON; each number that a double would write otherwise is a `Number`.

    Integers are as long as they are written. The decoder recurses: what is nested deeply is not for it.
    """
    return _decoder.decode(content if isinstance(content, str) else content.decode())


def stored(text: str) -> Any:
    """Decoded JSON text of a table, as `exact`."""
    return exact(text) if _UNUSUAL.search(text) else orjson.loads(text)


def written(value: object) -> bytes:
    """A value of `exact` as JSON."""
    return orjson.dumps(value, default=plain)


def rounded(text: str) -> float:
    """A number with a fraction or an exponent: a `Number` where no double holds it, else the double."""
    number = _real_of(text)
    return float(number) if number.is_exact or not _NUMBER.fullmatch(text) else number


def _real_of(text: str) -> Number:
    number = Number(text)
    number.text = text
    return number


def rounds(content: bytes) -> bool:
    """Whether JSON text may have a fraction or an exponent that is not `is_exact`; never False if it has."""
    if _MANY not in content.translate(_DIGITS):  # much faster
        return False
    return any(not _real_of(text.decode()).is_exact for text in _LONG_REAL.findall(content))


def _exact_real(text: str) -> float:
    number = float(text)
    if orjson.dumps(number) == text.encode():
        return number
    return _real_of(text)


_decoder = json.JSONDecoder(parse_float=_exact_real)


def encoded(document: object) -> bytes:
    """A document of values, dataclasses, dates and times as JSON."""
    return orjson.dumps(document, default=plain, option=_OPTIONS)


def plain(value: Any) -> Any:
    """`default` for orjson: decimals are numbers with all their digits, bytes base64, other types text."""
    if isinstance(value, Number):
        return orjson.Fragment(value.text)
    if isinstance(value, Decimal):
        return orjson.Fragment(digits(value)) if value.is_finite() else None
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return str(value)


def digits(value: Decimal) -> str:
    """All digits of a finite decimal, without an exponent."""
    return f"{value:f}"


def with_text_ids(members: Mapping[str, Any]) -> dict[str, Any]:
    """A document's members, with ids of snapshots as text: they are beyond 2^53, and no doubles."""
    return {
        name: _as_text(value)
        if name in _BEYOND_DOUBLES or (name == "snapshots" and isinstance(value, Mapping))
        else value
        for name, value in members.items()
    }


def _as_text(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_text(number) for name, number in value.items()}
    return str(value) if isinstance(value, int) else value


def decoded(content: bytes, *, by_digits: bool = True) -> Any:
    """Decoded JSON. A number that neither a 64-bit integer nor a double writes as it is becomes a Decimal.

    Args:
        by_digits: look at every number's digits; without it the numbers must be such integers and doubles.
    """
    if not by_digits:
        return orjson.loads(content)
    return json.loads(content, parse_float=_real, parse_int=_whole)


def _real(text: str) -> float | Decimal:
    number = float(text)
    return number if orjson.dumps(number) == text.encode() else Decimal(text)


def _whole(text: str) -> int | Decimal:
    return int(text) if len(text) <= _LONG or -(2**63) <= int(text) < 2**64 else Decimal(text)
