"""Values of entities as Postgres reads them, by the column that they are written to."""

import base64
import binascii
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pulse_pipelines.domain import json_values

ARRAY = "array"
COMPOSITE = "composite"
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_JSON = ("json", "jsonb")
_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""NUL in JSON, and not the text `\\u0000`, whose backslash is escaped."""
_INTEGERS = ("int2", "int4", "int8")
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_UNSIGNED = ("oid", "xid", "cid", "xid8")
_OCTAL_NUMBER = re.compile(r"\s*\+?0[0-9]+\s*")
_TIMES = ("date", "time", "timetz", "timestamp", "timestamptz")
_RANGES = {
    "daterange": "date",
    "datemultirange": "date",
    "tsrange": "timestamp",
    "tsmultirange": "timestamp",
    "tstzrange": "timestamptz",
    "tstzmultirange": "timestamptz",
}
"""Types of ranges, with the type of their bounds."""
_LENIENT = (*_TIMES, *_RANGES, "interval", "money", "int4range", "int8range", "numrange")
"""Types that read a part of the JSON of a list: [1.5] as an interval, ["2026-11-19 10:00"] as a time."""
_BOUNDS = re.compile(r'[\[(]\s*"?([^",\])]*)"?\s*,\s*"?([^",\])]*)"?\s*[\])]')
_WORD = re.compile(r"\b(?:now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_ISO = re.compile(
    r"\s*(?P<day>(?:\d{4,}-\d\d?-\d\d?|\d{8})(?!\d))?[T\s]*"
    r"(?P<time>\d\d?:\d\d(?::\d\d(?:\.\d*)?)?|(?:\d{6}|\d{4})(?:\.\d*)?(?!\d))?\s*(?P<zone>.*)",
    re.DOTALL | re.IGNORECASE,
)
_OF_DAY = re.compile(r"(?P<day>)(?P<time>\d\d?:\d\d(?::\d\d(?:\.\d*)?)?)\s*(?P<zone>.*)", re.DOTALL)
_MIDNIGHT = re.compile(r"0000(?:00(?:\.0*)?)?|00:00(?::00(?:\.0*)?)?")
_UTC = re.compile(r"|(?:[AP]M\s*)?(?:Z|UTC|[+-]00(?::?00)?)?(?:\s*(?:BC|AD))?", re.IGNORECASE)
_LEAP = re.compile(r"\d\d?:\d\d:60(?:\.\d*)?|\d{4}60(?:\.\d*)?")
"""A time in the 61st second of its minute."""
_PART_OF_DAYS = re.compile(
    r"^\s*P[^T]*\.\d*[1-9]|\.(?=\d*[1-9])\d++\s*+(?:y|w|d|c|mon|mil)(?!\w*sec)", re.IGNORECASE
)
"""An interval with a fraction of days, or of a larger unit."""
_MOST_BYTES = {"name": 63, "char": 1}
_OCTAL = re.compile(r"\\[23][0-7]{2}")
"""A byte of `"char"` beyond ASCII, as Postgres writes it."""
_UNITS = ("year", "month", "day", "hour", "minute", "second")
_INTERVAL = re.compile(
    r"-?P(?:(?P<year>-?\d+)Y)?(?:(?P<month>-?\d+)M)?(?:(?P<week>-?\d+)W)?(?:(?P<day>-?\d+)D)?"
    r"(?:T(?:(?P<hour>-?\d+)H)?(?:(?P<minute>-?\d+)M)?(?:(?P<second>-?\d+(?:\.\d+)?)S)?)?"
)
_BETWEEN = {"box": ";"}
"""What is between the elements of an array, if not a comma."""
_HEX = re.compile(r"\\x(?:[0-9a-f]{2})*")
"""Bytes as Postgres writes them, and so pipes those of an array."""
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"|([^{},;"]+)', re.DOTALL)
"""An element of an array, with or without quotes."""
_FIELD = re.compile(r'((?:"(?:[^"\\]|\\.|"")*+"|\\.|[^"\\,)])*+)[,)]', re.DOTALL)
"""A field of a composite, with what ends it; without a character it is null."""
_IN_FIELD = re.compile(r'"((?:[^"\\]|\\.|"")*+)"|\\(.)', re.DOTALL)
_IN_QUOTES = re.compile(r'\\(.)|"(")', re.DOTALL)
_LOWER_BOUNDS = re.compile(r"^\s*(?:\[[^\]]*\])+\s*=")
_BACKSLASH = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = str.maketrans({'"': '\\"', "\\": "\\\\"})


def text(value: Any, kind: str) -> str | None:
    """A value as text for a column.

    Args:
        kind: name of the column's type, of intervals with its fields; of arrays `array`, and after a space
            that of their elements; of composites `composite`, and those of their fields as JSON.

    Raises:
        ValueError: no column of this type can hold it.
    """
    if value is None:
        return None
    if kind in _JSON:
        encoded = json_values.written(value).decode()
        if kind == "jsonb" and _ESCAPED_NUL.search(encoded):
            raise ValueError("a text of Postgres cannot contain NUL")
        return encoded
    if kind.startswith(ARRAY) and isinstance(value, list):
        return _array(value, kind.removeprefix(f"{ARRAY} "))
    if isinstance(value, str) and "\0" in value:
        raise ValueError("a text of Postgres cannot contain NUL")
    if kind == "bytea":
        return _bytes(value)
    if isinstance(value, dict | list) and kind.partition(" ")[0] in _LENIENT:
        raise ValueError("a list or an object is not a single value")
    written = _written(value, kind)
    _check(written, kind)
    return written


def key_text(key: str, kind: str) -> str | None:
    """The id of an entity as text for a column.

    Raises:
        ValueError: no column of this type can hold it, or another id could be the same key there.
    """
    is_other = (kind in _INTEGERS and not _INTEGER.fullmatch(key)) or (kind == "bpchar" and key.endswith(" "))
    if is_other:
        raise ValueError("the column writes this id otherwise: it could be the row of another entity")
    return text(key, kind)


def stored_key(key: str, kind: str) -> str:
    """The id of the entity whose key in Postgres, cast to text, is this one: the inverse of `key_text`."""
    return base64.b64encode(bytes.fromhex(key.removeprefix("\\x"))).decode() if kind == "bytea" else key


def escaped(content: str) -> str:
    """JSON in ASCII: a database may have another encoding than UTF8, which lacks letters."""
    return _NOT_ASCII.sub(lambda letters: json.dumps(letters[0])[1:-1], content)


def escaped_id(key: str) -> str:
    """An id in ASCII, another one for each."""
    return key if key.isascii() and "\\" not in key else json.dumps(key)[1:-1]


def unescaped(key: str) -> str:
    """The inverse of `escaped_id`."""
    return str(json.loads(f'"{key}"')) if "\\" in key else key


def _written(value: Any, kind: str) -> str:
    if isinstance(value, str):
        return value
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
    outer, _, inner = kind.partition(" ")
    if outer == ARRAY:
        for item in _literals(value):
            _check(item, inner)
    if outer == COMPOSITE:
        for field, field_kind in zip(_fields(value), json.loads(inner), strict=False):
            if field is not None:
                _check(field, field_kind)
    if (kind in _TIMES or kind in _RANGES) and _WORD.search(value):
        raise ValueError("Postgres would take a word such as now for the moment at which it is written")
    if kind in _TIMES:
        _check_time(value, kind)
    if kind in _RANGES:
        for bounds in _BOUNDS.findall(value):
            for bound in bounds:
                _check_time(bound, _RANGES[kind])
    if kind.partition(" ")[0] == "interval" and _PART_OF_DAYS.search(value):
        raise ValueError("an interval has whole days, months and years: Postgres would make 15 days of P0.5M")
    if kind.startswith("interval "):
        _check_interval(value, kind)
    if kind in _MOST_BYTES and len(value.encode()) > _MOST_BYTES[kind] and not _OCTAL.fullmatch(value):
        raise ValueError(f"{_MOST_BYTES[kind]} bytes are all that the column keeps of a text")
    if kind in _UNSIGNED and value.strip().startswith("-"):
        raise ValueError("the column has no number below zero: Postgres would write a large one")
    if kind in _UNSIGNED and _OCTAL_NUMBER.fullmatch(value):
        raise ValueError("Postgres would read a number that begins with 0 as an octal one")
    if kind == "money" and not any(map(str.isdecimal, value)):
        raise ValueError("an amount has digits: Postgres would take this text for zero")


def _check_time(value: str, kind: str) -> None:
    match = _ISO.match(value)
    if match is None or (match["day"] is None and match["time"] is None):
        match = _OF_DAY.search(value)
    if match is None:
        return
    if _LEAP.fullmatch(match["time"] or ""):
        raise ValueError("a minute has 60 seconds: Postgres would write the minute after it")
    if kind in ("time", "timetz") and match["day"]:
        raise ValueError("a time of day has no date")
    if kind in ("date", "time", "timestamp") and not _UTC.fullmatch(match["zone"].strip()):
        raise ValueError("the column has no zone: Postgres would leave out that of the value")
    if kind == "date" and match["time"] and not _MIDNIGHT.fullmatch(match["time"]):
        raise ValueError("a date has no time of day")


def _check_interval(value: str, kind: str) -> None:
    """Raise ValueError if an interval has units that its column lacks: Postgres drops them."""
    last = kind.partition("(")[0].split()[-1]
    smaller = _UNITS[_UNITS.index(last) + 1 :]
    match = _INTERVAL.fullmatch(value)
    if smaller and match is None:
        raise ValueError(f"a column of the type {kind} takes an interval in ISO 8601, as P1Y2M3DT4H")
    lost = [unit for unit in ("week", *_UNITS) if unit in smaller or (unit == "week" and "day" in smaller)]
    if match is not None and any(float(match[unit] or 0) for unit in lost):
        raise ValueError(f"a column of the type {kind} keeps only a part of the interval")


def _bytes(value: Any) -> str:
    """Base64, as pipes bring it."""
    try:
        return "\\x" + base64.b64decode(value, validate=True).hex()
    except (binascii.Error, TypeError, ValueError):
        raise ValueError("bytes are written as base64") from None


def _array(items: list[Any], kind: str) -> str:
    return "{" + _BETWEEN.get(kind, ",").join(_item(item, kind) for item in items) + "}"


def _literals(written: str) -> Iterator[str]:
    """The elements of an array that is a text already, as Postgres writes it."""
    for quoted, plain in _LITERAL.findall(_LOWER_BOUNDS.sub("", written)):
        if quoted or plain.strip().upper() != "NULL":
            yield _BACKSLASH.sub(r"\1", quoted) if quoted else plain.strip()


def _fields(written: str) -> Iterator[str | None]:
    """The fields of a composite, as Postgres writes it; None for those that are null."""
    for field in _FIELD.findall(written.strip().removeprefix("(")):
        yield _IN_FIELD.sub(_without_quotes, field) if field else None


def _without_quotes(part: re.Match[str]) -> str:
    return part[2] or _IN_QUOTES.sub(r"\1\2", part[1])


def _item(item: Any, kind: str) -> str:
    if isinstance(item, list):
        if not item:
            raise ValueError("an array has no empty array within: Postgres would leave it out")
        return _array(item, kind)
    of_text = isinstance(item, str) and kind == "bytea" and _HEX.fullmatch(item) is not None
    item_text = text(item, "text" if of_text or kind in _JSON else kind)
    return "NULL" if item_text is None else '"' + item_text.translate(_ESCAPED) + '"'
