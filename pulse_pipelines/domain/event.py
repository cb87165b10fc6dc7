"""Received events: the envelope, checks of payloads before decoding, and parsing of dates and timestamps.

An event is a JSON object with `event_id`, `dataset`, `timestamp` (RFC 3339), `data` (an object that
follows the dataset's schema) and optionally `context`, `trace_id`, `tenant` and `schema_version` (the
version of the dataset's schema that it follows, if not the current one).
"""

import contextlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from pulse_pipelines.domain.reasons import Reason

EARLIEST = datetime(1, 1, 1, tzinfo=UTC)
"""First instant that Iceberg, Spark, Python and Postgres all hold; years end at 9999 for all four."""

ENVELOPE = frozenset(
    ("event_id", "dataset", "timestamp", "data", "context", "trace_id", "tenant", "schema_version")
)
"""Members of an event. Any other is accepted, and kept in the raw zone only."""
MAX_ID_BYTES = 512
INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class Rejected:
    """The reason why an event cannot land; a value, never an exception.

    `pointer` is the JSON pointer (RFC 6901) into the event, if there is one.
    """

    reason: Reason
    detail: str
    pointer: str | None = None


def json_pointer(path: "list[str | int]") -> str:
    """RFC 6901 pointer of a path of keys and indexes."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


_DIGITS_TO_ZERO = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))
_NINETEEN_DIGITS = b"0" * 19


def suspicious(payload: bytes) -> bool:
    """Whether the bytes may hold a NUL or an integer beyond 64 bits; never False when they do."""
    if b"\\u0000" in payload:
        return True
    # Long runs of digits are mostly in strings, such as ids: only then strings are removed and checked again.
    return _many_digits(payload) and _many_digits(_JSON_STRING.sub(b"", payload))


def _many_digits(payload: bytes) -> bool:
    return _NINETEEN_DIGITS in payload.translate(_DIGITS_TO_ZERO)


# Possessive, with an optional closing quote: an unterminated string causes no backtracking.
_JSON_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))


_HEADING = re.compile(
    rb'\s*\{\s*"event_id"\s*:\s*("(?:[^"\\]|\\.)++")\s*,\s*"dataset"\s*:\s*"([a-z0-9_]++)"', re.DOTALL
)
_HEAD_BYTES = 4 * MAX_ID_BYTES


def heading(payload: bytes) -> dict[str, str] | None:
    """The id and dataset with which an event begins, as events of entities do; else None.

    For events that are not decoded: their dead letters should name what they are of.
    """
    if (match := _HEADING.match(payload[:_HEAD_BYTES])) is None:
        return None
    try:
        return {"event_id": json.loads(match[1].decode()), "dataset": match[2].decode()}
    except ValueError:
        return None


def nesting(payload: bytes) -> int:
    """The nesting depth of objects and arrays, counted without decoding, because decoders recurse."""
    depth = deepest = 0
    for byte in _JSON_STRING.sub(b"", payload).translate(None, _NO_BRACKETS):
        if byte in b"{[":
            depth += 1
            if depth > deepest:
                deepest = depth
        else:
            depth -= 1
    return deepest


def values(data: Any) -> int:
    """The number of values within a decoded JSON value, itself included."""
    count, pending = 0, [data]
    while pending:
        value = pending.pop()
        count += 1
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return count


def unstorable(payload: bytes) -> Rejected | None:
    """Exact check of a suspicious payload: NUL characters and integers beyond 64 bits.

    orjson turns large integers into floats silently, so this decodes again with the standard library.
    """
    pending: list[tuple[Any, list[str | int]]] = [(json.loads(payload), [])]
    while pending:
        node, path = pending.pop()
        if isinstance(node, str) and "\0" in node:
            return Rejected(Reason.NUL_CHARACTER, "a NUL character cannot be stored", json_pointer(path))
        if isinstance(node, int) and not isinstance(node, bool) and node not in INT64:
            return Rejected(
                Reason.INTEGER_OUT_OF_RANGE,
                "an integer does not fit into 64 signed bits",
                json_pointer(path),
            )
        if isinstance(node, dict):
            for key, child in node.items():
                if "\0" in key:
                    return Rejected(Reason.NUL_CHARACTER, "a key holds a NUL character", json_pointer(path))
                pending.append((child, [*path, key]))
        elif isinstance(node, list):
            pending.extend((child, [*path, index]) for index, child in enumerate(node))
    return None


_FULL_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def parse_date(text: str) -> date:
    """Parse an RFC 3339 full-date, without the other forms of ISO 8601. Raises ValueError."""
    if _FULL_DATE.fullmatch(text) is None:
        raise ValueError("not of the form YYYY-MM-DD")
    return date.fromisoformat(text)


_USUAL = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:[0-5]\d)", re.ASCII)
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:[0-5]\d)", re.ASCII)


def parse_timestamp(text: object) -> datetime | Rejected:
    """Parse an RFC 3339 timestamp to UTC, truncated to microseconds."""
    if isinstance(text, str) and _USUAL.fullmatch(text):
        with contextlib.suppress(ValueError, OverflowError):
            return datetime.fromisoformat(text).astimezone(UTC)
    match = _RFC3339.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return Rejected(Reason.INVALID_TIMESTAMP, "not an RFC 3339 timestamp with a zone offset")
    day, time, fraction, zone = match.groups()
    # No store can represent a leap second: it becomes the last microsecond of its minute.
    if time.endswith(":60"):
        time, fraction = f"{time[:-2]}59", "999999"
    zone = "+00:00" if zone in "Zz" else zone
    try:
        local = datetime.fromisoformat(f"{day}T{time}.{(fraction or '0')[:6]:0<6}{zone}")
    except ValueError as error:
        if day.startswith("0000"):
            return _beyond_all_years(text)
        if int(zone[1:3]) >= 24:
            return Rejected(Reason.INVALID_TIMESTAMP, f"the zone offset {zone} is not below 24 hours")
        return Rejected(Reason.INVALID_TIMESTAMP, str(error))
    try:
        return local.astimezone(UTC)
    except OverflowError:
        return _beyond_all_years(text)


def _beyond_all_years(text: object) -> Rejected:
    detail = (
        f"{str(text)[:40]} is outside the years 1 to 9999 in UTC, all that tables hold: correct the sender"
    )
    return Rejected(Reason.TIMESTAMP_OUT_OF_RANGE, detail)
