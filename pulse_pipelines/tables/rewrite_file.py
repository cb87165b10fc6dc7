"""Rewriting of data files: fit their rows to the table's current schema, and leave out rows.

A move of the dataset to a newer schema may replace a column by one of another type (integer → number): then
its old files are rewritten, and so are files that a batch wrote before the move and lands after it. A file
that merely lacks added columns stays as it is: engines read them as null. An erasure rewrites files without
the erased rows.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import PYARROW_PARQUET_FIELD_ID_KEY as FIELD_ID
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from pulse_pipelines.tables import arrow_columns, file_metrics, parquet_files, widened
from pulse_pipelines.tables.written_files import Metrics
from pulse_resources import object_store
from pulse_resources.errors import Terminal

BATCH_ROWS = 65_536
"""Most rows in memory at a time, and in a row group of what is written; fewer where rows are large."""
BATCH_BYTES = 64 * 1024 * 1024
"""Maximum size of such rows, by the file's footer."""


@dataclass(frozen=True)
class Rewrite:
    """A data file to rewrite."""

    path: str
    """URI of the Parquet file, which is left in place."""
    bytes: int
    table_schema: str
    """The Iceberg schema of the new file, as JSON."""
    without: frozenset[int] = frozenset()
    """Positions (`parquet_files.position`) of rows to leave out; each must be in the file."""


@dataclass(frozen=True)
class RewrittenFile:
    """The new file written from a data file."""

    source: str
    path: str
    rows: int
    bytes: int
    metrics: Metrics

    def instead_of(self, before: DataFile) -> DataFile:
        """The manifest entry that replaces `before`, the entry of the source."""
        day = file_metrics.day_of(before)
        return file_metrics.data_file(self.path, day, self.rows, self.bytes, self.metrics)


Rewriter = Callable[[Sequence[Rewrite]], Mapping[str, RewrittenFile]]
"""Rewrites files; returns the new files by the paths of their sources."""


def stale(field_ids: Collection[int], schema: Schema) -> bool:
    """Whether a file has a column that was replaced, and is no longer in the table.

    Args:
        field_ids: of the file's columns, by its footer or its statistics.
    """
    return not schema.field_ids.issuperset(field_ids)


def rewrite(file: Rewrite, pause: Callable[[], None] = lambda: None) -> RewrittenFile:
    """Rewrite a file to a new one beside it, a few thousand rows at a time.

    Columns are matched by name: a dataset's column is never renamed or dropped.

    Args:
        pause: called between pieces of the work.

    Raises:
        Terminal: a row to leave out is not in the file, or no row would be left.
        OSError: the object store failed.
    """
    store, schema = object_store.file_system(), arrow_columns.arrow_schema(file.table_schema)
    path = f"{file.path.removesuffix('.parquet')}-{parquet_files.token()}.parquet"
    collected: list[pq.FileMetaData] = []
    written = 0
    with (
        store.open_input_file(object_store.key(file.path)) as content,
        store.open_output_stream(object_store.key(path), compression=None) as sink,
    ):
        parquet = pq.ParquetFile(content)
        expected = parquet.metadata.num_rows - len(file.without)
        with parquet_files.parquet_writer(sink, schema, expected, collected) as writer:
            for batch in parquet.iter_batches(rows_at_a_time(parquet.metadata)):
                rows = _without(batch, file.without)
                if rows.num_rows:
                    writer.write_table(fitted(rows, schema))
                    written += rows.num_rows
                pause()
        size = sink.tell()
    if written != expected or not written:
        raise Terminal(f"{written:,} rows are left of a data file, and not {expected:,}", file=file.path)
    metrics = file_metrics.of_footer(file.table_schema, collected[0])
    return RewrittenFile(file.path, path, written, size, metrics)


def rows_at_a_time(footer: pq.FileMetaData) -> int:
    """Rows of a file to have in memory at a time: BATCH_ROWS, or fewer where they are large."""
    size: int = sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
    rows: int = footer.num_rows
    return max(1, min(BATCH_ROWS, BATCH_BYTES * rows // max(size, 1)))


def _without(batch: pa.RecordBatch, positions: frozenset[int]) -> pa.RecordBatch:
    if not positions:
        return batch
    offsets = parquet_files.positions(batch)
    return batch.filter(pc.invert(pc.is_in(offsets, pa.array(list(positions), pa.int64()))))


def field_ids(path: str) -> frozenset[int]:
    """The field ids of a file's columns at the top, from its footer."""
    with object_store.file_system().open_input_file(object_store.key(path)) as content:
        schema = pq.read_schema(content)
    return frozenset(int(field.metadata[FIELD_ID]) for field in schema)


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Rows of a file as rows of another schema of its table: missing columns are null, others are cast.

    A number is a double, and an integer that it cannot hold becomes the nearest; `_extra` keeps its digits.
    """
    extra = widened.extra_column(batch, schema)
    arrays = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if field.name == widened.EXTRA and extra is not None:
            arrays.append(extra.cast(field.type))
        elif index < 0:
            arrays.append(pa.nulls(batch.num_rows, field.type))
        else:
            arrays.append(batch.column(index).cast(field.type, safe=False))
    return pa.Table.from_arrays(arrays, schema=schema)
