"""Partitions by which DuckDB leaves out files that have rows of a result: such a table is read whole.

DuckDB 1.5 computes which partition a value of a condition is in, and skips the others. It errs for days and
months of timestamps before 1970, which it rounds towards 1970 (Iceberg: towards the past), and for buckets of
UUIDs, which it hashes otherwise; and it fails at truncated decimals. Rows would be missing without a word.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import duckdb
from pyiceberg.partitioning import PartitionField
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import BucketTransform, DayTransform, MonthTransform, TruncateTransform
from pyiceberg.types import (
    DecimalType,
    IcebergType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    UUIDType,
)

from pulse_pipelines.sql import manifests

_TIMESTAMPS = (TimestampType, TimestamptzType, TimestampNanoType, TimestamptzNanoType)


def misjudges(metadata: TableMetadata) -> bool:
    """Whether a table is partitioned, or was, in a way that DuckDB never judges correctly."""
    return any(
        (isinstance(field.transform, BucketTransform) and isinstance(kind, UUIDType))
        or (isinstance(field.transform, TruncateTransform) and isinstance(kind, DecimalType))
        for _, _, field, kind in _fields(metadata)
    )


def timestamp_fields(metadata: TableMetadata) -> list[tuple[int, int]]:
    """Partition fields that are days or months of timestamps: the ids of their specs, and their positions."""
    return [
        (spec_id, position)
        for spec_id, position, field, kind in _fields(metadata)
        if isinstance(field.transform, DayTransform | MonthTransform) and isinstance(kind, _TIMESTAMPS)
    ]


def begins_before_1970(
    database: duckdb.DuckDBPyConnection, manifest_list: str, fields: Iterable[Sequence[int]]
) -> bool:
    """Whether a partition of one of the fields may be before 1970, by the bounds in a list of manifests.

    Args:
        manifest_list: its location.
        fields: as of `timestamp_fields`.

    Raises:
        duckdb.Error: the list cannot be read.
    """
    _, rows = manifests.read_list(database, manifest_list)
    return any(
        _is_negative(manifest, position)
        for manifest in rows
        for spec_id, position in fields
        if manifest.get("partition_spec_id") == spec_id
    )


def _fields(metadata: TableMetadata) -> Iterator[tuple[int, int, PartitionField, IcebergType]]:
    """Partition fields of all specs: the id of the spec, the position in it, the field, the source's type."""
    for spec in metadata.partition_specs:
        for position, field in enumerate(spec.fields):
            for schema in metadata.schemas:
                if field.source_id in schema.field_ids:
                    yield spec.spec_id, position, field, schema.find_type(field.source_id)


def _is_negative(manifest: Mapping[str, Any], position: int) -> bool:
    """Whether the lower bound of a manifest's partitions is below zero, or is not there to tell."""
    bounds = manifest.get("partitions")
    if not isinstance(bounds, list) or len(bounds) <= position or not isinstance(bounds[position], dict):
        return True
    lower = bounds[position].get("lower_bound")
    if lower is None:  # all of its partitions are null
        return not bounds[position].get("contains_null")
    return len(lower) != struct.calcsize("<i") or struct.unpack("<i", lower)[0] < 0
