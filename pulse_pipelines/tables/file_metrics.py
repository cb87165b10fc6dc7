"""Column statistics of a Parquet file for its manifest entry, from the file's footer.

pyiceberg computes the same in about a millisecond per file, mostly overhead: with thousands of small files
in a batch, that is the larger part of writing them. A test compares the two.
"""

import struct
from collections.abc import Sequence
from datetime import date, timedelta
from functools import lru_cache

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import DataFileStatistics, parquet_path_to_id_mapping
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from pulse_pipelines.domain.moments import EPOCH_DAY
from pulse_pipelines.tables.written_files import Metrics

TRUNCATED = 16
"""Characters of a string's bound: Iceberg's default."""
_BEFORE_SURROGATES, _AFTER_SURROGATES, _LAST = "\ud7ff", "\ue000", "\U0010ffff"

_PACK = {
    "INT64": struct.Struct("<q").pack,
    "INT32": struct.Struct("<i").pack,
    "DOUBLE": struct.Struct("<d").pack,
    "BOOLEAN": struct.Struct("<?").pack,
}


def day_of(file: DataFile) -> date:
    """The UTC day of a data file's rows, from its partition."""
    return EPOCH_DAY + timedelta(days=file.partition[0])


@lru_cache(maxsize=4096)
def _field_ids(table_schema: str) -> dict[str, int]:
    return parquet_path_to_id_mapping(Schema.model_validate_json(table_schema))


def of_footer(table_schema: str, footer: pq.FileMetaData) -> Metrics:
    """Sizes, counts and bounds by field id; all row groups together.

    Args:
        table_schema: the Iceberg schema as JSON, by which the file was written.
        footer: of a file with one row group or more.
    """
    ids = _field_ids(table_schema)
    sizes: dict[int, int] = {}
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    bounds: dict[int, list[pq.Statistics]] = {}
    unbounded: set[int] = set()
    splits = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        first = group.column(0)
        splits.append(first.dictionary_page_offset or first.data_page_offset)
        for index in range(group.num_columns):
            column = group.column(index)
            field = ids[column.path_in_schema]
            sizes[field] = sizes.get(field, 0) + column.total_compressed_size
            values[field] = values.get(field, 0) + column.num_values
            statistics = column.statistics
            if statistics is None:
                unbounded.add(field)
                continue
            nulls[field] = nulls.get(field, 0) + (statistics.null_count or 0)
            top_level = "." not in column.path_in_schema  # elements of lists have no bounds
            if top_level and statistics.has_min_max and _has_bounds(statistics):
                bounds.setdefault(field, []).append(statistics)
            elif statistics.null_count != column.num_values:
                unbounded.add(field)
    lowest: dict[int, bytes] = {}
    highest: dict[int, bytes] = {}
    for field in bounds.keys() - unbounded:
        lowest[field], high = _bounds(bounds[field])
        if high is not None:
            highest[field] = high
    return Metrics(sizes, values, nulls, {}, lowest, highest, tuple(splits))


def _has_bounds(statistics: pq.Statistics) -> bool:
    """Whether the column's type is one whose bounds Pulse can encode; other types get no bounds."""
    return statistics.physical_type in _PACK or statistics.logical_type.type == "STRING"


def _bounds(groups: Sequence[pq.Statistics]) -> tuple[bytes, bytes | None]:
    if pack := _PACK.get(groups[0].physical_type):
        return pack(min(g.min_raw for g in groups)), pack(max(g.max_raw for g in groups))
    low, high = min(g.min for g in groups), max(g.max for g in groups)
    upper = text_above(high, TRUNCATED)
    return low[:TRUNCATED].encode(), None if upper is None else upper.encode()


def text_above(text: str, length: int) -> str | None:
    """The upper bound of a text: the text itself, or of a longer one a text of this length above it.

    None: there is none. PyIceberg increments the last character, also U+D7FF: the next one is half of
    a surrogate pair, which UTF-8 lacks.
    """
    if len(text) <= length:
        return text
    for end in range(length, 0, -1):
        if text[end - 1] != _LAST:
            above = _AFTER_SURROGATES if text[end - 1] == _BEFORE_SURROGATES else chr(ord(text[end - 1]) + 1)
            return text[: end - 1] + above + text[end:length]
    return None


def bound_texts(statistics: DataFileStatistics) -> None:
    """Bound what pyiceberg collected of columns of text by `text_above`, before pyiceberg does."""
    for column in statistics.column_aggregates.values():
        if isinstance(column.current_max, str) and column.trunc_length is not None:
            column.current_max = text_above(column.current_max, column.trunc_length)


def data_file(path: str, day: date, rows: int, size: int, metrics: Metrics) -> DataFile:
    """The manifest entry of a Parquet file with rows of one day."""
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record((day - EPOCH_DAY).days),
        record_count=rows,
        file_size_in_bytes=size,
        column_sizes=dict(metrics.column_sizes),
        value_counts=dict(metrics.value_counts),
        null_value_counts=dict(metrics.null_value_counts),
        nan_value_counts=dict(metrics.nan_value_counts),
        lower_bounds=dict(metrics.lower_bounds),
        upper_bounds=dict(metrics.upper_bounds),
        split_offsets=list(metrics.split_offsets),
        sort_order_id=None,
        spec_id=0,
        equality_ids=None,
        key_metadata=None,
    )
