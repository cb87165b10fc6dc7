"""Rewriting a data file: its rows fitted to the table's schema as it is now.

A move of the dataset to a newer schema may replace a column by one of another type (integer → number). Its
old files are written again by then, and so are files that a batch wrote before the move and lands after it.
A file that merely lacks columns that were added is right as it is: engines read them as null.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import PYARROW_PARQUET_FIELD_ID_KEY as FIELD_ID
from pyiceberg.schema import Schema

from pulse_pipelines.tables import arrow_columns, file_metrics, parquet_files, rewrite_file
from pulse_pipelines.tables.written_files import CandidateFile, Metrics
from pulse_resources import object_store

BATCH_ROWS = 65_536
"""Rows in memory at a time, and in a row group of what is written."""


@dataclass(frozen=True)
class RewrittenFile:
    path: str
    rows: int
    bytes: int
    metrics: Metrics


def stale(field_ids: Collection[int], schema: Schema) -> bool:
    """Whether a file has a column that the table has no more: it was replaced.

    Args:
        field_ids: of the file's columns, by its footer or its statistics.
    """
    return not schema.field_ids.issuperset(field_ids)


def rewrite(source: str, table_schema: str) -> RewrittenFile:
    """Write a file's rows again beside it, by the schema given; holds a few thousand rows at a time.

    Columns are matched by name: a dataset's column never changes its name, and never loses it.

    Args:
        source: URI of the Parquet file, which stays as it is.
        table_schema: the Iceberg schema, as JSON.

    Raises:
        OSError: the object store failed.
    """
    store, schema = object_store.file_system(), arrow_columns.arrow_schema(table_schema)
    path = f"{source.removesuffix('.parquet')}-{parquet_files.token()}.parquet"
    collected: list[pq.FileMetaData] = []
    with (
        store.open_input_file(object_store.key(source)) as content,
        store.open_output_stream(object_store.key(path), compression=None) as sink,
    ):
        parquet = pq.ParquetFile(content)
        rows = parquet.metadata.num_rows
        with parquet_files.parquet_writer(sink, schema, rows, collected) as writer:
            for batch in parquet.iter_batches(BATCH_ROWS):
                writer.write_table(fitted(batch, schema))
        size = sink.tell()
    return RewrittenFile(path, rows, size, file_metrics.of_footer(table_schema, collected[0]))


def field_ids(path: str) -> frozenset[int]:
    """The field ids of a file's columns at the top, from its footer."""
    with object_store.file_system().open_input_file(object_store.key(path)) as content:
        schema = pq.read_schema(content)
    return frozenset(int(field.metadata[FIELD_ID]) for field in schema)


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Rows of a file as rows of another schema of its table: missing columns are null, others are cast."""
    arrays = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            arrays.append(pa.nulls(batch.num_rows, field.type))
        else:
            # Not "safe": a number is a double, and an integer that it cannot hold becomes the nearest.
            arrays.append(batch.column(index).cast(field.type, safe=False))
    return pa.Table.from_arrays(arrays, schema=schema)


def fit_candidates(candidates: Sequence[CandidateFile], schema: Schema) -> tuple[CandidateFile, ...]:
    """The candidates as a table of this schema can take them: written again where a column was replaced.

    Raises:
        OSError: the object store failed.
    """
    return tuple(_fit_candidate(candidate, schema) for candidate in candidates)


def _fit_candidate(file: CandidateFile, schema: Schema) -> CandidateFile:
    if not rewrite_file.stale(file.metrics.value_counts, schema):
        return file
    again = rewrite_file.rewrite(file.path, schema.model_dump_json())
    return replace(file, path=again.path, bytes=again.bytes, metrics=again.metrics)
