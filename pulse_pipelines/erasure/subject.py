"""Subject of an erasure: the predicate for the person's events, over typed rows and over received JSON.

A row is compared by the type of its column. Received JSON is compared by its own type, text as text and a
number as a number, whatever the schema requires, since dead letters hold values that it does not allow.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression, EqualTo, NotNull, Or

from pulse_pipelines.domain.columns import Kind
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.event import INT64
from pulse_resources.errors import UserError

ENVELOPE = {"event_id": "id", "trace_id": "trace_id"}
"""Envelope fields, with the columns that hold them."""
_INTEGER = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
COMPARABLE = (Kind.STRING, Kind.LONG, Kind.DOUBLE)


@dataclass(frozen=True)
class Subject:
    """Events of one dataset with one value in one field; made by `subject`."""

    dataset: Dataset
    field: str
    """As given by the caller."""
    value: str
    """As given by the caller; personal data, never stored or logged."""
    path: tuple[str, ...]
    """Path of the field in an event."""
    kind: Kind
    column: str | None
    """Column that holds it, typed; None: it is only in JSON text."""
    json_column: str | None
    """Column that may hold it in JSON text: `context`, or `_extra` for events older than the property."""
    covers: Mapping[int, int]
    """First offset that is not searched, by partition; a partition without an entry is not searched."""

    @property
    def number(self) -> int | float | None:
        """The value as a number, if it is one."""
        if _INTEGER.fullmatch(self.value):
            return int(self.value)
        return float(self.value) if _NUMBER.fullmatch(self.value) else None

    def covering(self, covers: Mapping[int, int]) -> "Subject":
        """The same subject, limited to events before these offsets."""
        return replace(self, covers=covers)

    def covered(self, partition: int, offset: int) -> bool:
        """Whether the event at a position is searched."""
        return offset < self.covers.get(partition, 0)

    def is_of(self, event: object) -> bool:
        """Whether a decoded event, valid or not, matches."""
        if type(event) is not dict or event.get("dataset") != self.dataset.slug:
            return False
        return self._says(event, self.path)

    def may_be_in(self, content: bytes) -> bool:
        """Whether JSON text may contain the value; if not, it need not be decoded.

        A string occurs literally unless it contains escapes; a number can be written in many ways.
        """
        return self.number is not None or self.value.encode() in content or b"\\" in content

    def _says(self, document: object, path: Sequence[str]) -> bool:
        for step in path:
            if type(document) is not dict:
                return False
            document = document.get(step)
        if type(document) is str:
            return document == self.value
        number = self.number
        if type(document) not in (int, float) or number is None:
            return False
        if self.kind is Kind.DOUBLE:  # compare as the column does, which holds doubles
            return _double(document) == _double(number)
        return document == number

    @property
    def columns(self) -> list[str]:
        """Columns of the table that `mask` reads."""
        wanted = (self.column, self.json_column, "_kafka_partition", "_offset")
        return [name for name in wanted if name is not None]

    def filter(self) -> BooleanExpression | None:
        """Predicate that every matching row fulfils, for file pruning; None: no file can be pruned."""
        if self.column is None or (typed := self._typed()) is None:
            return None
        equal = EqualTo(self.column, typed)  # type: ignore[call-arg,arg-type]
        if self.json_column is None:
            return equal
        return Or(equal, NotNull(self.json_column))  # type: ignore[call-arg,arg-type]

    def mask(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Which rows of a file match; columns may be missing from the file."""
        found = pa.array([False] * rows.num_rows, pa.bool_())
        typed = self._typed()
        if self.column in rows.schema.names and typed is not None:
            column = rows.column(self.column)
            equal = pc.equal(column, pa.scalar(typed).cast(column.type, safe=False))
            found = pc.or_(found, pc.fill_null(equal, False))
        if self.json_column in rows.schema.names:
            found = pc.or_(found, self._in_text(rows.column(self.json_column)))
        return pc.and_(found, self._covered(rows))

    def _typed(self) -> str | int | float | None:
        """The value in its column's type; None: the column cannot hold it."""
        number = self.number
        if self.kind is Kind.STRING or number is None:
            return self.value
        if self.kind is Kind.DOUBLE:
            return _double(number)
        return int(number) if int(number) in INT64 else None

    def _in_text(self, texts: pa.Array) -> pa.BooleanArray:
        path = self.path[1:]
        return pa.array(
            [
                text is not None and self.may_be_in(text.encode()) and self._says(orjson.loads(text), path)
                for text in texts.to_pylist()
            ],
            pa.bool_(),
        )

    def _covered(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        inside = pa.array([False] * rows.num_rows, pa.bool_())
        partitions, offsets = rows.column("_kafka_partition"), rows.column("_offset")
        for partition, end in self.covers.items():
            inside = pc.or_(inside, pc.and_(pc.equal(partitions, partition), pc.less(offsets, end)))
        return inside


def _double(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer beyond the range of doubles
        return math.inf if number > 0 else -math.inf


def subject(dataset: Dataset, where: str) -> Subject:
    """Parse `<field>=<value>` into a subject.

    The field is a property that the schema declares, by its name in `data`; `event_id` or `trace_id`; or
    `context.` and a path of names with dots between them. `data.` and a name is always a property.

    Raises:
        UserError: there is no such field, its type cannot be compared, or the value is not of its type.
    """
    field, equals, value = where.partition("=")
    if not equals or not field or not value:
        raise UserError("what to look for is not <field>=<value>", fix="Write --where email=ada@example.org")
    if field in ENVELOPE:
        return Subject(dataset, field, value, (field,), Kind.STRING, ENVELOPE[field], None, {})
    if field.startswith("context."):
        path = tuple(field.split("."))
        if not all(path):
            raise UserError(f"{field!r} is no path", fix="Write it as context.user.id")
        return Subject(dataset, field, value, path, Kind.STRING, None, "context", {})
    name = field.removeprefix("data.")
    column = next((column for column in dataset.columns if column.field == name), None)
    if column is None:
        known = ", ".join(sorted(c.field for c in dataset.columns if c.type.kind in COMPARABLE))
        raise UserError(
            f"the dataset declares no property {name!r}",
            fix=f"Name one of {known}; event_id, trace_id, or context.<path>",
            dataset=dataset.slug,
        )
    if column.type.kind not in COMPARABLE:
        raise UserError(
            f"{name!r} is a {column.type.kind.value}: only strings, integers and numbers can be compared",
            fix="Name another field of the same events, such as event_id",
            dataset=dataset.slug,
        )
    wanted = {Kind.LONG: _INTEGER, Kind.DOUBLE: _NUMBER}.get(column.type.kind)
    if wanted is not None and not wanted.fullmatch(value):
        what = "an integer" if wanted is _INTEGER else "a number"
        raise UserError(f"{field!r} is {what} and the value is none", fix="Write it as JSON would")
    return Subject(dataset, field, value, ("data", name), column.type.kind, column.name, "_extra", {})
