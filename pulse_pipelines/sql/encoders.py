"""Encoders of results: incremental by batch of rows, so that an oversized result is stopped early."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
from typing_extensions import override

from pulse_pipelines.domain.json_values import decoded, encoded
from pulse_pipelines.query.formats import (
    ARROW,
    CSV,
    JSON,
    PARQUET,
    SPREADSHEET,
    csv_line,
    csv_lines,
    no_formula,
)
from pulse_pipelines.sql.values import HUGEINT, Text, has, lacking_time, unfit, values


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
    """`{"query_id": …, "snapshots": {…}, "columns": [{"name": …, "type": …}], "rows": [{…}, …]}`."""

    def __init__(self, schema: pa.Schema, about: Mapping[str, object], text: Text) -> None:
        columns = [{"name": field.name, "type": str(field.type)} for field in schema]
        head = orjson.dumps({**about, "columns": columns})
        self._names, self._text = schema.names, text
        self._content = bytearray(head[:-1] + b',"rows":[')
        self._first = True

    @override
    def add(self, batch: pa.RecordBatch) -> None:
        rows = [
            dict(zip(self._names, row, strict=True)) for row in zip(*_values(batch, self._text), strict=True)
        ]
        if rows:
            self._content += b"" if self._first else b","
            self._content += encoded(rows)[1:-1]
            self._first = False

    @override
    def size(self) -> int:
        return len(self._content)

    @override
    def end(self) -> bytes:
        return bytes(self._content + b"]}")


class _Csv(Encoder):
    def __init__(self, schema: pa.Schema, _: Mapping[str, object], text: Text) -> None:
        self._content, self._text = bytearray(csv_line(map(self._cell, schema.names))), text

    def _cell(self, value: object) -> object:
        return value

    @override
    def add(self, batch: pa.RecordBatch) -> None:
        self._content += csv_lines(map(self._cell, column) for column in _values(batch, self._text))

    @override
    def size(self) -> int:
        return len(self._content)

    @override
    def end(self) -> bytes:
        return bytes(self._content)


class _Spreadsheet(_Csv):
    @override
    def _cell(self, value: object) -> object:
        cell: object = no_formula(value)
        return cell


class _Arrow(Encoder):
    def __init__(self, schema: pa.Schema, _: Mapping[str, object], __: Text) -> None:
        self._sink = pa.BufferOutputStream()
        self._writer = self._opened(schema)

    def _opened(self, schema: pa.Schema) -> "pa.ipc.RecordBatchStreamWriter | pq.ParquetWriter":
        return pa.ipc.new_stream(self._sink, schema)

    @override
    def add(self, batch: pa.RecordBatch) -> None:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if has(column.type, HUGEINT.equals):
                _check_digits(name, column)
            if (lacking := lacking_time(column)) is not None:
                raise unfit(name, column.type, lacking)
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
        for field in schema:
            if has(field.type, lambda kind: pt.is_interval(kind) or pt.is_union(kind)):
                raise unfit(field.name, field.type, "Parquet has no such type")
        return pq.ParquetWriter(self._sink, schema, compression="zstd")


ENCODERS: Mapping[str, type[Encoder]] = {
    JSON: _Json,
    CSV: _Csv,
    SPREADSHEET: _Spreadsheet,
    ARROW: _Arrow,
    PARQUET: _Parquet,
}
"""Encoders by media type, the default first."""


def encoder(media_type: str, schema: pa.Schema, about: Mapping[str, object], text: Text) -> Encoder:
    """Create an encoder for rows of a schema.

    Args:
        about: metadata of the query, included where the format has a place for it.
        text: of values that the format has no other form for.

    Raises:
        UserError: the format cannot have a column of such a type; also by `add`.
    """
    result_encoder: Encoder = ENCODERS[media_type](schema, about, text)  # type: ignore[call-arg]
    return result_encoder


def of_json(content: bytes) -> dict[str, Any]:
    """The document that the encoder of JSON made, with each number as exact as it was written."""
    document: dict[str, Any] = decoded(content, by_digits=False)
    if any("decimal" in column["type"] for column in document["columns"]):  # beyond integers and doubles
        document = decoded(content)
    return document


def _values(batch: pa.RecordBatch, text: Text) -> list[list[object]]:
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            columns.append(values(column, text))
        except (ValueError, ArithmeticError, pa.ArrowException) as error:
            raise unfit(name, column.type, str(error)) from error
    return columns


def _check_digits(name: str, column: pa.Array) -> None:
    """Raise UserError if a HUGEINT has more digits than its decimal: what a reader makes of it differs."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raise unfit(name, column.type, "it has a number of 39 digits") from None
