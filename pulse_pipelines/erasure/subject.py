"""Subject of an erasure: the predicate for the person's events, over typed rows and over received JSON.

A row is compared by the type of its column. Received JSON is compared by its own type, text as text and a
number as a number, whatever the schema requires, since dead letters hold values that it does not allow.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression, EqualTo, NotNull, Or

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.event import INT64
from pulse_pipelines.domain.schemas.columns import FieldType, Kind
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
    name: str
    """The field, as given by the caller."""
    value: str
    """As given by the caller; personal data, never stored or logged."""
    path: tuple[str, ...]
    """Path of the field in an event, cut at each dot; dots may as well stand within a name."""
    kind: Kind
    column: str | None = None
    """Column that holds it, typed; None: it is within another value, or only in JSON text."""
    values: tuple[tuple[str, int], ...] = ()
    """Columns of structs and lists that may hold it, each with the path steps before its content."""
    texts: tuple[tuple[str, int], ...] = ()
    """Columns that may hold it in JSON text, likewise: `context`, `_extra` for properties that are or were
    not declared, or a column of several types."""
    covers: Mapping[int, int] = field(default_factory=dict)
    """First offset that is not searched, by partition; a partition without an entry is not searched."""

    existing: frozenset[str] | None = None
    """Where given, the subject has also what was received for a dataset that is not among these."""

    @property
    def number(self) -> int | float | None:
        """The value as a number, if it is one."""
        return number_of(self.value)

    def covering(self, covers: Mapping[int, int]) -> "Subject":
        """The same subject, limited to events before these offsets."""
        return replace(self, covers=covers)

    def covered(self, partition: int, offset: int) -> bool:
        """Whether the event at a position is searched."""
        return offset < self.covers.get(partition, 0)

    def is_of(self, event: object) -> bool:
        """Whether a decoded event, valid or not, matches."""
        if type(event) is not dict or not self._is_for(event.get("dataset")):
            return False
        return self._says(event, self.path)

    def _is_for(self, slug: object) -> bool:
        if slug == self.dataset.slug:
            return True
        return self.existing is not None and not (type(slug) is str and slug in self.existing)

    def may_be_in(self, content: bytes) -> bool:
        """Whether JSON text may contain the value; if not, it need not be decoded.

        A string occurs literally unless it contains escapes; a number can be written in many ways.
        """
        return self.number is not None or self.value.encode() in content or b"\\" in content

    def _says(self, document: object, path: Sequence[str]) -> bool:
        return within(document, path, self._is)

    def _is(self, document: object) -> bool:
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
        columns = (self.column, *dict(self.values), *dict(self.texts), "_kafka_partition", "_offset")
        return [name for name in columns if name is not None]

    def filter(self) -> BooleanExpression | None:
        """Predicate that every matching row fulfils, for file pruning; None: no file can be pruned."""
        if self.column is None or (typed := self._typed()) is None:
            return None
        predicate: BooleanExpression = EqualTo(self.column, typed)  # type: ignore[call-arg,arg-type]
        for name, _ in self.texts:
            predicate = Or(predicate, NotNull(name))  # type: ignore[call-arg,arg-type]
        return predicate

    def mask(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Which rows of a file match; columns may be missing from the file."""
        matches = pa.array([False] * rows.num_rows, pa.bool_())
        typed = self._typed()
        if self.column in rows.schema.names and typed is not None:
            column = rows.column(self.column)
            equal = pc.equal(column, pa.scalar(typed).cast(column.type, safe=False))
            matches = pc.or_(matches, pc.fill_null(equal, False))
        for name, steps in self.values:
            if name in rows.schema.names:
                values, within = rows.column(name).to_pylist(), self.path[steps:]
                matches = pc.or_(
                    matches, pa.array([self._says(value, within) for value in values], pa.bool_())
                )
        for name, steps in self.texts:
            if name in rows.schema.names:
                matches = pc.or_(matches, self._in_text(rows.column(name), self.path[steps:]))
        return pc.and_(matches, self._covered(rows))

    def _typed(self) -> str | int | float | None:
        """The value in its column's type; None: the column cannot hold it."""
        number = self.number
        if self.kind is Kind.STRING or number is None:
            return self.value
        if self.kind is Kind.DOUBLE:
            return _double(number)
        return int(number) if int(number) in INT64 else None

    def _in_text(self, texts: pa.Array, path: Sequence[str]) -> pa.BooleanArray:
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

    The field is a property that the schema declares, by its name in `data`, or by a path of names with dots
    between them to what is within it; `event_id` or `trace_id`; `context.` and a path. `data.` and a path is
    always a property, declared or not. A path goes through lists: any of their elements may have the value.
    A dot may also stand within a name: `user.email` covers {"user": {"email": …}} and {"user.email": …}.

    Raises:
        UserError: there is no such field, its type cannot be compared, or the value is not of its type.
    """
    name, equals, value = where.partition("=")
    if not equals or not name or not value:
        raise UserError("the condition is not <field>=<value>", fix="Write --where email=ada@example.org")
    if name in ENVELOPE:
        return Subject(dataset, name, value, (name,), Kind.STRING, ENVELOPE[name])
    path = tuple(name.split("."))
    if not all(path):
        raise UserError(f"{name!r} is not a path", fix="Write it as context.user.id")
    if path[0] == "context" and len(path) > 1:
        return Subject(dataset, name, value, path, Kind.STRING, texts=(("context", 1),))
    return _of_property(dataset, name, value)


def _of_property(dataset: Dataset, name: str, value: str) -> Subject:
    """The subject of events with the value in a property, or somewhere within it."""
    whole = name.removeprefix("data.")
    path = ("data", *whole.split("."))
    # A property whose own name has a dot makes no column: it is in `_extra`.
    column = next((column for column in dataset.columns if column.field == path[1]), None)
    within = path[2:]
    anything = name.startswith("data.")
    if column is None and not anything:
        names = ", ".join([*sorted(c.field for c in dataset.columns if c.type.kind in COMPARABLE), *ENVELOPE])
        raise UserError(
            f"the dataset declares no property {whole!r}",
            fix=f"Name one of {names}; or context.<path>; or data.<path> for a property "
            "that its schema does not declare",
            dataset=dataset.slug,
        )
    bounds = () if column is None else ((column.name, 2),)
    texts = (("_extra", 1), *(bounds if column and column.type.kind is Kind.JSON else ()))
    values = bounds if column and column.type.kind in (Kind.STRUCT, Kind.LIST) else ()
    declared = _declared(column.type, within) if column else None
    if column is None or declared is None or column.type.kind is Kind.JSON:
        # Undeclared properties, at any depth, are in `_extra`.
        return Subject(dataset, name, value, path, Kind.STRING, values=values, texts=texts)
    if declared.kind not in COMPARABLE:
        raise UserError(
            f"{whole!r} is a {declared.kind.value}: only strings, integers and numbers can be compared",
            fix="Name a member of it"
            if declared.kind is Kind.STRUCT
            else "Name another field, such as event_id",
            dataset=dataset.slug,
        )
    pattern = {Kind.LONG: _INTEGER, Kind.DOUBLE: _NUMBER}.get(declared.kind)
    if pattern is not None and not pattern.fullmatch(value):
        if anything:  # no row can match, but a dead letter can, or a row from before the declaration
            return Subject(dataset, name, value, path, Kind.STRING, values=values, texts=texts)
        form = "an integer" if pattern is _INTEGER else "a number"
        raise UserError(f"{name!r} is {form} and the value is not", fix="Write it as JSON would")
    typed = column.name if declared is column.type else None
    return Subject(dataset, name, value, path, declared.kind, typed, values, texts)


def _declared(kind: FieldType, steps: Sequence[str]) -> FieldType | None:
    """The declared type at a path within a value, or of its elements; None: undeclared."""
    while kind.kind is Kind.LIST and kind.item is not None:
        kind = kind.item
    if kind.kind is Kind.JSON or not steps:
        return kind
    member = dict(kind.fields).get(steps[0]) if kind.kind is Kind.STRUCT else None
    return member and _declared(member, steps[1:])


def within(document: object, path: Sequence[str], equals: Callable[[object], bool]) -> bool:
    """Whether decoded JSON has a value at a path, through lists."""
    if type(document) is list:
        return any(within(item, path, equals) for item in document)
    if path:
        return type(document) is dict and any(
            within(document[name], path[steps:], equals) for steps, name in prefixes(path) if name in document
        )
    return equals(document)


def number_of(value: str) -> int | float | None:
    """A value as a number, if it is one."""
    if _INTEGER.fullmatch(value):
        return int(value)
    return float(value) if _NUMBER.fullmatch(value) else None


def prefixes(path: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The names that a path can begin with, shortest first, each with its number of steps."""
    return ((steps, ".".join(path[:steps])) for steps in range(1, len(path) + 1))
