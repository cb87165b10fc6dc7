"""What was sent and what came back, comparable: numbers are decimals with all their digits."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from pulse_pipelines.domain.schemas.columns import Column, FieldType, Kind

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):?(\d\d))", re.ASCII
)


class Invalid(Exception):  # noqa: N818 - a value that is sent to be refused
    """The text is no JSON."""


class Twice(tuple[tuple[str, Any], ...]):
    """The members of an object in which a name is there twice."""

    __slots__ = ()


def _members(pairs: list[tuple[str, Any]]) -> Any:
    members = dict(pairs)
    return members if len(members) == len(pairs) else Twice(pairs)


def _no_number(text: str) -> Any:
    raise Invalid(text)


def parsed(text: str | bytes) -> Any:
    """A JSON text. Raises Invalid: it is none."""
    try:
        if isinstance(text, str):
            text = text.encode("utf-8", "surrogateescape")
        return json.loads(
            text.decode(),
            parse_int=Decimal,
            parse_float=Decimal,
            parse_constant=_no_number,
            object_pairs_hook=_members,
        )
    except (ValueError, RecursionError) as error:
        raise Invalid(str(error)) from error


def same(one: Any, other: Any, *, spelling: bool) -> bool:
    """Whether two values are the same.

    Args:
        spelling: numbers have the same digits, too: 1.10 is not 1.1.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, Decimal):
        if spelling:
            return one.as_tuple() == other.as_tuple()
        return one == other and one.is_signed() == other.is_signed()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            same(one[name], other[name], spelling=spelling) for name in one
        )
    if isinstance(one, list):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(same(a, b, spelling=spelling) for a, b in pairs)
    return bool(one == other)


def instant(text: Any) -> Decimal | None:
    """Seconds since 1970 of an RFC 3339 text, with all its digits; None if it is none."""
    if not isinstance(text, str) or (match := _MOMENT.fullmatch(text)) is None:
        return None
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    try:
        at_midnight = datetime(year, month, day, tzinfo=UTC) - _EPOCH
    except ValueError:
        return None
    offset = 0 if match[8] is None else (1 if match[8] == "+" else -1) * (int(match[9]) * 60 + int(match[10]))
    seconds = at_midnight.days * 86_400 + hour * 3_600 + (minute - offset) * 60 + second
    return Decimal(f"{seconds}") + Decimal(f"0.{match[7] or 0}")


def cell(value: Any, kind: FieldType | None = None) -> Any:
    """A value of a row as an engine gives it, comparable; JSON text is what it says."""
    if value is None or isinstance(value, bool | Decimal):
        return value
    if isinstance(value, int):
        return Decimal(value)
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if kind is not None and kind.kind is Kind.JSON:
        return parsed(value)
    if isinstance(value, Mapping):
        types = dict(kind.fields) if kind else {}
        members = {name: cell(item, types.get(name)) for name, item in value.items()}
        return {name: item for name, item in members.items() if item is not None}
    if isinstance(value, list):
        return [cell(item, kind.item if kind else None) for item in value]
    return value


def data(row: Mapping[str, Any], columns: Sequence[Column]) -> dict[str, Any]:
    """The data of an event, put together again from a row: declared columns, and `_extra`."""
    values = {column.field: cell(row[column.name], column.type) for column in columns}
    members = {name: value for name, value in values.items() if value is not None}
    extra = row["_extra"]
    merged = members if extra is None else _merged(members, parsed(extra))
    assert isinstance(merged, dict)
    return merged


def _merged(typed: Any, extra: Any) -> Any:
    if isinstance(typed, dict) and isinstance(extra, dict):
        return typed | {name: _merged(typed.get(name), item) for name, item in extra.items()}
    if isinstance(typed, list) and isinstance(extra, list):
        return [_merged(item, extra_item) for item, extra_item in zip(typed, extra, strict=True)]
    return typed if extra is None and typed is not None else extra
