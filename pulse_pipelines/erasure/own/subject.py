"""The person's rows in a table of a tenant's own: a path of names, applied to whatever columns the table has.

A path goes through structs, lists and maps, and through text that is JSON, as copies of `context` and
`_extra` are. A column, or a member, has every name that a schema of the table ever gave its field id, since
files keep the rows that they had under an earlier one.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import PYARROW_PARQUET_FIELD_ID_KEY
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

from pulse_pipelines.erasure.subject import ENVELOPE, Subject, number_of, prefixes, within
from pulse_pipelines.tables.foreign_files import children

COMPARABLE = (StringType, IntegerType, LongType, FloatType, DoubleType, DecimalType, UUIDType)
JSON = '^\\s*[{\\["]'
Path = tuple[str, ...]
Names = Mapping[int, frozenset[str]]
"""By field id: the names that schemas of the table gave it."""


def paths_of(subject: Subject) -> tuple[Path, ...]:
    """The paths by which a table may have the subject's field: copies of a dataset have its columns."""
    if subject.name in ENVELOPE:
        return tuple({(subject.name,), (ENVELOPE[subject.name],)})
    if subject.path[0] != "data":
        return (subject.path,)
    steps = subject.path[1:]
    return steps, ("_extra", *steps), subject.path


@dataclass(frozen=True)
class SearchedValue:
    """A value at one of several paths."""

    paths: tuple[Path, ...]
    value: str
    """Personal data: never stored, logged, or an argument of a process."""

    def columns(self, table: TableMetadata) -> list[tuple[str, IcebergType]]:
        """Where the paths end in any schema of the table: the path with dots, and the type there."""
        return [place for schema in table.schemas for place in self._of(schema)]

    def _of(self, schema: Schema) -> list[tuple[str, IcebergType]]:
        return [end for path in self.paths for end in _ends(schema.fields, path, "")]

    def incomparable(self, table: TableMetadata) -> str | None:
        """A column that the table has now, of a type that has no such values; None: there is none."""
        for name, kind in self._of(table.schema()):
            if not isinstance(kind, COMPARABLE):
                return f"its column {name[:100]!r} is of type {str(kind).partition('<')[0]}"
        return None

    def columns_to_read(self, schema: pa.Schema, names: Names) -> list[str]:
        """The columns of a file that have to be read."""
        return [field.name for field in schema if any(any(_steps(field, p, names)) for p in self.paths)]

    def mask(self, rows: pa.RecordBatch, names: Names) -> pa.BooleanArray:
        """Which rows of a file match."""
        matches = pa.array([False] * rows.num_rows, pa.bool_())
        for column, field in zip(rows.columns, rows.schema, strict=True):
            for path in self.paths:
                for steps in _steps(field, path, names):
                    matches = pc.or_(matches, self._of_column(column, field, path[steps:], names))
        return matches

    def _of_column(self, column: pa.Array, field: pa.Field, path: Path, names: Names) -> pa.BooleanArray:
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            # Most text is neither the value nor JSON: only the rest is looked at one by one.
            maybe = pc.or_(pc.equal(column, self.value), pc.match_substring_regex(column, JSON))
            maybe = pc.fill_null(maybe, False).to_pylist()
        else:
            maybe = [True] * len(column)
        values = column.to_pylist() if any(maybe) else [None] * len(column)
        return pa.array(
            [
                may_match and self._says(value, field, path, names)
                for may_match, value in zip(maybe, values, strict=True)
            ],
            pa.bool_(),
        )

    def _says(self, value: Any, field: pa.Field, path: Path, names: Names) -> bool:
        if value is None:
            return False
        kind = field.type
        if pa.types.is_struct(kind):
            return any(
                self._says(value[child.name], child, path[steps:], names)
                for child in children(kind)
                for steps in _steps(child, path, names)
            )
        if pa.types.is_map(kind):
            return any(
                self._says(item, kind.item_field, path[steps:], names)
                for key, item in value
                for steps, name in prefixes(path)
                if name == str(key)
            )
        if within_list := children(kind):
            return any(self._says(item, within_list[0], path, names) for item in value)
        if not path and self._equals(value, single=pa.types.is_float32(kind)):
            return True
        return isinstance(value, str) and self._in_text(value, path)

    def _in_text(self, text: str, path: Path) -> bool:
        if text.lstrip()[:1] not in ("{", "[", '"'):
            return False
        try:
            return within(orjson.loads(text), path, self._equals)
        except orjson.JSONDecodeError:
            return False

    def _equals(self, value: object, *, single: bool = False) -> bool:
        if isinstance(value, str):
            return value == self.value
        if isinstance(value, UUID):
            return str(value) == self.value.lower()
        number = number_of(self.value)
        if number is None or isinstance(value, bool):
            return False
        if isinstance(value, Decimal):
            return value == Decimal(self.value)
        if isinstance(value, float):  # as the column has it
            try:
                return value == (pa.scalar(float(number), pa.float32()).as_py() if single else float(number))
            except OverflowError:
                return False
        return isinstance(value, int) and value == number


def names_of(table: TableMetadata) -> Names:
    """The names that fields ever had, by their ids."""
    by_id: dict[int, set[str]] = defaultdict(set)
    for schema in table.schemas:
        for field in _fields(schema.fields):
            by_id[field.field_id].add(field.name)
    return {number: frozenset(names) for number, names in by_id.items()}


def _fields(fields: Sequence[NestedField]) -> Iterator[NestedField]:
    for field in fields:
        yield field
        yield from _fields(_members(field.field_type))


def _members(kind: IcebergType) -> Sequence[NestedField]:
    match kind:
        case StructType():
            return kind.fields
        case ListType():
            return (kind.element_field,)
        case MapType():
            return (kind.key_field, kind.value_field)
    return ()


def _steps(field: pa.Field, path: Path, names: Names) -> Iterator[int]:
    """The numbers of steps of a path that a field's names stand for."""
    number = int((field.metadata or {}).get(PYARROW_PARQUET_FIELD_ID_KEY, -1))
    candidates = names.get(number, frozenset()) | {field.name}
    return (steps for steps, name in prefixes(path) if name in candidates)


def _ends(fields: Sequence[NestedField], path: Path, before: str) -> Iterator[tuple[str, IcebergType]]:
    for field in fields:
        for steps, name in prefixes(path):
            if name == field.name:
                yield from _end(field.field_type, path[steps:], f"{before}{name}")


def _end(kind: IcebergType, path: Path, name: str) -> Iterator[tuple[str, IcebergType]]:
    match kind:
        case ListType():
            yield from _end(kind.element_type, path, name)
        case StructType() if path:
            yield from _ends(kind.fields, path, f"{name}.")
        case MapType() if path:
            for steps, _ in prefixes(path):
                yield from _end(kind.value_type, path[steps:], f"{name}.{path[0]}")
        case _ if not path or isinstance(kind, StringType):
            yield name, kind
