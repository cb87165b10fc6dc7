"""Candidate files of a batch, changed before they land: other rows, or columns that fit a moved table."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.states import state_keys
from pulse_pipelines.tables import arrow_columns, parquet_files, rewrite_file
from pulse_pipelines.tables.rewrite_file import Rewrite
from pulse_pipelines.tables.written_files import CandidateFile
from pulse_resources import object_store


def read_rows(dataset: Dataset, candidate: CandidateFile) -> pa.Table:
    """The rows of a candidate, as it was written. Raises OSError: the object store failed."""
    with object_store.file_system().open_input_file(object_store.key(candidate.path)) as source:
        return pq.read_table(source).cast(arrow_columns.arrow_schema(dataset.table_schema))


def with_rows(dataset: Dataset, candidate: CandidateFile, rows: pa.Table) -> CandidateFile:
    """A candidate of these rows instead, in a file beside it. Raises OSError: the object store failed."""
    path = candidate.path.removesuffix(".parquet") + f"-{parquet_files.token()}.parquet"
    written, content = parquet_files.encode(dataset, candidate.day, path, rows)
    object_store.put(path, content)
    return state_keys.with_frame(dataset, written, rows)


def fit_schema(candidates: Sequence[CandidateFile], schema: Schema) -> tuple[CandidateFile, ...]:
    """The candidates as a table of this schema can take them: written again where a column was replaced.

    Raises:
        OSError: the object store failed.
    """
    return tuple(_fit(candidate, schema) for candidate in candidates)


def _fit(file: CandidateFile, schema: Schema) -> CandidateFile:
    if not rewrite_file.stale(file.metrics.value_counts, schema):
        return file
    again = rewrite_file.rewrite(Rewrite(file.path, file.bytes, schema.model_dump_json()))
    return replace(file, path=again.path, bytes=again.bytes, metrics=again.metrics)
