"""The Iceberg table of a dataset: physical columns, typed declared fields, and its partitioning."""

from collections.abc import Iterable
from itertools import count

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from pulse_pipelines.domain.schema import Column, FieldType, Kind

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
_EXTRA = ("_extra", StringType(), False, "properties that the schema does not declare, JSON text")
_TIMESTAMP_ID = next(i for i, field in enumerate(_PHYSICAL, 1) if field[0] == "timestamp")

PARTITIONED_BY_DAY = PartitionSpec(
    PartitionField(source_id=_TIMESTAMP_ID, field_id=1000, transform=DayTransform(), name="timestamp_day")
)
PROPERTIES = {
    "write.parquet.compression-codec": "zstd",
    "write.metadata.previous-versions-max": "20",
    "write.metadata.delete-after-commit.enabled": "false",
}
_SCALARS: dict[Kind, IcebergType] = {
    Kind.STRING: StringType(),
    Kind.LONG: LongType(),
    Kind.DOUBLE: DoubleType(),
    Kind.BOOLEAN: BooleanType(),
    Kind.TIMESTAMP: TimestamptzType(),
    Kind.DATE: DateType(),
    Kind.JSON: StringType(),
}


def table_schema(columns: Iterable[Column]) -> Schema:
    """The schema of a new table: physical columns, then the declared ones, then `_extra`."""
    ids = count(len(_PHYSICAL) + 1)
    fields = [
        NestedField(field_id, name, kind, required=required, doc=doc)
        for field_id, (name, kind, required, doc) in enumerate(_PHYSICAL, 1)
    ]
    name, kind, required, doc = _EXTRA
    extra = NestedField(next(ids), name, kind, required=required, doc=doc)
    for column in columns:
        field_id = next(ids)
        fields.append(NestedField(field_id, column.name, _iceberg_type(column.type, ids)))
    return Schema(*fields, extra)


def _iceberg_type(kind: FieldType, ids: "count[int]") -> IcebergType:
    if kind.kind is Kind.STRUCT:
        return StructType(
            *(NestedField(next(ids), name, _iceberg_type(member, ids)) for name, member in kind.fields)
        )
    if kind.kind is Kind.LIST and kind.item is not None:
        return ListType(next(ids), _iceberg_type(kind.item, ids), element_required=False)
    return _SCALARS[kind.kind]
