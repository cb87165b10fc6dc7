"""Values of entities as Postgres reads them, by the column that they are written to."""

import base64
import binascii
import re
from decimal import Decimal
from typing import Any

from pulse_pipelines.domain import json_values

ARRAY = "array"
_JSON = ("json", "jsonb")
_INTEGERS = ("int2", "int4", "int8")
_TIMES = ("date", "time", "timetz", "timestamp", "timestamptz")
_RANGES = ("daterange", "tsrange", "tstzrange", "datemultirange", "tsmultirange", "tstzmultirange")
_WORD = re.compile(r"\b(?:now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_OF_DAY = re.compile(r"(\d\d?:\d\d(?::\d\d(?:\.\d*)?)?)\s*(.*)", re.DOTALL)
_MIDNIGHT = re.compile(r"00:00(?::00(?:\.0*)?)?")
_UTC = re.compile(r"|(?:[AP]M\s*)?(?:Z|UTC|[+-]00(?::?00)?)?(?:\s*(?:BC|AD))?", re.IGNORECASE)
_MOST_BYTES = {"name": 63, "char": 1}
_OCTAL = re.compile(r"\\[0-3][0-7]{2}")
"""A byte of `"char"` beyond ASCII, as Postgres writes it."""
_ESCAPED = str.maketrans({'"': '\\"', "\\": "\\\\"})


def text(value: Any, kind: str) -> str | None:
    """A value as text for a column.

    Args:
        kind: name of the column's type; of arrays `array`, and after a space that of their elements.

    Raises:
        ValueError: no column of this type can hold it.
    """
    if value is None:
        return None
    if kind in _JSON:
        encoded = json_values.written(value).decode()
        if "\\u0000" in encoded and kind == "jsonb":
            raise ValueError("a text of Postgres has no NUL")
        return encoded
    if kind.startswith(ARRAY) and isinstance(value, list):
        return _array(value, kind.removeprefix(f"{ARRAY} "))
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("a text of Postgres has no NUL")
        _check(value, kind)
        return _bytes(value) if kind == "bytea" else value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json_values.written(value).decode()
    number = value.text if isinstance(value, json_values.Number) else repr(value)
    is_whole = kind in _INTEGERS and isinstance(value, float) and value.is_integer()
    return _whole(number) if is_whole else number


def _whole(number: str) -> str:
    """A number without its fraction, if that is zero."""
    decimal = Decimal(number)
    return f"{decimal:.0f}" if decimal == decimal.to_integral_value() else number


def _check(value: str, kind: str) -> None:
    """Raise ValueError if a column of a type takes the text, and has a part of it, or another value."""
    if kind in _TIMES + _RANGES and _WORD.search(value):
        raise ValueError("Postgres would take a word such as now for the moment at which it is written")
    if kind in ("date", "time", "timestamp") and (match := _OF_DAY.search(value)):
        if not _UTC.fullmatch(match[2].strip()):
            raise ValueError("the column has no zone: Postgres would leave out that of the value")
        if kind == "date" and not _MIDNIGHT.fullmatch(match[1]):
            raise ValueError("a date has no time of day")
    if kind in _MOST_BYTES and len(value.encode()) > _MOST_BYTES[kind] and not _OCTAL.fullmatch(value):
        raise ValueError(f"{_MOST_BYTES[kind]} bytes are all that the column keeps of a text")


def _bytes(value: str) -> str:
    """Base64, as pipes bring it."""
    try:
        return "\\x" + base64.b64decode(value, validate=True).hex()
    except binascii.Error:
        raise ValueError("bytes are written as base64") from None


def _array(items: list[Any], kind: str) -> str:
    return "{" + ",".join(_item(item, kind) for item in items) + "}"


def _item(item: Any, kind: str) -> str:
    if isinstance(item, list):
        return _array(item, kind)
    if isinstance(item, str):
        _check(item, kind)
    item_text = text(item, kind if kind in _INTEGERS else "text")
    return "NULL" if item_text is None else '"' + item_text.translate(_ESCAPED) + '"'
