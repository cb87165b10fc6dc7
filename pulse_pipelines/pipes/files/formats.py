"""Formats: rows of files as JSON values, each with its line; an invalid row has the reason."""

import codecs
import csv
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pulse_pipelines.domain.charsets import LONGEST_MARK, MARKS
from pulse_pipelines.domain.pipe_sources import Files, Format
from pulse_pipelines.pipes import schema_inference
from pulse_pipelines.pipes.files import delta_texts, gzipped, older_times, parquet_types
from pulse_pipelines.pipes.files.csv_records import Records, parsers
from pulse_pipelines.pipes.rows import members
from pulse_resources.errors import UserError

LONGEST_LINE = 4 * 1024 * 1024
SAMPLE_BYTES = 16 * 1024 * 1024
"""Bytes of a file that are sampled for its schema."""
LARGEST = 4 * 1024**3
"""Bytes of a Parquet file that is read: each is copied to the disk."""
LARGEST_SAMPLED = 256 * 1024 * 1024
"""Bytes of the largest Parquet file that is read for its schema, in the process that serves others, too."""
_AS_UTF8 = "Write the file in UTF-8"
_SHOWN = 200
"""Characters of a fault that an error shows."""
ROWS = 1_000
"""Rows of a Parquet file that are in memory at a time."""


class TooLarge(UserError):  # noqa: N818 - reads as the fact it states
    """A Parquet file that is not copied to the disk."""


class Row(NamedTuple):
    """A row, or the text in the place of one."""

    line: int
    """Number of its line, or of the row in a Parquet file; from 1."""
    values: Mapping[str, Any] | None
    """None: it has none. An invalid row has those that can be read."""
    text: bytes = b""
    why: str = ""
    """Why it is invalid."""


def rows(stream: BinaryIO, files: Files, schema: Mapping[str, Any], name: str) -> Iterator[Row]:
    """Rows of a file.

    Args:
        schema: JSON Schema of the entities; it tells the types of what CSV holds as text.

    Raises:
        UserError: the file has another format, or lacks columns of the key.
    """
    with _damage_explained(name):
        if files.format is Format.PARQUET:
            yield from _parquet(stream, files)
        elif files.format is Format.NDJSON:
            yield from _ndjson(_utf8(gzipped.unpacked(stream, name)))
        else:
            yield from _csv(_utf8(gzipped.unpacked(stream, name)), files, schema)


def schema(stream: BinaryIO, files: Files, name: str) -> dict[str, Any] | None:
    """JSON Schema of a file's columns, or of its first rows; None if they show no property.

    Raises:
        UserError: the file has another format, or lacks columns of the key.
        TooLarge: it is not read here; a run may read it.
    """
    with _damage_explained(name):
        if files.format is Format.PARQUET:
            with _on_disk(stream, LARGEST_SAMPLED) as local:
                columns = _columns(local, files)
            return parquet_types.schema(columns)
        content = gzipped.unpacked(stream, name).read(SAMPLE_BYTES)
        head = _utf8(io.BytesIO(content))
        if files.format is Format.NDJSON:
            first = list(islice(_ndjson(head), schema_inference.SAMPLE))
            sample = [row.values for row in first if row.values is not None]
            if first and not sample and len(content) < SAMPLE_BYTES:
                raise UserError(f"the file has no row: line {first[0].line}: {first[0].why}")
            if files.timestamp and sample and not any(files.timestamp in row for row in sample):
                raise without_time(files, name)
            return schema_inference.schema(sample)
        header = _header(Records(head, LONGEST_LINE), files)
        return {"type": "object", "properties": {name: {"type": ["string", "null"]} for name in header}}


@contextmanager
def _damage_explained(name: str) -> Iterator[None]:
    """Errors name the file; those of a damaged one are errors of the user's."""
    try:
        yield
    except UserError as error:
        error.where.setdefault("file", name)
        raise
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(
            f"the file is damaged, or of another format: {str(error)[:_SHOWN]}", file=name
        ) from None


def _utf8(stream: BinaryIO) -> BinaryIO:
    """The stream, from its start. Raises UserError: its first bytes mark it as UTF-16 or UTF-32."""
    raw: Any = stream
    buffered = io.BufferedReader(raw, 2**20)
    if buffered.peek(LONGEST_MARK).startswith(MARKS):
        raise UserError("the file is not UTF-8: its first bytes mark it as UTF-16 or UTF-32", fix=_AS_UTF8)
    return buffered


def _ndjson(stream: BinaryIO) -> Iterator[Row]:
    line = 0
    while text := stream.readline(LONGEST_LINE):
        line += 1
        if line == 1:
            text = text.removeprefix(codecs.BOM_UTF8)
        whole = text.endswith(b"\n") or len(text) < LONGEST_LINE
        while not whole:
            remainder = stream.readline(LONGEST_LINE)
            whole = remainder.endswith(b"\n") or not remainder
            if whole:
                yield Row(line, None, text, f"the line has more than {LONGEST_LINE:,} bytes")
                text = b""
        if not text.strip():
            continue
        try:
            yield Row(line, members(text))
        except ValueError as error:
            yield Row(line, None, text, str(error))


def _csv(stream: BinaryIO, files: Files, schema: Mapping[str, Any]) -> Iterator[Row]:
    records = Records(stream, LONGEST_LINE)
    header = _header(records, files)
    forms = parsers(schema, header)
    while True:
        line = records.read_lines + 1
        try:
            record = next(records, None)
        except csv.Error as error:
            last = records.read_lines
            lines = "the line is" if last <= line else f"the lines {line} to {last} are"
            yield Row(line, None, records.text, f"{lines} not CSV: {error}")
            continue
        if record is None:
            return
        if not record:
            continue
        if len(record) != len(header):
            why = f"the line has {len(record)} values, and the header {len(header)}"
            yield Row(line, None, records.text, why)
            continue
        fields = zip(header, forms, record, strict=True)
        yield Row(line, {name: form(text) for name, form, text in fields if text})


def _header(records: Records, files: Files) -> list[str]:
    try:
        header: list[str] = next(records, [])
    except csv.Error as error:
        raise UserError(f"the file has no header: line {records.read_lines}: {error}") from None
    _check(header, files)
    return header


def _parquet(stream: BinaryIO, files: Files) -> Iterator[Row]:
    with _on_disk(stream, LARGEST) as local:
        schema = _columns(local, files)
        texts = {
            column.name
            for column in schema
            if pa.types.is_string(column.type) or pa.types.is_binary(column.type)
        }
        _check_texts(pq.ParquetFile(local, memory_map=False), texts)
        deltas = delta_texts.columns(pq.read_metadata(local), texts)
        # Of texts as they are stored: a megabyte may stand for each of a million rows.
        dictionaries = sorted(texts - deltas)
        file = pq.ParquetFile(
            local,
            memory_map=False,
            read_dictionary=dictionaries,
            coerce_int96_timestamp_unit=older_times.INT96_UNIT,
            page_checksum_verification=True,
        )
        types = parquet_types.annotated(schema, file.schema)
        forms = {name: parquet_types.form(kind) for name, kind in types.items()}
        line, digits = 0, older_times.int96_digits(local, file, ROWS)
        calendar = older_times.calendar_of_footer(file.metadata.metadata)
        for batch in _batches(file, delta_texts.ROWS if deltas else ROWS):
            columns = [_readable(column) for column in batch.columns]
            for index in range(batch.num_rows):
                line, more = line + 1, next(digits)
                values, why = {}, ""
                for column, (name, form) in zip(columns, forms.items(), strict=True):
                    try:
                        value = column[index].as_py()
                        if calendar is not None:
                            calendar.check(value)
                        value = older_times.with_digits(value, more[name]) if name in more else form(value)
                    except (OverflowError, ValueError) as error:  # a date beyond the year 9999
                        why = f"{name} has an invalid value: {error}"
                        continue
                    if value is not None:
                        values[name] = value
                yield Row(line, values, b"", why)


def _columns(local: Any, files: Files) -> pa.Schema:
    """The columns of a Parquet file. Raises UserError: it cannot be read, or lacks those of the key."""
    try:
        columns = pq.read_schema(local)
    except OSError as error:  # a damaged footer, or an encrypted one
        raise UserError(f"the file is not a Parquet file: {str(error)[:_SHOWN]}") from None
    _check(columns.names, files)
    for column in columns:
        if parquet_types.has_variant(column.type):
            raise UserError(
                f"the column {column.name} has the type VARIANT, whose values a pipe does not read",
                fix="Write the column as JSON text",
            )
    return columns


def _readable(column: pa.Array) -> pa.Array:
    kind = parquet_types.readable(column.type)
    return column if kind == column.type else column.cast(kind)


def _check_texts(file: pq.ParquetFile, texts: Set[str]) -> None:
    """Read a row of each group. Raises UserError: a text is encrypted; to ask Arrow how ends the process."""
    for group in range(file.num_row_groups if texts else 0):
        next(_batches(file, 1, row_groups=[group], columns=sorted(texts)), None)


def _batches(file: pq.ParquetFile, size: int, **chosen: Any) -> Iterator[pa.RecordBatch]:
    batches = file.iter_batches(batch_size=size, **chosen)
    while True:
        try:
            batch = next(batches, None)
        except OSError as error:  # a damaged page: the file is on the disk
            raise UserError(f"the file is damaged: {str(error)[:200]}") from None
        if batch is None:
            return
        yield batch


def _on_disk(stream: BinaryIO, most: int) -> Any:
    """A copy of a file on the disk: Parquet is read from its end. Raises TooLarge."""
    copy, room = tempfile.TemporaryFile(), most  # noqa: SIM115 - the caller closes it
    while piece := stream.read(2**20):
        room -= len(piece)
        if room < 0:
            copy.close()
            raise TooLarge(f"the Parquet file has more than {most:,} bytes", fix="Write it as several files")
        copy.write(piece)
    copy.seek(0)
    return copy


def _check(columns: Sequence[str], files: Files) -> None:
    for number, column in enumerate(columns, 1):
        if not column:
            raise UserError(f"column {number} of the file has no name")
        if (other := columns.index(column) + 1) < number:
            raise UserError(f"columns {other} and {number} of the file have one name: {column!a}")
        if not column.isprintable():
            raise UserError(
                f"column {number} of the file has a name with unprintable characters: {column!a}",
                fix="Write the file in UTF-8, and the name without control characters",
            )
    odd = [column for column in columns if column.startswith("_")]
    if odd and files.timestamp is None:
        raise UserError(
            f"the column {odd[0]!r} begins with _, and such properties of entities are not stored",
            fix="Rename it in the source",
        )
    if missing := [column for column in files.key if column not in columns]:
        shown = ", ".join(ascii(column) for column in columns)[:_SHOWN]
        raise UserError(
            f"the file has no column {', '.join(missing)}, which the key names: it has {shown or 'none'}",
            fix="Correct the key; CSV is separated by commas",
        )
    if files.timestamp and files.timestamp not in columns:
        raise without_time(files)


def without_time(files: Files, name: str | None = None) -> UserError:
    """The error of a file whose rows have no time."""
    where = {} if name is None else {"file": name}
    return UserError(f"the file has no column {files.timestamp}, which is the events' timestamp", **where)
