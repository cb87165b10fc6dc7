"""Files of the lake: candidate Parquet files and raw-zone objects, written side by side by a task.

Rows wait in a buffer until the task ends or the buffer is full, so that a (dataset, day) gets few,
large files. Encoding uses the core; uploads overlap it in threads.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from isal import isal_zlib

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.stages import metrics
from pulse_pipelines.stages.conform import RAW, days
from pulse_pipelines.stages.handles import CandidateFile, RawObject
from pulse_resources import object_store
from pulse_resources.faults import fail_point

UNRESOLVED = "_unresolved"
"""Stands in raw paths for the dataset of an event that names none which exists."""

COPY = "_copy"
"""Column that marks a copy of an earlier row while the files are written."""

UPLOADS = 8
_PARTITION_SHIFT = 48  # offsets stay far below 2^48, partitions below 2^15
_DICTIONARY_COLUMNS_LEFT_OUT = frozenset({"id", "_offset", "timestamp", "ingested_at"})
GZIP_LEVEL = 1
KNOWN_ROWS = 200
"""Rows up to which a candidate's handle names every position."""
ROW_GROUP = 122_880
"""Rows per row group: what DuckDB reads at a time, so a preview of a large file need not read it all."""
SMALL_FILE_ROWS = 10_000
"""Below this, setting zstd up for every column costs more than all the rest of writing the file."""


class LakeWriter:
    """Collects one tenant's rows and writes them as files; a context manager that waits for uploads.

    Args:
        tenant: whose prefix everything goes under.
        bucket: of the object store.
        stem: begins every file name; unique to the task attempt.
        drop_copies: leave rows out whose id an earlier row of the same buffer has.
        pause: called before each upload.
    """

    def __init__(
        self, tenant: Tenant, bucket: str, stem: str, *, drop_copies: bool, pause: Callable[[], None]
    ) -> None:
        self._tenant = tenant
        self._bucket = bucket
        self._stem = stem
        self._drop_copies = drop_copies
        self._pause = pause
        self._number = 0
        self._rows: dict[str, tuple[Dataset, list[pa.Table]]] = {}
        self._raw: dict[tuple[str, date], list[bytes]] = {}
        self._uploads = ThreadPoolExecutor(UPLOADS, thread_name_prefix="upload")
        self._pending: list[Future[None]] = []
        self.buffered_bytes = 0
        self.candidates: list[CandidateFile] = []
        self.copies: dict[UUID, list[int]] = {}
        """By dataset: positions of rows whose id an earlier row of the same buffer has. They are in no
        file; the gate finds them again and counts them."""
        self.raw_objects: list[RawObject] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self._uploads.shutdown(wait=True, cancel_futures=kind is not None)

    def add(self, dataset: Dataset, table: pa.Table) -> None:
        """Buffer conformed rows. Those that carry their raw line go to the raw zone, too."""
        self._rows.setdefault(dataset.slug, (dataset, []))[1].append(table)
        self.buffered_bytes += table.nbytes

    def add_raw(self, slug: str, received_ms: int, line: bytes) -> None:
        """Buffer the raw line of an event that is no row: its day is the day it was received."""
        day = datetime.fromtimestamp(received_ms / 1000, UTC).date()
        self._raw.setdefault((slug, day), []).append(line)
        self.buffered_bytes += len(line)

    def flush(self) -> None:
        """Write everything buffered and wait until the object store has it."""
        for dataset, tables in self._rows.values():
            self._write_rows(dataset, pa.concat_tables(tables))
        for (slug, day), lines in self._raw.items():
            self._put_raw(slug, day, len(lines), lines)
        self._rows.clear()
        self._raw.clear()
        self.buffered_bytes = 0
        for upload in self._pending:
            upload.result()
        self._pending.clear()

    def _write_rows(self, dataset: Dataset, rows: pa.Table) -> None:
        copies = _copies(rows) if self._drop_copies else None
        if copies is not None:
            rows = rows.append_column(COPY, copies)
            found = self.copies.setdefault(dataset.dataset_id, [])
            found.extend(positions(rows.filter(copies)).to_pylist())
        for day, part in _by_day(rows):
            fresh = part
            if RAW in part.column_names:
                lines = (_joined(chunk) for chunk in part.column(RAW).chunks)
                self._put_raw(dataset.slug, day, len(part), lines)
                fresh = part.drop_columns([RAW])
            if copies is not None:
                fresh = fresh.filter(pc.invert(part.column(COPY))).drop_columns([COPY])
            if len(fresh):
                self._put_candidate(dataset, day, fresh, len(part) - len(fresh))

    def _put_candidate(self, dataset: Dataset, day: date, rows: pa.Table, copies: int) -> None:
        location = self._tenant.table_location(self._bucket, dataset.slug, dataset.dataset_id)
        path = f"{location}/data/timestamp_day={day}/{self._name()}.parquet"
        candidate, content = encode(dataset, day, path, rows)
        self.candidates.append(replace(candidate, copies=copies))
        self._put(path, content)

    def _put_raw(self, slug: str, day: date, events: int, lines: "Iterable[bytes | pa.Buffer]") -> None:
        prefix = self._tenant.raw_prefix(self._bucket, slug)
        path = f"{prefix}/dt={day}/{self._name()}.jsonl.gz"
        packer = isal_zlib.compressobj(GZIP_LEVEL, isal_zlib.DEFLATED, 31)
        content = b"".join([*map(packer.compress, lines), packer.flush()])
        self.raw_objects.append(RawObject(self._tenant.tenant_id, path, slug, day, events, len(content)))
        self._put(path, content)

    def _put(self, path: str, content: "bytes | pa.Buffer") -> None:
        self._pause()
        if len(self._pending) >= 4 * UPLOADS:  # bounds what waits in memory
            self._pending.pop(0).result()
        self._pending.append(self._uploads.submit(put, path, content))

    def _name(self) -> str:
        self._number += 1
        return f"{self._stem}-{self._number}"


def put(uri: str, content: "bytes | pa.Buffer") -> None:
    """Write one object whole."""
    fail_point("files.before_put")
    # Bytes as they are: left to itself, Arrow would compress a .gz once more.
    with object_store.file_system().open_output_stream(object_store.key(uri), compression=None) as sink:
        sink.write(content)
    fail_point("files.after_put")


def token() -> str:
    """A short random name part: two attempts never write the same object."""
    return uuid.uuid4().hex[:12]


def encode(dataset: Dataset, day: date, path: str, rows: pa.Table) -> tuple[CandidateFile, pa.Buffer]:
    """Parquet bytes of rows of one day, and the candidate that describes them."""
    collected: list[pq.FileMetaData] = []
    sink = pa.BufferOutputStream()
    with parquet_writer(sink, rows.schema, rows.num_rows, collected) as writer:
        writer.write_table(rows, row_group_size=ROW_GROUP)
    content = sink.getvalue()
    return (
        CandidateFile(
            tenant_id=dataset.tenant_id,
            dataset_id=dataset.dataset_id,
            day=day,
            path=path,
            rows=rows.num_rows,
            bytes=content.size,
            metrics=metrics.of_footer(dataset.table_schema, collected[0]),
            offsets=_offset_bounds(rows),
            positions=frozenset(positions(rows).to_pylist()) if rows.num_rows <= KNOWN_ROWS else None,
        ),
        content,
    )


def parquet_writer(
    sink: Any, schema: pa.Schema, rows: int, collected: list[pq.FileMetaData]
) -> pq.ParquetWriter:
    """A writer of a data file of about this many rows; `collected` gets its footer."""
    dictionary = [
        field.name
        for field in schema
        if pa.types.is_string(field.type) and field.name not in _DICTIONARY_COLUMNS_LEFT_OUT
    ]
    return pq.ParquetWriter(
        sink,
        schema,
        compression="snappy" if rows < SMALL_FILE_ROWS else "zstd",
        use_dictionary=dictionary,
        metadata_collector=collected,
        store_schema=False,
    )


def position(partition: int, offset: int) -> int:
    """A topic position as one number, in the order of (partition, offset)."""
    return (partition << _PARTITION_SHIFT) + offset


def positions(rows: pa.Table) -> pa.ChunkedArray:
    """The topic position of each row."""
    partition = pc.shift_left(rows.column("_kafka_partition").cast(pa.int64()), _PARTITION_SHIFT)
    return pc.add(partition, rows.column("_offset"))


def _copies(rows: pa.Table) -> pa.ChunkedArray | None:
    """Marks every row whose id a row at an earlier position has, or None where there is none.

    Such a row cannot land, whatever the gate says of the first one: leaving it out here saves writing the
    file twice when events are re-delivered close together.
    """
    ids = rows.column("id")
    if pc.count_distinct(ids).as_py() == len(rows):
        return None
    at = positions(rows)
    first = pa.table({"id": ids, "at": at}).group_by("id").aggregate([("at", "min")])
    return pc.invert(pc.is_in(at, first.column("at_min").combine_chunks()))


def _by_day(rows: pa.Table) -> Iterator[tuple[date, pa.Table]]:
    """Rows of each day, in received order within it."""
    of_row = days(rows)
    if pc.min(of_row) == pc.max(of_row):
        yield of_row[0].as_py(), rows
        return
    order = pc.sort_indices(of_row)  # stable
    rows = rows.take(order)
    runs = pc.run_end_encode(of_row.take(order).combine_chunks())
    start = 0
    for day, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield day, rows.slice(start, end - start)
        start = end


def _joined(lines: pa.LargeBinaryArray) -> pa.Buffer:
    """The concatenation of a slice of a binary array, without a copy."""
    if not len(lines):
        return pa.py_buffer(b"")
    offsets = pa.Array.from_buffers(
        pa.int64(), len(lines) + 1, [None, lines.buffers()[1]], offset=lines.offset
    )
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return lines.buffers()[2].slice(first, last - first)


def _offset_bounds(rows: pa.Table) -> dict[int, tuple[int, int]]:
    partitions = rows.column("_kafka_partition").to_numpy()
    offsets = rows.column("_offset").to_numpy()
    bounds = {}
    for partition in np.unique(partitions):
        own = offsets[partitions == partition]
        bounds[int(partition)] = (int(own.min()), int(own.max()))
    return bounds
