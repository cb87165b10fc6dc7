"""The columns that a schema declares: their names and types, by the rule of docs/column-types.md."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field as field_of
from enum import StrEnum
from typing import Any

from pulse_pipelines.domain.schemas.bundle import bundled
from pulse_pipelines.domain.schemas.shapes import FRACTION, Shapes, ValueShape
from pulse_pipelines.domain.schemas.subschemas import Subschema, dict_of, list_of, resolve
from pulse_resources.errors import UserError, printable

MAX_FIELDS = 2_000
"""Columns, and members of structs: references can multiply them without bound."""
MAX_TYPE_DEPTH = 32
"""Structs and lists between a column and its innermost value; deeper is JSON text."""
MAX_DESCRIPTION, MAX_DESCRIPTIONS = 300, 65_536
"""Characters of a column's description, and of those of all columns: each state of a table has them."""
MAX_REFERENCES = 8
"""References after each other that a description is looked for behind."""
COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,126}")
PHYSICAL = (
    "id",
    "tenant_id",
    "dataset_id",
    "timestamp",
    "ingested_at",
    "context",
    "trace_id",
    "schema_version",
    "_batch",
    "_kafka_partition",
    "_offset",
    "_extra",
)
METADATA = frozenset(
    (
        "_file",
        "_pos",
        "_deleted",
        "_spec_id",
        "_partition",
        "_row_id",
        "_last_updated_sequence_number",
        "_change_type",
        "_change_ordinal",
        "_commit_snapshot_id",
    )
)
"""Iceberg's metadata columns: Spark cannot read a table that has one of its own."""
PARTITION_FIELD = "timestamp_day"
"""The partition field of a dataset's table, of which Iceberg's Java library reads no column of this name."""
RESERVED = frozenset((*PHYSICAL, *METADATA, PARTITION_FIELD))
_RENAMED = "data_"


class Kind(StrEnum):
    STRING = "string"
    LONG = "long"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamptz"
    DATE = "date"
    STRUCT = "struct"
    LIST = "list"
    JSON = "json"
    """JSON text, for values without one column type."""


@dataclass(frozen=True)
class FieldType:
    kind: Kind
    fields: "tuple[tuple[str, FieldType], ...]" = ()
    """Members of a struct."""
    item: "FieldType | None" = None
    """Element type of a list."""

    def __str__(self) -> str:
        if self.kind is Kind.STRUCT:
            return f"struct<{', '.join(f'{name}: {member}' for name, member in self.fields)}>"
        if self.kind is Kind.LIST:
            return f"list<{self.item}>"
        return "JSON text" if self.kind is Kind.JSON else self.kind.value


JSON = FieldType(Kind.JSON)


@dataclass(frozen=True)
class Column:
    """A declared field: its name in the event's `data` and the column that holds it."""

    field: str
    name: str
    type: FieldType
    certain: bool = True
    """Whether every value that the schema accepts fits the type. False if a choice does not declare the field
    and accepts any value for it: then values are checked before they are stored."""
    description: str = field_of(default="", compare=False)
    """The schema's description of the field, for people: printable, at most `MAX_DESCRIPTION` characters."""


def columns(document: Mapping[str, Any]) -> tuple[Column, ...]:
    """The declared properties that get a column, in declared order.

    A property with a reserved name (in any case) is stored as `data_<name>`; a property whose name would need
    quotes in an engine stays in `_extra`.

    Raises:
        UserError: two properties would share a column, or there are more than `MAX_FIELDS`.
    """
    names = set(RESERVED)
    root = bundled(document)
    types, descriptions = _Types(), _descriptions(root)
    declared: list[Column] = []
    for field, shape in Shapes(root).of(root).members.items():
        if not COLUMN_NAME.fullmatch(field):
            continue
        name = f"{_RENAMED}{field}" if field.lower() in RESERVED else field
        if name.lower() in names:
            raise UserError(
                f"two properties would share the column {name!r}",
                fix="Engines ignore case: rename one of them",
            )
        names.add(name.lower())
        if len(declared) == MAX_FIELDS:
            raise UserError(f"the schema declares more than {MAX_FIELDS:,} columns")
        declared.append(Column(field, name, *types.column(shape), description=descriptions.get(field, "")))
    return tuple(declared)


def property_of(column: str) -> str:
    """The property that a column holds by its name alone: `id` for `data_id`."""
    name = column.removeprefix(_RENAMED)
    return name if name.lower() in RESERVED else column


def widens(new: FieldType, old: FieldType) -> bool:
    """Whether integers of a column of type `old`, at any depth, become numbers."""
    if old.item is not None and new.item is not None:
        return widens(new.item, old.item)
    members = dict(new.fields)
    return (old.kind is Kind.LONG and new.kind is Kind.DOUBLE) or any(
        name in members and widens(members[name], member) for name, member in old.fields
    )


def _descriptions(root: Subschema) -> dict[str, str]:
    """The first description of each property: its own, or that of what it refers to."""
    texts: dict[str, str] = {}
    budget = MAX_DESCRIPTIONS
    pending, visited = [root], {id(root)}
    while pending:
        node = pending.pop(0)
        for name, member in dict_of(node.get("properties")).items():
            text = _description(member, root)
            if text and name not in texts and len(text) <= budget:
                texts[name] = text
                budget -= len(text)
        reference = node.get("$ref")
        alternatives = [resolve(reference, root)] if isinstance(reference, str) else []
        for keyword in ("allOf", "oneOf", "anyOf"):
            alternatives += list_of(node.get(keyword))
        for alternative in alternatives:
            if isinstance(alternative, dict) and id(alternative) not in visited:
                visited.add(id(alternative))
                pending.append(alternative)
    return texts


def _description(node: Any, root: Subschema) -> str:
    for _ in range(MAX_REFERENCES):
        if not isinstance(node, dict):
            break
        if isinstance(text := node.get("description"), str):
            words = " ".join(text[: 4 * MAX_DESCRIPTION].split())
            return printable(words if len(words) <= MAX_DESCRIPTION else words[: MAX_DESCRIPTION - 1] + "…")
        if not isinstance(reference := node.get("$ref"), str):
            break
        node = resolve(reference, root)
    return ""


_SCALARS = {
    frozenset(("string",)): Kind.STRING,
    frozenset(("integer",)): Kind.LONG,
    frozenset(("integer", FRACTION)): Kind.DOUBLE,
    frozenset((FRACTION,)): Kind.DOUBLE,
    frozenset(("boolean",)): Kind.BOOLEAN,
}
_FORMATS = {"date-time": Kind.TIMESTAMP, "date": Kind.DATE}


class _Types:
    """Makes column types from shapes. A small document can describe a type of any depth and size: parts that
    are too deep become JSON text, and so does a column with which all columns together would have more than
    `MAX_FIELDS` members."""

    def __init__(self) -> None:
        self._remaining_members = MAX_FIELDS
        self._types_by_shape: dict[tuple[int, int], tuple[FieldType, int]] = {}

    def column(self, shape: ValueShape) -> tuple[FieldType, bool]:
        """The type of a column, and whether it holds every value of the shape."""
        kind, size = self._of(shape, 0)
        if kind.kind is Kind.JSON or size > self._remaining_members:
            return JSON, True
        self._remaining_members -= size
        return kind, _certain(shape, kind)

    def _of(self, shape: ValueShape, depth: int) -> tuple[FieldType, int]:
        """The type, and the number of members within it."""
        key = (id(shape), depth)
        if (cached := self._types_by_shape.get(key)) is None:
            cached = self._types_by_shape[key] = self._new(shape, depth)
        return cached

    def _new(self, shape: ValueShape, depth: int) -> tuple[FieldType, int]:
        """JSON text if there is more than one type; timestamps and dates are typed only at the top level."""
        types = shape.types - {"null"}
        if not types and depth:
            return FieldType(Kind.STRING), 0  # only nulls: JSON text would make the whole struct JSON text
        if depth > MAX_TYPE_DEPTH:
            return JSON, 0
        if (scalar := _SCALARS.get(types)) is not None:
            formed = scalar is Kind.STRING and not depth
            return FieldType(_FORMATS.get(shape.format or "", scalar) if formed else scalar), 0
        if types == {"array"} and shape.item is not None:
            item, size = self._of(shape.item, depth + 1)
            return (JSON, 0) if item.kind is Kind.JSON else (FieldType(Kind.LIST, item=item), size)
        return self._struct(shape, depth) if types == {"object"} and shape.members else (JSON, 0)

    def _struct(self, shape: ValueShape, depth: int) -> tuple[FieldType, int]:
        distinct = {name.lower() for name in shape.members}
        if len(distinct) < len(shape.members) or not all(map(COLUMN_NAME.fullmatch, shape.members)):
            return JSON, 0
        size, members = len(shape.members), []
        for name, member in shape.members.items():
            kind, more = self._of(member, depth + 1)
            size += more
            if kind.kind is Kind.JSON or size > MAX_FIELDS:
                return JSON, 0
            members.append((name, kind))
        return FieldType(Kind.STRUCT, fields=tuple(members)), size


def _certain(shape: ValueShape, kind: FieldType) -> bool:
    if kind.item is not None and shape.item is not None:
        return shape.certain and _certain(shape.item, kind.item)
    return shape.certain and all(_certain(shape.members[name], member) for name, member in kind.fields)
