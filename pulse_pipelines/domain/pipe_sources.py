"""Files and feeds as sources of pipes. A tenant names places below an address, never the address."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from pulse_resources.errors import UserError

SOURCE = re.compile(r"[a-z][a-z0-9]{0,62}")
LONGEST_PATH = 500
_SEGMENT = re.compile(r"(?!\.+\Z)[A-Za-z0-9_.=@,~ +-]*")
"""A segment of a path without what URLs, object stores or file systems interpret: `..`, `%`, `?`, `:` ..."""
_WILD = "*"


class Format(StrEnum):
    """How a file holds rows."""

    NDJSON = "ndjson"
    CSV = "csv"
    PARQUET = "parquet"


_ENDINGS = {
    ".ndjson": Format.NDJSON,
    ".jsonl": Format.NDJSON,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
}


def source_name(name: str) -> str:
    """Check the name of an address. Raises UserError."""
    if not SOURCE.fullmatch(name):
        raise UserError(
            "a source is a name of letters and digits: its address and credentials are kept elsewhere",
            fix="See docs/pipes.md",
        )
    return name


def timestamp_column(texts: Mapping[str, str]) -> str | None:
    """The column that makes rows events, from a definition; None: it names none. Raises UserError."""
    text = texts.get("timestamp")
    if text == "":
        raise UserError("timestamp names no column", fix="Leave it out, if rows are entities")
    return text


@dataclass(frozen=True)
class Files:
    """Files below a source's address."""

    source: str
    path: str
    """Relative to the address; `*` stands for any text without `/`."""
    format: Format
    key: tuple[str, ...]
    """Members or columns that identify a row."""
    timestamp: str | None = None
    """Member or column that makes each row an event of this moment; None: rows are entities."""

    mode: ClassVar[None] = None
    MEMBERS: ClassVar = {"source", "path", "format", "key", "timestamp"}
    NEEDED: ClassVar = ("source", "path")

    @classmethod
    def parse(cls, texts: Mapping[str, str], document: Mapping[str, Any]) -> "Files":
        """Parse its members, as texts and as they were sent. Raises UserError."""
        path, key = texts["path"], document.get("key") or ()
        _check_path(path, wild=True)
        name = path.removesuffix(".gz")
        format_name = texts.get("format") or next(
            (of for end, of in _ENDINGS.items() if name.endswith(end)), ""
        )
        try:
            form = Format(format_name)
        except ValueError:
            raise UserError(
                f"{format_name!r} is not a format of files"
                if format_name
                else "the path does not tell the files' format",
                fix=f"Set format to one of {', '.join(Format)}",
            ) from None
        if form is Format.PARQUET and path.endswith(".gz"):
            raise UserError("Parquet is compressed inside", fix="Name files without .gz")
        if not isinstance(key, list | tuple) or not all(isinstance(column, str) and column for column in key):
            raise UserError("key must be a list of columns")
        if not key and form is not Format.NDJSON:
            raise UserError("the pipe has no key", fix="Name the columns that identify a row: `key`")
        source, timestamp = source_name(texts["source"]), timestamp_column(texts)
        return cls(source, path, form, tuple(key) or ("_id",), timestamp)

    @property
    def is_text(self) -> bool:
        """Whether the files are text, which has a charset."""
        return self.format is not Format.PARQUET

    def __str__(self) -> str:
        return f"{self.source}/{self.path}"

    @property
    def document(self) -> dict[str, Any]:
        """Its members as they were given. Positions hold a digest of it: none is added to existing pipes."""
        members = {
            "source": self.source,
            "path": self.path,
            "format": self.format.value,
            "key": list(self.key),
        }
        return members | {"timestamp": self.timestamp} if self.timestamp else members

    def matches(self, name: str) -> bool:
        """Whether a file has a name that the path stands for."""
        patterns, parts = self.path.split("/"), name.split("/")
        return len(patterns) == len(parts) and all(map(fnmatchcase, parts, patterns))

    @property
    def prefix(self) -> str:
        """The common beginning of all names; the whole name, if there is one."""
        return self.path.partition(_WILD)[0]


@dataclass(frozen=True)
class Feed:
    """An endpoint of a service that serves entities and their changes as Pulse does."""

    source: str
    feed: str
    """Path of the endpoint below the address, beginning with `/`."""

    mode: ClassVar[None] = None
    MEMBERS: ClassVar = {"source", "feed"}
    NEEDED: ClassVar = ("source", "feed")

    @classmethod
    def parse(cls, texts: Mapping[str, str], document: Mapping[str, Any]) -> "Feed":
        """Parse its members, as texts and as they were sent. Raises UserError."""
        feed = texts["feed"]
        if not feed.startswith("/"):
            raise UserError(
                "the path of a feed begins with /", fix="For example /v1/datasets/planes/entities"
            )
        _check_path(feed[1:], wild=False)
        return cls(source_name(texts["source"]), feed)

    def __str__(self) -> str:
        return f"{self.source}{self.feed}"

    @property
    def document(self) -> dict[str, Any]:
        """Its members as they were given."""
        return {"source": self.source, "feed": self.feed}


def _check_path(path: str, *, wild: bool) -> None:
    segments = path.split("/")
    plain = [segment.replace(_WILD, "") if wild else segment for segment in segments]
    if (
        len(path) > LONGEST_PATH
        or not all(segments)
        or not all(map(_SEGMENT.fullmatch, plain))
        or any(segment.startswith(".") for segment in segments)
        or path.count(_WILD) > 8
    ):
        raise UserError(
            "the path is not a plain one below the source's address",
            fix="Use letters, digits, spaces and _ . = @ , ~ + - between single slashes"
            + (", and * for any text without a slash, other characters too" if wild else ""),
        )
