"""Data files of other engines, rewritten with their columns unchanged: as one file, or without some rows.

A new file has the columns of the old ones by Parquet's own schema: names, types, field ids and nesting. The
table's schema plays no part, so that a column which it added, renamed, widened or dropped since stays what it
is in the file, and engines read it as before. What cannot be written so is refused.
"""

import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    PYARROW_PARQUET_FIELD_ID_KEY,
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    _get_parquet_writer_kwargs,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import StringType

from pulse_pipelines.tables import parquet_files
from pulse_pipelines.tables.file_metrics import bound_texts
from pulse_pipelines.tables.orphan_files import Access
from pulse_pipelines.tables.reachable_files import plain
from pulse_pipelines.tables.rewrite_file import rows_at_a_time
from pulse_resources import object_store
from pulse_resources.errors import Terminal

PREFIX = "pulse-"
"""Prefix of the names of files that Pulse writes into such a table."""
GROUP_BYTES = 64 * 1024 * 1024
"""Size of a row group in memory, about."""
BUFFER = 1024 * 1024
THRIFT_STRING, THRIFT_LIST = 16 * 1024 * 1024, 200_000
"""Limits of what a footer may have; Arrow's own are a hundred times larger."""
LEAST, MOST = 1024, 64 * 1024 * 1024
"""Limits of sizes that a table's properties ask for."""
CODECS = frozenset({"zstd", "snappy", "gzip", "uncompressed"})
Shape = tuple[Any, ...]
"""A file's columns: their Parquet schema, and the field id of each, nested ones included."""
Drop = Callable[[pa.RecordBatch], pa.BooleanArray]
"""Which rows to leave out."""


class Unfit(Terminal):
    """A data file that Pulse does not write again."""


@dataclass(frozen=True)
class Rewritten:
    """The result of rewriting data files."""

    file: DataFile | None
    """The new one; None: no row was left."""
    dropped: int
    """Rows that were left out."""


@contextmanager
def opened(store: pafs.S3FileSystem, file: DataFile) -> Iterator[pq.ParquetFile]:
    """Open a data file.

    Raises:
        Unfit: it is no Parquet, encrypted, or not the file that its manifest describes.
        FileNotFoundError: it is gone.
        OSError, pa.ArrowException: it is damaged, or the object store failed.
    """
    if file.file_format != FileFormat.PARQUET:
        raise Unfit("a file is not Parquet")
    if file.key_metadata:
        raise Unfit("a file is encrypted")
    with store.open_input_file(object_store.key(plain(file.file_path))) as content:
        if content.size() != file.file_size_in_bytes:
            raise Unfit("a file has another size than its manifest says")
        parquet = pq.ParquetFile(
            content,
            buffer_size=BUFFER,
            thrift_string_size_limit=THRIFT_STRING,
            thrift_container_size_limit=THRIFT_LIST,
            page_checksum_verification=True,  # what is rewritten has new ones
        )
        if parquet.metadata.num_rows != file.record_count:
            raise Unfit("a file has another number of rows than its manifest says")
        yield parquet


def shape(footer: pq.FileMetaData) -> Shape:
    """The shape of a file. Raises Unfit: a column has no field id, or a type that is not kept."""
    schema = footer.schema
    columns = [schema.column(number) for number in range(len(schema))]
    if any(column.physical_type == "INT96" for column in columns):
        raise Unfit("a file has timestamps of Parquet's old type")
    return (
        tuple(_ids(field) for field in schema.to_arrow_schema()),
        tuple(
            (
                column.path,
                column.physical_type,
                *_meaning(column),
                column.max_definition_level,
                column.max_repetition_level,
            )
            for column in columns
        ),
    )


def _meaning(column: Any) -> tuple[str, int]:
    """The logical type of a Parquet column, and its length in bytes: equal for all ways to write it."""
    kind = orjson.loads(column.logical_type.to_json())
    if kind["Type"] == "Int" and (column.physical_type, kind["isSigned"]) == (f"INT{kind['bitWidth']}", True):
        kind = {"Type": "None"}  # DuckDB says what the physical type says already
    meaning = {name: value for name, value in kind.items() if "converted_type" not in name}
    return orjson.dumps(meaning).decode(), 0 if kind["Type"] == "Decimal" else column.length


def _ids(field: pa.Field) -> Shape:
    number = (field.metadata or {}).get(PYARROW_PARQUET_FIELD_ID_KEY)
    if number is None:
        raise Unfit("a file has columns without field ids")
    return (int(number), tuple(_ids(child) for child in children(field.type)))


def children(kind: pa.DataType) -> list[pa.Field]:
    """The fields within a type: members of a struct, elements of a list, keys and values of a map."""
    if pa.types.is_struct(kind):
        return [kind.field(number) for number in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [kind.value_field]
    return []


def write_again(
    by: Access,
    files: Sequence[DataFile],
    table: TableMetadata,
    drop: Drop | None = None,
    alive: Callable[[], None] = lambda: None,
) -> Rewritten:
    """Write the rows of files of one shape and partition to a new file, beside the first of them.

    Args:
        by: opens the table's folder alone.
        table: its properties say how to write, and which statistics to keep.
        drop: tells which rows to leave out.
        alive: called before each piece of the work; may raise.

    Raises:
        Unfit: the new file would not be the same; it is left behind, unreferenced.
        OSError, pa.ArrowException, MemoryError: a file is damaged, or the object store failed.
        ValueError, OverflowError: a property, or a value, is none that statistics can be made of.
    """
    first = files[0].file_path
    path = f"{first.rpartition('/')[0]}/{PREFIX}{uuid.uuid4()}.parquet"
    collected: list[pq.FileMetaData] = []
    dropped, store = 0, by.store
    with opened(store, files[0]) as parquet:
        file_shape = shape(parquet.metadata)
        schema = parquet.schema_arrow.remove_metadata()
    with store.open_output_stream(object_store.key(plain(path)), compression=None) as sink:
        options = _options(table.properties, file_shape)
        writer = pq.ParquetWriter(sink, schema, metadata_collector=collected, **options)
        with parquet_files.closed(writer):
            for group in _row_groups(_batches(store, files, file_shape, schema, alive), drop):
                dropped += group.dropped
                if group.rows.num_rows:
                    writer.write_table(group.rows, _rows_of_group(table.properties))
        size = sink.tell()
    footer = collected[0]
    rows = sum(file.record_count for file in files) - dropped
    if footer.num_rows != rows or shape(footer) != file_shape:
        raise Unfit("a file has columns that would not be written as they are")
    if not rows:
        object_store.delete([plain(path)], by.key)
        return Rewritten(None, dropped)
    order = files[0].sort_order_id if len(files) == 1 else None  # several are not sorted as one
    return Rewritten(_data_file(path, files[0], order, size, footer, file_shape, table), dropped)


def _batches(
    store: pafs.S3FileSystem,
    files: Sequence[DataFile],
    expected: Shape,
    schema: pa.Schema,
    alive: Callable[[], None],
) -> Iterator[pa.RecordBatch]:
    """All rows of the files, as Arrow has those of the first; Arrow's types of the same columns differ."""
    for file in files:
        with opened(store, file) as parquet:
            if shape(parquet.metadata) != expected:
                raise Unfit("a file has other columns than those beside it")
            for batch in parquet.iter_batches(rows_at_a_time(parquet.metadata), use_threads=False):
                alive()
                arrays = [
                    column if column.type == field.type else column.cast(field.type)
                    for column, field in zip(batch.columns, schema, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True)
class _Group:
    rows: pa.Table
    dropped: int


def _row_groups(batches: Iterator[pa.RecordBatch], drop: Drop | None) -> Iterator[_Group]:
    batches_of_group: list[pa.RecordBatch] = []
    size = dropped = 0
    for batch in batches:
        remaining = batch if drop is None else batch.filter(pc.invert(drop(batch)))
        dropped += batch.num_rows - remaining.num_rows
        batches_of_group.append(remaining)
        size += remaining.nbytes
        if size >= GROUP_BYTES:
            yield _Group(pa.Table.from_batches(batches_of_group), dropped)
            batches_of_group, size, dropped = [], 0, 0
    if batches_of_group:
        yield _Group(pa.Table.from_batches(batches_of_group), dropped)


def _options(properties: Mapping[str, str], file_shape: Shape) -> dict[str, Any]:
    """Options of Arrow's writer by the table's properties, within limits."""
    declared = {name: value for name, value in properties.items() if name.startswith("write.parquet.")}
    if str(declared.get(TableProperties.PARQUET_COMPRESSION)).lower() not in CODECS:
        declared.pop(TableProperties.PARQUET_COMPRESSION, None)
        declared.pop(TableProperties.PARQUET_COMPRESSION_LEVEL, None)
    else:
        declared[TableProperties.PARQUET_COMPRESSION] = declared[TableProperties.PARQUET_COMPRESSION].lower()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of options that pyiceberg does not know
        options = _get_parquet_writer_kwargs(declared)
    for name in ("data_page_size", "dictionary_pagesize_limit", "write_batch_size"):
        options[name] = _limited(options[name])
    decimals = {kind for _, kind, logical, *_ in file_shape[1] if '"Decimal"' in logical}
    # The types in the file are compared with those of the sources: here only their widths are lost.
    return options | {"store_schema": False, "store_decimal_as_integer": bool(decimals & {"INT32", "INT64"})}


def _rows_of_group(properties: Mapping[str, str]) -> int:
    limit = properties.get(TableProperties.PARQUET_ROW_GROUP_LIMIT)
    return _limited(int(limit or TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT))


def _limited(number: int) -> int:
    return max(LEAST, min(number, MOST))


def _data_file(
    path: str,
    like: DataFile,
    order: int | None,
    size: int,
    footer: pq.FileMetaData,
    file_shape: Shape,
    table: TableMetadata,
) -> DataFile:
    """The manifest entry of a new file, of the same partition as another one."""
    leaves = [number for field in file_shape[0] for number in _leaves(field)]
    nothing = MetricsMode(MetricModeTypes.NONE)
    dropped = {number: StatisticsCollector(number, StringType(), nothing, "") for number in leaves}
    statistics = data_file_statistics_from_parquet_metadata(
        footer,
        dropped | compute_statistics_plan(table.schema(), table.properties),
        dict(zip((column[0] for column in file_shape[1]), leaves, strict=True)),
    )
    bound_texts(statistics)
    data_file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=like.partition,
        file_size_in_bytes=size,
        sort_order_id=order,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
    data_file.spec_id = like.spec_id
    return data_file


def _leaves(field: Shape) -> list[int]:
    number, within = field
    return [leaf for child in within for leaf in _leaves(child)] or [number]
