"""The Iceberg table of a dataset: physical columns, typed declared fields, and its partitioning."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    BooleanType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.schemas.columns import PARTITION_FIELD, Column, FieldType, Kind
from pulse_pipelines.domain.table_columns import JSON_TEXT, TEXT, doc as doc_of
from pulse_pipelines.tables.column_types import SCALARS

UPDATED, HASH, IS_DELETED = "_updated", "_hash", "_is_deleted"
"""Columns that only logs of entities have; Iceberg keeps the name `_deleted` for itself."""
_PHYSICAL: tuple[tuple[str, IcebergType, bool, str], ...] = (
    ("id", StringType(), True, "event_id: unique in this dataset"),
    ("tenant_id", StringType(), True, "owner of the row"),
    ("dataset_id", StringType(), True, "dataset of the row"),
    ("timestamp", TimestamptzType(), True, "when the event happened, by its sender"),
    ("ingested_at", TimestamptzType(), True, "when the broker accepted the event"),
    ("context", StringType(), False, "context of the event, JSON text"),
    ("trace_id", StringType(), False, "trace that the event belongs to"),
    ("schema_version", IntegerType(), True, "version of the schema that it was validated by"),
    ("_batch", StringType(), True, "batch that landed the row"),
    ("_kafka_partition", IntegerType(), True, "Kafka partition of the event"),
    ("_offset", LongType(), True, "Kafka offset of the event"),
)
_OF_ENTITIES: tuple[tuple[str, IcebergType, bool, str], ...] = (
    (UPDATED, LongType(), True, "place of the version in the log, from 1"),
    (HASH, StringType(), False, "content hash, hexadecimal; null where the entity is deleted"),
    (IS_DELETED, BooleanType(), True, "whether the entity is deleted"),
)
_EXTRA = ("_extra", StringType(), False, "properties that the schema does not declare, JSON text")
PULSE_DOCS = frozenset((TEXT, JSON_TEXT, *(doc for *_, doc in (*_PHYSICAL, *_OF_ENTITIES, _EXTRA))))
"""Pulse's descriptions of its own columns."""
_TIMESTAMP_ID = next(i for i, field in enumerate(_PHYSICAL, 1) if field[0] == "timestamp")

PARTITIONED_BY_DAY = PartitionSpec(
    PartitionField(source_id=_TIMESTAMP_ID, field_id=1000, transform=DayTransform(), name=PARTITION_FIELD)
)
_ROW_GROUP = "write.parquet.row-group-size-bytes"
PROPERTIES = {
    "write.parquet.compression-codec": "zstd",
    "write.metadata.previous-versions-max": "20",
    "write.metadata.delete-after-commit.enabled": "false",
    # For files that Spark writes, in compactions: about as many rows in a row group as in our own files.
    _ROW_GROUP: str(16 * 1024 * 1024),
    # A compaction's commit merges the manifests of the appends before it, which saves rewriting them apart.
    "commit.manifest.min-count-to-merge": "4",
}


def table_properties(of: str) -> dict[str, str]:
    """The properties of the table of a dataset of a kind."""
    return PROPERTIES | ({_ROW_GROUP: str(4 * 1024 * 1024)} if of == DatasetKind.ENTITIES else {})


def table_schema(columns: Iterable[Column], of: str = DatasetKind.EVENTS) -> Schema:
    """The schema of a new table: physical columns, then the declared ones, then `_extra`.

    Args:
        of: the kind of the dataset.
    """
    physical = (*_PHYSICAL, *_OF_ENTITIES) if of == DatasetKind.ENTITIES else _PHYSICAL
    ids = count(len(physical) + 1)
    fields = [
        NestedField(field_id, name, kind, required=required, doc=doc)
        for field_id, (name, kind, required, doc) in enumerate(physical, 1)
    ]
    name, kind, required, doc = _EXTRA
    extra = NestedField(next(ids), name, kind, required=required, doc=doc)
    for column in columns:
        field_id = next(ids)
        fields.append(_declared(field_id, column, ids))
    return Schema(*fields, extra)


@dataclass(frozen=True)
class Evolved:
    schema: Schema
    replaced: frozenset[str]
    """Columns whose type changed. They have new field ids: Iceberg (v2) has no promotion of long to double,
    and engines must not read the longs of old files as the new column."""


def evolve(schema: Schema, columns: Iterable[Column], last_id: int) -> Evolved:
    """The table's schema once it follows a newer, compatible version of the dataset's schema.

    Args:
        schema: of the table as it is.
        columns: all that the newer version declares (see `domain.schemas.compatibility`).
        last_id: the highest field id ever assigned in the table.
    """
    ids = count(last_id + 1)
    declared = {column.name: column for column in columns}
    fields: list[NestedField] = []
    replaced = set()
    for field in schema.fields:
        column = declared.pop(field.name, None)
        if column is None:  # a physical column
            fields.append(field)
        elif _retyped(field.field_type, column.type):
            replaced.add(field.name)
            fields.append(_declared(next(ids), column, ids))
        else:
            grown = _grown(field.field_type, column.type, ids)
            fields.append(NestedField(field.field_id, field.name, grown, doc=_described(field, column)))
    added = [_declared(next(ids), column, ids) for column in declared.values()]
    extra = fields.pop()  # it stays the last
    return Evolved(Schema(*fields, *added, extra), frozenset(replaced))


def _retyped(before: IcebergType, kind: FieldType) -> bool:
    if isinstance(before, StructType):
        members = dict(kind.fields)
        return any(_retyped(field.field_type, members[field.name]) for field in before.fields)
    if isinstance(before, ListType) and kind.item is not None:
        return _retyped(before.element_type, kind.item)
    return before != SCALARS[kind.kind].iceberg


def _grown(before: IcebergType, kind: FieldType, ids: "count[int]") -> IcebergType:
    """The same type with the added members, which get the next ids."""
    if isinstance(before, StructType):
        members = dict(kind.fields)
        existing = [
            NestedField(field.field_id, field.name, _grown(field.field_type, members.pop(field.name), ids))
            for field in before.fields
        ]
        added = (NestedField(next(ids), name, _iceberg_type(member, ids)) for name, member in members.items())
        return StructType(*existing, *added)
    if isinstance(before, ListType) and kind.item is not None:
        element = _grown(before.element_type, kind.item, ids)
        return ListType(before.element_id, element, element_required=False)
    return before


def _declared(field_id: int, column: Column, ids: "count[int]") -> NestedField:
    doc = doc_of(column.type.kind, column.description)
    return NestedField(field_id, column.name, _iceberg_type(column.type, ids), doc=doc)


def _described(field: NestedField, column: Column) -> str | None:
    """The `doc` of a column that stays. One of text without any keeps none: it was made before there were."""
    if isinstance(field.field_type, StringType):
        return doc_of(column.type.kind, column.description, field.doc) if field.doc else None
    return doc_of(column.type.kind, column.description)


def _iceberg_type(kind: FieldType, ids: "count[int]") -> IcebergType:
    if kind.kind is Kind.STRUCT:
        return StructType(
            *(NestedField(next(ids), name, _iceberg_type(member, ids)) for name, member in kind.fields)
        )
    if kind.kind is Kind.LIST and kind.item is not None:
        return ListType(next(ids), _iceberg_type(kind.item, ids), element_required=False)
    return SCALARS[kind.kind].iceberg
