"""Values of results as JSON, the same at each door: numbers keep all their digits, decimals their scale.

NaN and infinities, which JSON lacks, are null. A reader whose numbers are doubles has to parse larger ones as
decimals.
"""

import json
from base64 import b64encode
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import orjson

_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS
_BEYOND_DOUBLES = frozenset({"snapshot_id", "parent_id"})
_LONG = 18
"""Digits that a signed integer of 64 bits surely holds."""


def encoded(document: object) -> bytes:
    """A document of values, dataclasses, dates and times as JSON."""
    return orjson.dumps(document, default=plain, option=_OPTIONS)


def plain(value: Any) -> Any:
    """`default` for orjson: decimals are numbers with all their digits, bytes base64, other types text."""
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
    """What JSON says. A number that no integer of 64 bits and no double writes as it is becomes a Decimal.

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
