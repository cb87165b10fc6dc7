"""Words of errors: text of others, fit for a log, and the values that JSON cannot hold."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta, timezone
from math import isfinite
from typing import Any
from uuid import UUID

MAX_TEXT = 500
"""Characters of a text of the server, or of a library, in an error."""
_MOST_DIGITS = 4_300
"""Digits of an integer that Python writes as text; so it is by default."""
_MOST_BITS = 14_284
"""Bits of the largest integers with so many digits."""
_NONE, _MINUTE = timedelta(0), timedelta(minutes=1)
_WRITTEN = (str, int, float, type(None), date, UUID)
"""Types of values of an event, beside mappings and lists."""


def clean(text: object, most: int = MAX_TEXT) -> str:
    """Text of others, cut, and without characters that control a terminal or begin a line of a log."""
    words = str(text)
    cut = words if len(words) <= most else words[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cut)


def optional(text: object) -> str | None:
    """A text that the server need not give, cleaned."""
    return None if text is None else clean(text)


def time_text(value: date) -> str:
    """RFC 3339, in which an offset has no seconds, as those of local times before about 1930 have.

    Raises:
        ValueError: it is none: pandas' NaT, or outside the years 1 to 9999 in UTC, which such an offset needs.
    """
    if value != value:
        raise ValueError(f"{value} is not a time")
    if isinstance(value, datetime) and (value.utcoffset() or _NONE) % _MINUTE:
        try:
            value = value.astimezone(timezone.utc)
        except OverflowError:
            raise ValueError(f"{value} is outside the years 1 to 9999 in UTC") from None
    return value.isoformat()


def unwritable(document: Any) -> tuple[str, str] | None:
    """The first value that an event cannot hold: its JSON pointer, and what it is; None: there is none.

    Args:
        document: without cycles.
    """
    pending: list[tuple[str, Any]] = [("", document)]
    while pending:
        pointer, value = pending.pop()
        if isinstance(value, str) and (at := _half(value)) is not None:
            return pointer, f"character {at} of the text is half of a surrogate pair, not a character"
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            return pointer, f"the integer has more than {_MOST_DIGITS:,} digits"
        if isinstance(value, float) and not isfinite(value):
            return pointer, f"{value} is not a number of JSON"
        if isinstance(value, date):
            try:
                time_text(value)
            except ValueError as error:
                return pointer, str(error)
        if isinstance(value, Mapping):
            for name in value:
                if not isinstance(name, (str, int, float, type(None))):
                    return pointer, f"the name of a member is a text, not {type(name).__name__}"
                if isinstance(name, float) and not isfinite(name):
                    return pointer, f"{name} is not a number of JSON, and so not the name of a member"
                if isinstance(name, str) and _half(name) is not None:
                    return pointer, "the name of a member has half of a surrogate pair, not a character"
            items = [(f"{pointer}/{_escaped(name)}", item) for name, item in value.items()]
            pending.extend(reversed(items))
        elif isinstance(value, (list, tuple)):
            pending.extend(reversed([(f"{pointer}/{number}", item) for number, item in enumerate(value)]))
        elif not isinstance(value, _WRITTEN):
            return pointer, f"{type(value).__name__} is not a value of JSON: make it a text or a number"
    return None


def _half(text: str) -> int | None:
    """Position of a lone surrogate, from 1."""
    return next((at for at, c in enumerate(text, start=1) if "\ud800" <= c <= "\udfff"), None)


def _escaped(name: object) -> str:
    return str(name).replace("~", "~0").replace("/", "~1")
