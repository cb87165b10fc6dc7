"""Arrow columns: lists of decoded JSON values become Arrow arrays of the table's types.

The fast path passes a whole column to Arrow; a column that Arrow refuses is converted value by value, so
that exactly the events at fault become dead letters.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from pulse_pipelines.domain import json_values
from pulse_pipelines.domain.event import EARLIEST, Rejected, parse_date, parse_timestamp
from pulse_pipelines.domain.event_limits import MICROSECOND, EventLimits
from pulse_pipelines.domain.json_values import Number
from pulse_pipelines.domain.moments import EPOCH
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.schemas.columns import Column, FieldType, Kind
from pulse_pipelines.tables.column_types import SCALARS, TIMESTAMP

# Year 0000 takes the slow path: Arrow accepts it, and a zone offset may move it into year 1.
_YEAR = r"([1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])"
_RFC3339_UTC_OR_OFFSET = rf"^{_YEAR}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{{1,6}})?(Z|[+-]\d\d:\d\d)$"
_EARLIEST = pa.scalar(EARLIEST, TIMESTAMP)
_LATEST = pa.scalar(datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), TIMESTAMP)
_MOST = 2**63 - 1
_UNUSUAL = rf"\\u0000|{json_values.UNUSUAL}"
_ISO_DATE = rf"^{_YEAR}-\d\d-\d\d$"


@lru_cache(maxsize=4096)
def arrow_schema(table_schema: str) -> pa.Schema:
    """The Arrow schema, with Iceberg field ids, of a table schema in JSON."""
    schema = schema_to_pyarrow(Schema.model_validate_json(table_schema))
    return pa.schema([_plain(field) for field in schema])


def _plain(field: pa.Field) -> pa.Field:
    """The field with string instead of pyiceberg's large_string: the same files, with smaller offsets."""
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([_plain(kind.field(index)) for index in range(kind.num_fields)])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_field))
    return kind


def arrow_type(kind: FieldType) -> pa.DataType:
    """The Arrow type of a declared field."""
    if kind.kind is Kind.STRUCT:
        return pa.struct([(name, arrow_type(member)) for name, member in kind.fields])
    if kind.kind is Kind.LIST and kind.item is not None:
        return pa.list_(arrow_type(kind.item))
    return SCALARS[kind.kind].arrow


def unusual(payloads: Sequence[bytes]) -> list[int]:
    """Indexes of JSON texts that may have a NUL, an integer beyond 64 bits, or a number that no double writes
    as it came; never without one that has."""
    matches = pc.match_substring_regex(pa.array(payloads, pa.large_binary()), _UNUSUAL)
    return pc.indices_nonzero(matches).to_pylist()  # type: ignore[no-any-return]


def json_text(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value, default=json_values.plain).decode()


def array(values: Sequence[Any], kind: FieldType, rejects: dict[int, Rejected], pointer: str) -> pa.Array:
    """The column of one declared field; events whose value does not fit its type are added to `rejects`."""
    match kind.kind:
        case Kind.JSON:
            return pa.array([json_text(value) for value in values], pa.string())
        case Kind.TIMESTAMP:
            return timestamps(values, rejects, pointer)
        case Kind.DATE:
            return _dates(values, rejects, pointer)
    target = arrow_type(kind)
    try:
        if not _have_digits(values, kind):  # which Arrow would round
            return pa.array(values, target)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        pass
    return pa.array(_one_by_one(values, kind, target, rejects, pointer), target)


def _have_digits(values: Iterable[Any], kind: FieldType) -> bool:
    """Whether an integer in some values is written with a fraction or exponent that no double writes so."""
    if kind.kind is Kind.STRUCT:
        objects = [value for value in values if type(value) is dict]
        return any(
            _have_digits([value.get(name) for value in objects], member) for name, member in kind.fields
        )
    if kind.kind is Kind.LIST and kind.item is not None:
        return any(_have_digits(value, kind.item) for value in values if type(value) is list)
    return kind.kind is Kind.LONG and Number in set(map(type, values))


def refuse_misfits(
    values: list[Any], kind: FieldType, chosen: Iterable[int], rejects: dict[int, Rejected], pointer: str
) -> None:
    """Add those of the `chosen` values that the field's column cannot hold to `rejects`, and make them None.

    For values whose schema does not guarantee the type: the event names another schema version, or follows a
    choice that declares the field differently or not at all. Arrow would silently turn a fraction into an
    integer.
    """
    for index in chosen:
        if not holds(kind, values[index]):
            detail = f"the column holds {kind.kind} values, and what the event follows allows another one"
            rejects.setdefault(index, Rejected(Reason.UNREPRESENTABLE, detail, pointer))
            values[index] = None


def holds(kind: FieldType, value: Any) -> bool:
    """Whether a column of this kind can hold a decoded value that was not validated against its type."""
    if value is None:
        return True
    if kind.kind is Kind.STRUCT:
        return type(value) is dict and all(holds(member, value.get(name)) for name, member in kind.fields)
    if kind.kind is Kind.LIST and kind.item is not None:
        return type(value) is list and all(holds(kind.item, item) for item in value)
    return SCALARS[kind.kind].holds(value)


def _one_by_one(
    values: Sequence[Any],
    kind: FieldType,
    target: pa.DataType,
    rejects: dict[int, Rejected],
    pointer: str,
) -> list[Any]:
    converted: list[Any] = []
    for index, value in enumerate(values):
        fitting = None
        try:
            fitting = _fit(value, kind)
            pa.array([fitting], target)
        except (ValueError, pa.ArrowTypeError, OverflowError) as error:  # ArrowInvalid is a ValueError
            rejects.setdefault(index, Rejected(Reason.UNREPRESENTABLE, str(error), pointer))
            fitting = None
        converted.append(fitting)
    return converted


def _fit(value: Any, kind: FieldType) -> Any:
    """The value converted to its column's type. Raises ValueError if it does not fit."""
    if kind.kind is Kind.STRUCT:
        if type(value) is not dict:
            return value
        return {name: _fit(value.get(name), member) for name, member in kind.fields}
    if kind.kind is Kind.LIST and kind.item is not None:
        return [_fit(item, kind.item) for item in value] if type(value) is list else value
    return SCALARS[kind.kind].fit(value)


def timestamps(values: Sequence[Any], rejects: dict[int, Rejected], pointer: str) -> pa.Array:
    """Convert RFC 3339 strings to UTC microseconds, within the range that all engines support.

    A bad event timestamp is rejected with the parser's reason, a bad declared field as `UNREPRESENTABLE`.
    """
    required = pointer == "/timestamp"
    try:
        texts = pa.array(values, pa.string())
        if pc.all(pc.match_substring_regex(texts, _RFC3339_UTC_OR_OFFSET)).as_py() is not False:
            parsed = texts.cast(TIMESTAMP)
            low, high = pc.min_max(parsed).values()
            if not low.is_valid or (low.value >= _EARLIEST.value and high.value <= _LATEST.value):
                return parsed
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        pass
    converted: list[datetime | None] = []
    for index, value in enumerate(values):
        moment = None if value is None else parse_timestamp(value)
        if isinstance(moment, Rejected):
            reason = moment.reason if required else Reason.UNREPRESENTABLE
            rejects.setdefault(index, Rejected(reason, moment.detail, pointer))
            moment = None
        converted.append(moment)
    filler = EARLIEST if required else None  # a required column takes no null
    return pa.array([filler if value is None else value for value in converted], TIMESTAMP)


def refuse_untimely(
    moments: pa.Array, received_ms: pa.Array, limits: EventLimits, rejects: dict[int, Rejected]
) -> None:
    """Add the events whose timestamp is outside the accepted range to `rejects`, by index.

    Args:
        moments: the events' timestamps, none of them null; existing rejects are kept.
        received_ms: when each event was received, in milliseconds since the epoch.
    """
    micros = moments.cast(pa.int64())
    earliest, ahead = (limits.earliest - EPOCH) // MICROSECOND, limits.ahead // MICROSECOND
    low, high = (bound.as_py() for bound in pc.min_max(micros).values())
    if low is None or (low >= earliest and high <= pc.min(received_ms).as_py() * 1000 + ahead):
        return
    since_received = pc.subtract(micros, pc.multiply(received_ms, 1000))
    untimely = pc.or_(pc.less(micros, earliest), pc.greater(since_received, min(ahead, _MOST)))
    for index in pc.indices_nonzero(untimely).to_pylist():
        received = EPOCH + received_ms[index].as_py() * timedelta(milliseconds=1)
        if (rejected := limits.untimely(moments[index].as_py(), received)) is not None:
            rejects.setdefault(index, rejected)


def _dates(values: Sequence[Any], rejects: dict[int, Rejected], pointer: str) -> pa.Array:
    try:
        texts = pa.array(values, pa.string())
        if pc.all(pc.match_substring_regex(texts, _ISO_DATE)).as_py() is not False:
            return texts.cast(pa.date32())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        pass
    converted: list[date | None] = []
    for index, value in enumerate(values):
        try:
            converted.append(None if value is None else parse_date(value))
        except ValueError as error:
            converted.append(None)
            detail = f"not a date: {error}"
            rejects.setdefault(index, Rejected(Reason.UNREPRESENTABLE, detail, pointer))
    return pa.array(converted, pa.date32())


def extras(datas: Sequence[dict[str, Any]], declared: Sequence[Column]) -> pa.Array:
    """Content that no column holds, as JSON text for `_extra`: members that the schema does not
    declare, and numbers with more digits than a double has."""
    names = {column.field for column in declared}
    doubles = [c.field for c in declared if c.type.kind is Kind.DOUBLE]
    nested = [c for c in declared if c.type.kind in (Kind.STRUCT, Kind.LIST)]
    partial = [*nested, *(c for c in declared if c.type.kind is Kind.DOUBLE)]
    texts: list[str | None] = []
    for data in datas:
        get = data.get
        if not nested and data.keys() <= names and _FLOATS.issuperset([type(get(name)) for name in doubles]):
            texts.append(None)
            continue
        undeclared = {key: value for key, value in data.items() if key not in names}
        for column in partial:
            if remainder := untyped_parts(get(column.field), column.type):
                undeclared[column.field] = remainder
        texts.append(json_text(undeclared) if undeclared else None)
    return pa.array(texts, pa.string())


_FLOATS = frozenset((float, type(None)))


def untyped_parts(value: Any, kind: FieldType) -> Any:
    """The parts of a value that its typed column drops or rounds; lists keep their positions."""
    if kind.kind is Kind.DOUBLE:
        if type(value) is Number:
            return None if value.is_exact else value
        return value if type(value) is int and float(value) != value else None
    if kind.kind is Kind.STRUCT and type(value) is dict:
        declared = dict(kind.fields)
        undeclared = {key: item for key, item in value.items() if key not in declared}
        for key, member in kind.fields:
            if remainder := untyped_parts(value.get(key), member):
                undeclared[key] = remainder
        return undeclared
    if kind.kind is Kind.LIST and type(value) is list and kind.item is not None:
        remainders = [untyped_parts(item, kind.item) for item in value]
        return remainders if any(remainders) else None
    return None
