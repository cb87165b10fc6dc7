"""Values of a result: as Arrow types that every reader knows, and as JSON and CSV have them.

DuckDB's types that Arrow lacks arrive as bytes. Values beyond Python's dates and times stay exact: JSON and
CSV have them as DuckDB writes them, which it also reads.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from pulse_resources.errors import UserError

HUGEINT = pa.decimal128(38, 0)
UHUGEINT = pa.decimal256(39, 0)
_DAYS = (-719_162, 2_932_896)
"""0001-01-01 and 9999-12-31, the days that Python and RFC 3339 have, since 1970."""
_DAY_US = 86_400 * 10**6
_PER_DAY = {unit: 86_400 * parts for unit, parts in (("s", 1), ("ms", 10**3), ("us", 10**6))}
_INFINITE = 2**63 - 1
_INFINITE_DAY = 2**31 - 1

Text = Callable[[pa.Array], list[str | None]]
"""Values as DuckDB writes them."""


def texts(database: duckdb.DuckDBPyConnection) -> Text:
    """`Text` in an instance, beside a query that has more rows."""

    def text(array: pa.Array) -> list[str | None]:
        if not len(array):
            return []
        with database.cursor() as beside:
            texts_of_values = beside.from_arrow(pa.table({"v": array})).project("CAST(v AS VARCHAR)")
            return [row[0] for row in texts_of_values.fetchall()]

    return text


def has(kind: pa.DataType, is_such: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type is one of some, at any depth."""
    if is_such(kind):
        return True
    if pt.is_map(kind):
        return has(kind.key_type, is_such) or has(kind.item_type, is_such)
    return pt.is_nested(kind) and any(has(kind.field(n).type, is_such) for n in range(kind.num_fields))


def unfit(name: str, kind: pa.DataType, why: str) -> UserError:
    """The error of a column with a value that a format does not have."""
    return UserError(
        f"the column {name[:100]!r}, of type {str(kind)[:200]}, cannot be written: {why[:500]}",
        fix="Make text of it: CAST(... AS VARCHAR)",
    )


def exact(array: pa.Array, text: Text) -> pa.Array:
    """The same values without types of DuckDB's own, at any depth.

    HUGEINT, the type of sums, becomes a decimal of the same bits, and times with an offset, bit strings and
    integers of any size become text.
    """
    kind = array.type
    if isinstance(kind, pa.Bool8Type):
        return array.storage.cast(pa.bool_())
    if isinstance(kind, pa.OpaqueType):
        if kind.type_name == "hugeint":
            return array.storage.view(HUGEINT)
        texts_of_values = pa.array(text(array), pa.string())
        return texts_of_values.cast(UHUGEINT) if kind.type_name == "uhugeint" else texts_of_values
    if not pt.is_nested(kind):
        return array
    buffer_count, children = _parts(array)
    exact_children = [exact(child, text) for child in children]
    return pa.Array.from_buffers(
        _type_of(kind, [child.type for child in exact_children]),
        len(array),
        array.buffers()[:buffer_count],
        children=exact_children,
    )


def _parts(array: pa.Array) -> tuple[int, list[pa.Array]]:
    """The number of buffers of a nested array without its children, and these."""
    kind = array.type
    if array.offset:
        raise ValueError("DuckDB's arrays begin at their buffers' beginning")
    if pt.is_struct(kind):
        return 1, [array.field(n) for n in range(kind.num_fields)]
    if pt.is_union(kind):
        return 2, [array.field(n) for n in range(kind.num_fields)]
    if pt.is_map(kind):
        fields = [kind.key_field, kind.item_field]
        pairs = pa.StructArray.from_arrays([array.keys, array.items], fields=fields)
        return 2, [pairs]
    return 1 if pt.is_fixed_size_list(kind) else 2, [array.values]


def _type_of(kind: pa.DataType, children: Sequence[pa.DataType]) -> pa.DataType:
    """A nested type with other types of its children."""
    if pt.is_map(kind):
        key, item = children[0]
        return pa.map_(key, item)
    fields = [kind.field(n).with_type(child) for n, child in enumerate(children)]
    if pt.is_struct(kind):
        return pa.struct(fields)
    if pt.is_union(kind):
        return pa.sparse_union(fields, kind.type_codes)
    if pt.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    return pa.large_list(fields[0]) if pt.is_large_list(kind) else pa.list_(fields[0])


def values(array: pa.Array, text: Text) -> list[Any]:
    """Values for JSON and CSV, of an array that `exact` gave.

    A struct becomes a dictionary, or a list if its fields have no names; a map a list of pairs.
    """
    kind = array.type
    if not pt.is_nested(kind):
        return _leaves(array, text)
    if pt.is_map(kind):
        columns: Sequence[list[Any]] = [
            list(zip(values(array.keys, text), values(array.items, text), strict=True))
        ]
    else:
        columns = [values(child, text) for child in _parts(array)[1]]
    if pt.is_union(kind):
        place = {code: n for n, code in enumerate(kind.type_codes)}
        return [columns[place[code]][row] for row, code in enumerate(array.type_codes.to_pylist())]
    if pt.is_struct(kind):
        names = [field.name for field in kind]
        rows = zip(*columns, strict=True)
        converted: list[Any] = [
            dict(zip(names, row, strict=True)) if any(names) else list(row) for row in rows
        ]
    else:
        ends = _offsets(array)
        converted = [columns[0][first:last] for first, last in pairwise(ends)]
    valid = array.is_valid().to_pylist()
    return [value if is_valid else None for value, is_valid in zip(converted, valid, strict=True)]


def _offsets(array: pa.Array) -> Sequence[int]:
    """Where each list begins in the values, and the last one's end."""
    if pt.is_fixed_size_list(array.type):
        size = array.type.list_size
        return range(0, (len(array) + 1) * size, size)
    ends: list[int] = array.offsets.to_pylist()
    return ends


def _leaves(array: pa.Array, text: Text) -> list[Any]:
    odd = _odd_values(array)
    if odd is None or not pc.any(odd).as_py():
        return _usual(array)
    written = iter(text(array.filter(odd)))
    if pt.is_timestamp(array.type) and array.type.unit == "ns":
        written = (value and value.replace(" ", "T") for value in written)
    usual = _usual(pc.if_else(odd, pa.scalar(None, array.type), array))
    return [next(written) if is_odd else value for is_odd, value in zip(odd.to_pylist(), usual, strict=True)]


def _usual(array: pa.Array) -> list[Any]:
    if pt.is_timestamp(array.type) and array.type.unit == "ns":
        array = array.cast(pa.timestamp("us"))
    items: list[Any] = array.to_pylist()
    return items


def _odd_values(array: pa.Array) -> pa.Array | None:
    """Which values Python's types cannot hold, or not all of; None: none of this type."""
    kind = array.type
    if pt.is_interval(kind):
        return array.is_valid()
    if pt.is_date32(kind):
        return _out_of_range(array.view(pa.int32()), _DAYS[0], _DAYS[1])
    if pt.is_time64(kind):
        whole = array.view(pa.int64())
        return _broken(whole) if kind.unit == "ns" else _out_of_range(whole, 0, _DAY_US - 1)
    if pt.is_timestamp(kind):
        whole = array.view(pa.int64())
        if kind.unit == "ns":
            return pc.or_(_broken(whole), _out_of_range(whole, 1 - _INFINITE, _INFINITE - 1))
        day = _PER_DAY[kind.unit]
        return _out_of_range(whole, _DAYS[0] * day, (_DAYS[1] + 1) * day - 1)
    return None


def lacking_time(array: pa.Array) -> str | None:
    """Which times an array has that Arrow lacks, and other readers take for another one; None: none."""
    kind = array.type
    if pt.is_nested(kind):
        return next(
            (lacking for part in _parts(array)[1] if (lacking := lacking_time(part)) is not None), None
        )
    if pt.is_time64(kind):
        beyond, lacking = array.view(pa.int64()), "it has the time 24:00:00"
        last = _DAY_US * (1_000 if kind.unit == "ns" else 1) - 1
    elif pt.is_date32(kind):
        beyond, last, lacking = array.view(pa.int32()), _INFINITE_DAY - 1, "it has an infinite date"
    elif pt.is_timestamp(kind):
        beyond, last, lacking = array.view(pa.int64()), _INFINITE - 1, "it has an infinite time"
    else:
        return None
    return lacking if pc.any(_out_of_range(beyond, -last, last)).as_py() else None


def _out_of_range(numbers: pa.Array, least: int, most: int) -> pa.Array:
    return pc.fill_null(pc.or_(pc.less(numbers, least), pc.greater(numbers, most)), False)


def _broken(numbers: pa.Array) -> pa.Array:
    """Mask of nanoseconds that are not whole microseconds."""
    return pc.fill_null(pc.not_equal(pc.multiply(pc.divide(numbers, 1_000), 1_000), numbers), False)
