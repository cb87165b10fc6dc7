"""Manifests, decoded by Pulse's decoder, and by those of pyiceberg."""

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyiceberg.avro import file
from pyiceberg.avro.decoder import BinaryDecoder, StreamingBinaryDecoder
from pyiceberg.avro.decoder_fast import CythonBinaryDecoder
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from pulse_resources.iceberg.avro_decoder import CheckedDecoder

DECODERS: tuple[tuple[str, Callable[[bytes], BinaryDecoder]], ...] = (
    ("Pulse's", CheckedDecoder),
    ("pyiceberg's, compiled", CythonBinaryDecoder),
    ("pyiceberg's, in Python", StreamingBinaryDecoder),
)


def written(path: Path, entries: int, columns: int) -> ManifestFile:
    """A manifest of data files with statistics of all their columns."""
    fields = range(1, columns + 1)
    schema = Schema(*(NestedField(field, f"c{field}", LongType()) for field in fields))
    output = PyArrowFileIO().new_output(str(path))
    with write_manifest(2, UNPARTITIONED_PARTITION_SPEC, schema, output, 1, "deflate") as writer:
        for number in range(entries):
            data = DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=f"s3://bucket/namespace/table/data/{number:040d}.parquet",
                file_format=FileFormat.PARQUET,
                partition=Record(),
                record_count=100 * number,
                file_size_in_bytes=10_000 + number,
                column_sizes={field: 10 ** (field % 8) for field in fields},
                value_counts=dict.fromkeys(fields, 100),
                null_value_counts=dict.fromkeys(fields, 0),
                nan_value_counts={},
                lower_bounds=dict.fromkeys(fields, b"abcdefgh"),
                upper_bounds={field: b"x" * (field % 100) for field in fields},
                key_metadata=None,
                split_offsets=[4],
                sort_order_id=None,
                equality_ids=None,
                spec_id=0,
            )
            entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=1, data_file=data)
            writer.add_entry(entry)
    return writer.to_manifest_file()


def measure(manifest: ManifestFile, entries: int, times: int) -> Iterator[tuple[str, float]]:
    """Yield the median processor time per entry with each decoder, in microseconds."""
    before = file.new_decoder  # type: ignore[attr-defined]
    try:
        for name, decoder in DECODERS:
            file.new_decoder = decoder  # type: ignore[assignment, attr-defined]
            yield name, statistics.median(_seconds(manifest) for _ in range(times)) / entries * 1e6
    finally:
        file.new_decoder = before  # type: ignore[attr-defined]


def _seconds(manifest: ManifestFile) -> float:
    began = time.process_time()
    manifest.fetch_manifest_entry(PyArrowFileIO(), discard_deleted=False)
    return time.process_time() - began
