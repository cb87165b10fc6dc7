"""Column fit: whether one event's values fit their columns, by the typing that a batch applies.

The HTTP API checks it for events that are valid by their schema: `format` is an annotation to the validator,
and a number without a fraction may still exceed 64 bits. Ordinary values pass a check that is cheaper than
validation; all others are converted by Arrow, so that the API and the batch give the same verdict.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pulse_pipelines.domain import json_values
from pulse_pipelines.domain.event import Rejected, json_pointer, parse_date, parse_timestamp
from pulse_pipelines.domain.schemas.columns import Column, FieldType, Kind
from pulse_pipelines.tables import arrow_columns

Check = Callable[[Any], bool]
_WHOLE = frozenset({int, type(None)})


class ColumnFit:
    """Checks events of a dataset against its columns; made once for any number of events."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._unsure = [column for column in columns if not column.certain]
        checks = ((column.field, _check(column.type)) for column in columns)
        self._checks = [(name, check) for name, check in checks if check is not None]

    def misfit(self, data: Mapping[str, Any], payload: bytes, *, as_declared: bool) -> Rejected | None:
        """The rejection of the first value that its column cannot hold; None when all fit.

        Args:
            data: of an event that is valid by the schema version that it follows.
            payload: the event, whose numbers have their digits.
            as_declared: whether the columns were made from that version.
        """
        if self._fits(data, as_declared):
            return None
        data = json_values.exact(payload)["data"]
        for column in self._columns:
            rejects: dict[int, Rejected] = {}
            values, pointer = [data.get(column.field)], "/data" + json_pointer([column.field])
            if not (as_declared and column.certain):
                arrow_columns.refuse_misfits(values, column.type, [0], rejects, pointer)
            arrow_columns.array(values, column.type, rejects, pointer)
            if rejects:
                return rejects[0]
        return None

    def _fits(self, data: Mapping[str, Any], as_declared: bool) -> bool:
        """Whether the cheap checks pass; if not, the values may still fit."""
        get = data.get
        for name, check in self._checks:
            value = get(name)
            if value is not None and not check(value):
                return False
        unsure = self._unsure if as_declared else self._columns
        return all(arrow_columns.holds(column.type, get(column.field)) for column in unsure)


def _check(kind: FieldType) -> Check | None:
    """The check that a column can hold a value that is valid by its schema; None: it holds all of them."""
    match kind.kind:
        case Kind.LONG:
            return lambda value: type(value) is int  # checked before: within 64 bits
        case Kind.TIMESTAMP:
            return lambda value: not isinstance(parse_timestamp(value), Rejected)
        case Kind.DATE:
            return _is_date
        case Kind.LIST if kind.item is not None and kind.item.kind is Kind.LONG:
            return lambda values: type(values) is list and _WHOLE.issuperset(map(type, values))
        case Kind.LIST if kind.item is not None and (check := _check(kind.item)) is not None:
            return lambda values: type(values) is list and all(v is None or check(v) for v in values)
        case Kind.STRUCT:
            checks = [(name, check) for name, member in kind.fields if (check := _check(member)) is not None]
            return _of_struct(checks) if checks else None
    return None


def _of_struct(checks: Sequence[tuple[str, Check]]) -> Check:
    def check(value: Any) -> bool:
        return type(value) is dict and all(
            (member := value.get(name)) is None or fits(member) for name, fits in checks
        )

    return check


def _is_date(value: Any) -> bool:
    try:
        parse_date(value)
    except (TypeError, ValueError):
        return False
    return True
