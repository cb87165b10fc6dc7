"""Partitions and bounds by which DuckDB would wrongly leave out files: these files are read.

DuckDB 1.5 computes which partition a value of a condition is in, and skips the others. It errs for days and
months of timestamps before 1970, which it rounds towards 1970 (Iceberg: towards the past), and for buckets of
UUIDs, which it hashes otherwise; and it fails at truncated decimals. Rows would be missing without a word.

It also skips files by the bounds of their columns. NaN, its largest number, is in no bounds.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import duckdb
from pyiceberg.partitioning import PartitionField
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import BucketTransform, DayTransform, MonthTransform, TruncateTransform
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    UUIDType,
)

from pulse_pipelines.sql import manifests

_TIMESTAMPS = frozenset({TimestampType, TimestamptzType, TimestampNanoType, TimestamptzNanoType})

_FLOATS = ("FLOAT", "DOUBLE")
"""DuckDB's types that have NaN."""


def misjudges(metadata: TableMetadata) -> bool:
    """Whether a table is partitioned, or was, in a way that DuckDB never judges correctly."""
    return any(
        (isinstance(field.transform, BucketTransform) and UUIDType in kinds)
        or (isinstance(field.transform, TruncateTransform) and DecimalType in kinds)
        for _, _, field, kinds in _fields(metadata)
    )


def timestamp_fields(metadata: TableMetadata) -> list[tuple[int, int]]:
    """Partition fields that are days or months of timestamps: the ids of their specs, and their positions."""
    return [
        (spec_id, position)
        for spec_id, position, field, kinds in _fields(metadata)
        if isinstance(field.transform, DayTransform | MonthTransform) and not kinds.isdisjoint(_TIMESTAMPS)
    ]


def may_have_nan(metadata: TableMetadata) -> bool:
    """Whether a table has, or had, floating-point numbers."""
    return any(
        isinstance(schema.find_type(number), FloatType | DoubleType)
        for schema in metadata.schemas
        for number in schema.field_ids
    )


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


def without_bounds(database: duckdb.DuckDBPyConnection, scan: str) -> tuple[str, bool]:
    """What follows the `*` of a SELECT, so that no condition meets the bounds of floating-point columns.

    DuckDB skips files by conditions on a column itself, and not by those on an expression.

    Returns a clause, empty without such columns, and whether objects have floating-point members, whose
    conditions still do.

    Raises:
        duckdb.Error: the table cannot be opened.
    """
    described = database.execute(f"DESCRIBE SELECT * FROM {scan}").fetchall()  # noqa: S608 - of `create_view`
    columns = [(str(name).replace('"', '""'), str(kind)) for name, kind, *_ in described]
    replaced = ", ".join(
        f'CASE WHEN isnan("{name}") THEN \'nan\'::{kind} ELSE "{name}" END AS "{name}"'
        for name, kind in columns
        if kind in _FLOATS
    )
    nested = any(
        kind.startswith("STRUCT(") and not kind.endswith("]") and any(number in kind for number in _FLOATS)
        for _, kind in columns
    )
    return (f" REPLACE ({replaced})" if replaced else ""), nested


def _fields(metadata: TableMetadata) -> Iterator[tuple[int, int, PartitionField, set[type[IcebergType]]]]:
    """Partition fields of all specs: the id of the spec, the position in it, the field, the source's types.

    The schemas are read once, not for each field: both may be thousands.
    """
    kinds: dict[int, set[type[IcebergType]]] = defaultdict(set)
    for schema in metadata.schemas:
        for number in schema.field_ids:
            kinds[number].add(type(schema.find_type(number)))
    for spec in metadata.partition_specs:
        for position, field in enumerate(spec.fields):
            yield spec.spec_id, position, field, kinds.get(field.source_id, set())


def _is_negative(manifest: Mapping[str, Any], position: int) -> bool:
    """Whether the lower bound of a manifest's partitions is below zero, or is not there to tell."""
    bounds = manifest.get("partitions")
    if not isinstance(bounds, list) or len(bounds) <= position or not isinstance(bounds[position], dict):
        return True
    lower = bounds[position].get("lower_bound")
    if lower is None:  # all of its partitions are null
        return not bounds[position].get("contains_null")
    return len(lower) != struct.calcsize("<i") or struct.unpack("<i", lower)[0] < 0
