"""Formats: rows of files, as JSON has them, each with its line. What is no row is told, and not left out."""

import csv
import gzip
import io
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pulse_pipelines.domain.pipe_sources import Files, Format
from pulse_pipelines.pipes.files import parquet_types
from pulse_resources.errors import UserError

LONGEST_LINE = 4 * 1024 * 1024
ROWS = 1_000
"""Of a Parquet file, that are in memory at a time."""
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Row(NamedTuple):
    """A row, or what stands where one should be."""

    line: int
    """Number of its line, or of the row in a Parquet file; from 1."""
    values: Mapping[str, Any] | None
    text: bytes = b""
    why: str = ""
    """Why it is none."""


def rows(stream: BinaryIO, files: Files, schema: Mapping[str, Any], name: str) -> Iterator[Row]:
    """Rows of a file.

    Args:
        schema: JSON Schema of the entities; it tells the types of what CSV holds as text.

    Raises:
        UserError: the file is no such file, or has not the columns of the key.
    """
    try:
        if files.format is Format.PARQUET:
            yield from _parquet(stream, files)
            return
        if name.endswith(".gz"):
            stream = gzip.GzipFile(fileobj=stream)  # type: ignore[assignment]
        yield from _ndjson(stream) if files.format is Format.NDJSON else _csv(stream, files, schema)
    except (gzip.BadGzipFile, zlib.error, EOFError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(
            f"the file is damaged, or of another format: {type(error).__name__}", file=name
        ) from None


def schema(stream: BinaryIO, files: Files, name: str) -> Mapping[str, Any] | None:
    """JSON Schema of a file that says its columns; None: only its rows show it. Raises UserError."""
    if files.format is Format.PARQUET:
        with _on_disk(stream) as local:
            try:
                found = pq.ParquetFile(local).schema_arrow
            except (pa.ArrowInvalid, OSError) as error:
                raise UserError(f"the file is no Parquet file: {type(error).__name__}", file=name) from None
        _check(found.names, files)
        return parquet_types.schema(found)
    if files.format is Format.CSV:
        if name.endswith(".gz"):
            stream = gzip.GzipFile(fileobj=stream)  # type: ignore[assignment]
        header: list[str] = next(_records(stream), [])
        _check(header, files)
        return {"type": "object", "properties": {each: {"type": ["string", "null"]} for each in header}}
    return None


def _ndjson(stream: BinaryIO) -> Iterator[Row]:
    line = 0
    while text := stream.readline(LONGEST_LINE):
        line += 1
        whole = text.endswith(b"\n") or len(text) < LONGEST_LINE
        while not whole:
            rest = stream.readline(LONGEST_LINE)
            whole = rest.endswith(b"\n") or not rest
            if whole:
                yield Row(line, None, text, f"the line has more than {LONGEST_LINE:,} bytes")
                text = b""
        if not text.strip():
            continue
        try:
            yield Row(line, _object.decode(text))
        except msgspec.DecodeError as error:
            yield Row(line, None, text, f"the line is no JSON object: {error}")


def _records(stream: BinaryIO) -> Iterator[Any]:
    """Records of a CSV file; the reader goes on after one that is none."""
    csv.field_size_limit(LONGEST_LINE)
    text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")

    def lines() -> Iterator[str]:
        while line := text.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise UserError(f"a line of the file has more than {LONGEST_LINE:,} characters")
            yield line

    return csv.reader(lines(), strict=True)


def _csv(stream: BinaryIO, files: Files, schema: Mapping[str, Any]) -> Iterator[Row]:
    records: Any = _records(stream)
    try:
        header: list[str] = next(records, [])
    except csv.Error as error:
        raise UserError(f"the file has no header: {error}") from None
    _check(header, files)
    forms = [_form(schema, name) for name in header]
    while True:
        line = records.line_num + 1
        try:
            record = next(records, None)
        except csv.Error as error:
            yield Row(line, None, b"", f"the line is no CSV: {error}")
            continue
        if record is None:
            return
        if not record:
            continue
        if len(record) != len(header):
            why = f"the line has {len(record)} values, and the header {len(header)}"
            yield Row(line, None, ascii(record).encode(), why)
            continue
        told = zip(header, forms, record, strict=True)
        yield Row(line, {name: form(text) for name, form, text in told if text})


def _form(schema: Mapping[str, Any], column: str) -> Callable[[str], Any]:
    """What a text of a column is: JSON, where its type is none of text."""
    declared = schema.get("properties", {}).get(column)
    kind = declared.get("type") if isinstance(declared, Mapping) else None
    kinds = {kind} if isinstance(kind, str) else set(kind or ())
    return str if "string" in kinds or not kinds - {"null"} else _as_json


def _as_json(text: str) -> Any:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text  # the schema refuses it
    return msgspec.Raw(text.strip().encode())


def _parquet(stream: BinaryIO, files: Files) -> Iterator[Row]:
    with _on_disk(stream) as local, pq.ParquetFile(local, memory_map=False) as file:
        _check(file.schema_arrow.names, files)
        forms = {each.name: parquet_types.form(each.type) for each in file.schema_arrow}
        line = 0
        for batch in file.iter_batches(batch_size=ROWS):
            for index in range(batch.num_rows):
                line += 1
                try:
                    values = {
                        name: form(batch.column(place)[index].as_py())
                        for place, (name, form) in enumerate(forms.items())
                    }
                except (OverflowError, ValueError) as error:  # a date beyond the year 9999
                    yield Row(line, None, b"", f"the row has a value that is none: {error}")
                    continue
                yield Row(line, {name: value for name, value in values.items() if value is not None})


def _on_disk(stream: BinaryIO) -> Any:
    """A copy of a file in a temporary one: Parquet is read from its end."""
    found = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    shutil.copyfileobj(stream, found, 2**20)
    found.seek(0)
    return found


def _check(columns: Sequence[str], files: Files) -> None:
    if len(set(columns)) != len(columns) or not all(columns):
        raise UserError("two columns of the file have one name, or one has none")
    if not all(each.isprintable() for each in columns):
        raise UserError("a column of the file has a name that is no text")
    if odd := [each for each in columns if each.startswith("_")]:
        raise UserError(
            f"the column {odd[0]!r} begins with _, and such properties of entities are not stored",
            fix="Rename it in the source",
        )
    if missing := [each for each in files.key if each not in columns]:
        raise UserError(f"the file has no column {', '.join(missing)}, which the key names")
