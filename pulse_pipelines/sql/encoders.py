"""Encoders of results: incremental by batch of rows, so that an oversized result is stopped early."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from pulse_pipelines.query.formats import ARROW, CSV, JSON, PARQUET, csv_header, csv_lines, plain

_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS


class Encoder(ABC):
    """Encodes batches of one schema."""

    @abstractmethod
    def add(self, batch: pa.RecordBatch) -> None:
        """Encode the next rows."""

    @abstractmethod
    def size(self) -> int:
        """Bytes so far, approximately."""

    @abstractmethod
    def end(self) -> bytes:
        """Finish, and return all bytes; to be called once."""


class _Json(Encoder):
    """`{"query_id": …, "snapshots": {…}, "columns": [{"name": …, "type": …}], "rows": [[…], …]}`."""

    def __init__(self, schema: pa.Schema, about: Mapping[str, object]) -> None:
        columns = [{"name": field.name, "type": str(field.type)} for field in schema]
        head = orjson.dumps({**about, "columns": columns})
        self._names = schema.names
        self._content = bytearray(head[:-1] + b',"rows":[')
        self._first = True

    @override
    def add(self, batch: pa.RecordBatch) -> None:
        rows = [dict(zip(self._names, row, strict=True)) for row in zip(*_values(batch), strict=True)]
        if rows:
            self._content += b"" if self._first else b","
            self._content += orjson.dumps(rows, default=plain, option=_OPTIONS)[1:-1]
            self._first = False

    @override
    def size(self) -> int:
        return len(self._content)

    @override
    def end(self) -> bytes:
        return bytes(self._content + b"]}")


class _Csv(Encoder):
    def __init__(self, schema: pa.Schema, _: Mapping[str, object]) -> None:
        self._content = bytearray(csv_header(schema.names))

    @override
    def add(self, batch: pa.RecordBatch) -> None:
        self._content += csv_lines(batch.columns)

    @override
    def size(self) -> int:
        return len(self._content)

    @override
    def end(self) -> bytes:
        return bytes(self._content)


class _Arrow(Encoder):
    def __init__(self, schema: pa.Schema, _: Mapping[str, object]) -> None:
        self._sink = pa.BufferOutputStream()
        self._writer = self._opened(schema)

    def _opened(self, schema: pa.Schema) -> "pa.ipc.RecordBatchStreamWriter | pq.ParquetWriter":
        return pa.ipc.new_stream(self._sink, schema)

    @override
    def add(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    @override
    def size(self) -> int:
        return int(self._sink.tell())

    @override
    def end(self) -> bytes:
        self._writer.close()
        return bytes(self._sink.getvalue().to_pybytes())


class _Parquet(_Arrow):
    @override
    def _opened(self, schema: pa.Schema) -> "pa.ipc.RecordBatchStreamWriter | pq.ParquetWriter":
        return pq.ParquetWriter(self._sink, schema, compression="zstd")


ENCODERS: Mapping[str, type[Encoder]] = {JSON: _Json, CSV: _Csv, ARROW: _Arrow, PARQUET: _Parquet}
"""Encoders by media type, the default first."""


def encoder(media_type: str, schema: pa.Schema, about: Mapping[str, object]) -> Encoder:
    """Create an encoder for rows of a schema.

    Args:
        about: metadata of the query, included where the format has a place for it.
    """
    made: Encoder = ENCODERS[media_type](schema, about)  # type: ignore[call-arg]
    return made


def _values(batch: pa.RecordBatch) -> list[list[object]]:
    return [column.to_pylist() for column in batch.columns]
