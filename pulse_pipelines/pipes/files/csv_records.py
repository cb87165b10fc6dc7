"""CSV: records with the lines that hold them, and parsers of cells by the dataset's schema."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import msgspec

from pulse_pipelines.domain.schemas.columns import Kind, columns
from pulse_pipelines.pipes.rows import EXCERPT_BYTES
from pulse_resources.errors import UserError

_OF_JSON = (Kind.LONG, Kind.DOUBLE, Kind.BOOLEAN, Kind.STRUCT, Kind.LIST)


class Records(Iterator[list[str]]):
    """Records of a CSV file, with the lines of the last one; it continues after an invalid one.

    Args:
        longest: characters of a line, and of a cell.

    Raises:
        csv.Error: a record is invalid; the next one may be read.
        UserError: a line is too long.
    """

    def __init__(self, stream: BinaryIO, longest: int) -> None:
        csv.field_size_limit(longest)
        self._longest = longest
        text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
        self._source = self._lines(text)
        self._reader = csv.reader(self._source, strict=True)
        self._start: list[str] = []
        self._room = 0
        self._number = 0
        self._line = self._end = ""

    def __next__(self) -> list[str]:
        self._start.clear()
        self._room = EXCERPT_BYTES
        try:
            record = next(self._reader)
        except csv.Error:
            self._read_rest()
            raise
        self._end = self._end or self._line[-1:]
        if self._read_rest():
            raise csv.Error("a carriage return is not in quotes")
        return record

    def _read_rest(self) -> bool:
        """Read on to the line feed, and return whether anything was before it.

        A carriage return alone ends no line if the header ended with a line feed. A program may write two of
        them before a line feed.
        """
        if self._end != "\n" or not self._line.endswith("\r"):
            return False
        line = next(self._source, "")
        is_more = line not in {"", "\r\n"}
        while line and not line.endswith("\n"):
            line = next(self._source, "")
        return is_more

    @property
    def read_lines(self) -> int:
        """Lines that were read."""
        return self._number

    @property
    def text(self) -> bytes:
        """The lines of the last record as they are in the file; of many, the first ones."""
        return "".join(self._start).encode(errors="surrogateescape")

    def _lines(self, text: io.TextIOWrapper) -> Iterator[str]:
        while line := text.readline(self._longest):
            if len(line) == self._longest:
                raise UserError(f"a line of the file has more than {self._longest:,} characters")
            self._number, self._line = self._number + 1, line
            if self._room > 0:
                self._start.append(line[: self._room])
                self._room -= len(line)
            yield line


def parsers(schema: Mapping[str, Any], header: Sequence[str]) -> list[Callable[[str], Any]]:
    """The parser of each column's cells: JSON, unless the column's type is text."""
    kinds = {column.field: column.type.kind for column in columns(schema)}
    return [_parser(schema, name, kinds.get(name)) for name in header]


def _parser(schema: Mapping[str, Any], column: str, kind: Kind | None) -> Callable[[str], Any]:
    declared = schema.get("properties", {}).get(column)
    of_type = declared.get("type") if isinstance(declared, Mapping) else None
    types = {of_type} if isinstance(of_type, str) else set(of_type or ())
    if not types:  # it may have its type behind a choice or a reference
        return _as_json if kind in _OF_JSON else str
    return str if "string" in types or not types - {"null"} else _as_json


def _as_json(text: str) -> Any:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text  # the schema refuses it
    return msgspec.Raw(text.strip().encode())
