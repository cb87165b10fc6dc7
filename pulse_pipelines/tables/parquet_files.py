"""Data files: Parquet files of rows of one day, their topic positions and their manifest entries."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.tables import file_metrics
from pulse_pipelines.tables.written_files import CandidateFile

Positions = npt.NDArray[np.int64]
"""Topic positions, see `position`."""
_PARTITION_SHIFT = 48  # offsets stay far below 2^48, partitions below 2^15
_PLAIN_COLUMNS = frozenset({"id", "_offset", "timestamp", "ingested_at"})
SMALL_FILE_ROWS = 200
"""Maximum rows of a file for which a candidate lists every position."""
ROW_GROUP = 122_880
"""Rows per row group: DuckDB's unit of reading, so that a preview reads only part of a large file."""
VERSIONS_GROUP = 20_480
"""Likewise for versions of entities: a page of a log, at any place in it, reads one row group or two."""
SMALL_FILE_ROWS = 10_000
"""Below this, setting up zstd for every column costs more than all other work of writing the file."""


def token() -> str:
    """A short random part of a file name, so that two attempts never write the same object."""
    return uuid.uuid4().hex[:12]


def encode(
    dataset: Dataset, day: date, path: str, rows: pa.Table, *, draft: bool = False
) -> tuple[CandidateFile, pa.Buffer]:
    """Encode rows of one day as Parquet; returns the candidate that describes the file, and its bytes.

    Args:
        draft: the file is read once, to be written again: cheap to encode rather than small.
    """
    collected: list[pq.FileMetaData] = []
    sink = pa.BufferOutputStream()
    with parquet_writer(sink, rows.schema, rows.num_rows, collected, draft=draft) as writer:
        writer.write_table(rows, row_group_size=VERSIONS_GROUP if dataset.of_entities else ROW_GROUP)
    content = sink.getvalue()
    return (
        CandidateFile(
            tenant_id=dataset.tenant_id,
            dataset_id=dataset.dataset_id,
            day=day,
            path=path,
            rows=rows.num_rows,
            bytes=content.size,
            metrics=file_metrics.of_footer(dataset.table_schema, collected[0]),
            offsets=_offset_bounds(rows),
            positions=frozenset(positions(rows).to_pylist()) if rows.num_rows <= SMALL_FILE_ROWS else None,
        ),
        content,
    )


@contextmanager
def parquet_writer(
    sink: Any, schema: pa.Schema, rows: int, collected: list[pq.FileMetaData], *, draft: bool = False
) -> Iterator[pq.ParquetWriter]:
    """A writer for a data file of about `rows` rows; it adds the footer to `collected`. See `encode`."""
    dictionary = [
        field.name
        for field in schema
        if pa.types.is_string(field.type) and field.name not in _PLAIN_COLUMNS and not draft
    ]
    writer = pq.ParquetWriter(
        sink,
        schema,
        compression="lz4" if draft else "snappy" if rows < SMALL_FILE_ROWS else "zstd",
        use_dictionary=dictionary,
        metadata_collector=collected,
        store_schema=False,
    )
    with closed(writer):
        yield writer


@contextmanager
def closed(writer: pq.ParquetWriter) -> Iterator[None]:
    """Close a writer of a file when the block ends; an error in the block stays the error that it is.

    Of a file that was not written to its end, closing raises another one: it has no footer to collect.
    """
    try:
        yield
    except BaseException:
        with suppress(Exception):
            writer.close()
        raise
    writer.close()


def position(partition: int, offset: int) -> int:
    """A topic position as one number, in the order of (partition, offset)."""
    return (partition << _PARTITION_SHIFT) + offset


def positions(rows: pa.Table | pa.RecordBatch) -> pa.ChunkedArray | pa.Array:
    """The topic position of each row."""
    partition = pc.shift_left(rows.column("_kafka_partition").cast(pa.int64()), _PARTITION_SHIFT)
    return pc.add(partition, rows.column("_offset"))


def by_partition(positions: Positions) -> dict[int, list[int]]:
    """The sorted offsets of positions, by partition."""
    ascending = np.sort(positions)
    partitions = ascending >> _PARTITION_SHIFT
    offsets = ascending - (partitions << _PARTITION_SHIFT)
    return {int(partition): offsets[partitions == partition].tolist() for partition in np.unique(partitions)}


def ends(positions: Positions) -> list[int]:
    """The offset after the last, by partition; 0 for a partition without positions."""
    last = {partition: offsets[-1] + 1 for partition, offsets in by_partition(positions).items()}
    return [last.get(partition, 0) for partition in range(max(last, default=-1) + 1)]


def _offset_bounds(rows: pa.Table) -> dict[int, tuple[int, int]]:
    partitions = rows.column("_kafka_partition").to_numpy()
    offsets = rows.column("_offset").to_numpy()
    bounds = {}
    for partition in np.unique(partitions):
        in_partition = offsets[partitions == partition]
        bounds[int(partition)] = (int(in_partition.min()), int(in_partition.max()))
    return bounds


def data_files(candidates: Sequence[CandidateFile]) -> list[DataFile]:
    """The manifest entries of candidates."""
    return [file_metrics.data_file(c.path, c.day, c.rows, c.bytes, c.metrics) for c in candidates]
