"""Pipes: the definition of a pipe, from YAML. Its source or sink decides which members it has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.pipe_sources import Feed, Files, source_name, timestamp_column
from pulse_pipelines.domain.tenant import check_slug
from pulse_resources.errors import UserError

LONGEST_SQL = 20_000
"""Characters of a transform."""
APART = "\x1f"
"""Between a position, which people see, and the two parts of the form of the table that it is one of."""


def parted(position: str) -> tuple[str, str]:
    """A position as people see it, and the form, empty if it has none. A text as a cursor may have U+001F."""
    shown, *form = position.rsplit(APART, 2)
    return shown, APART.join(form)


class Mode(StrEnum):
    """How a pipe reads its table."""

    FULL = "full"
    """All rows each time; rows that are missing are deleted."""
    INCREMENTAL = "incremental"
    """Rows whose cursor is beyond the last position; all rows in the first run, and on request."""
    CHANGES = "changes"
    """Rows that changed or were deleted according to the source's log; all rows in the first run."""


@dataclass(frozen=True)
class PostgresTable:
    """A table of another Postgres."""

    source: str
    """Name of the source: its address and credentials are stored elsewhere (see `pipes.addresses`)."""
    table: str
    mode: Mode = Mode.FULL
    cursor: str | None = None
    """Column that increases with every change of a row."""
    overlap: str | None = None
    """Overlap with the previous run, before its last cursor: a number, or an interval in Postgres syntax."""
    key: tuple[str, ...] = field(default=())
    """Columns that identify a row; by default the primary key."""
    timestamp: str | None = None
    """Column that makes each row an event of this moment; None: rows are entities."""

    MEMBERS: ClassVar = {"source", "table", "mode", "cursor", "overlap", "key", "timestamp"}
    NEEDED: ClassVar = ("source", "table")

    @classmethod
    def parse(cls, texts: Mapping[str, str], document: Mapping[str, Any]) -> "PostgresTable":
        """Parse its members, as texts and as they were sent. Raises UserError."""
        key = document.get("key") or ()
        try:
            mode = Mode(texts.get("mode", Mode.FULL))
        except ValueError:
            raise UserError(f"{texts['mode']!r} is not a mode", fix=f"Say {' or '.join(Mode)}") from None
        if (mode is Mode.INCREMENTAL) != ("cursor" in texts):
            raise UserError("an incremental pipe needs a cursor, and no other pipe has one")
        if "overlap" in texts and "cursor" not in texts:
            raise UserError("an overlap needs a cursor")
        if not isinstance(key, list | tuple) or not all(isinstance(column, str) for column in key):
            raise UserError("key must be a list of columns")
        cursor, overlap, timestamp = texts.get("cursor"), texts.get("overlap"), timestamp_column(texts)
        if timestamp and mode is Mode.CHANGES:
            raise UserError(
                "rows with a timestamp become events, which are only appended: changes are not captured",
                fix="Read them by a cursor (mode: incremental) or as a whole (mode: full)",
            )
        source = source_name(texts["source"])
        return cls(source, texts["table"], mode, cursor, overlap, tuple(key), timestamp)

    def __str__(self) -> str:
        return f"{self.source}.{self.table}"

    @property
    def document(self) -> dict[str, Any]:
        """Its members as they were given."""
        return {
            "source": self.source,
            "table": self.table,
            "mode": self.mode.value,
            "cursor": self.cursor,
            "overlap": self.overlap,
            "key": list(self.key),
            "timestamp": self.timestamp,
        }


@dataclass(frozen=True)
class Transform:
    """A query over the latest state of datasets of entities of the same tenant."""

    transform: str
    """One SELECT of Spark SQL; `pipes.transforms` checks it."""

    mode: ClassVar[None] = None
    source: ClassVar[None] = None
    MEMBERS: ClassVar = {"transform"}
    NEEDED: ClassVar = ("transform",)

    @classmethod
    def parse(cls, texts: Mapping[str, str], document: Mapping[str, Any]) -> "Transform":
        """Parse its members, as texts and as they were sent. Raises UserError."""
        if len(texts["transform"]) > LONGEST_SQL:
            raise UserError(f"the transform has more than {LONGEST_SQL:,} characters")
        return cls(texts["transform"])

    def __str__(self) -> str:
        first, *more = self.transform.split("\n", 1)
        return first[:60] + (" ..." if more or len(first) > 60 else "")

    @property
    def document(self) -> dict[str, Any]:
        """Its members as they were given."""
        return {"transform": self.transform}


@dataclass(frozen=True)
class Sink:
    """An external target of a dataset of entities: a table of Postgres, or a service by HTTP."""

    source: str
    """Name of its address, which is kept where those of sources are (see `pipes.addresses`)."""
    table: str | None = None
    """Of Postgres; None: pages are pushed by HTTP."""
    create: bool = False
    """Whether a table that is not there is created."""
    subset: str | None = None
    """`<expression>=<value>`, to bring only the entities of this subset."""

    mode: ClassVar = None
    MEMBERS: ClassVar = {"to", "table", "create", "subset"}
    NEEDED: ClassVar = ("to",)

    @classmethod
    def parse(cls, texts: Mapping[str, str], document: Mapping[str, Any]) -> "Sink":
        """Parse its members, as texts and as they were sent. Raises UserError."""
        create = document.get("create") or False
        if type(create) is not bool:
            raise UserError("create must be true or false")
        if create and "table" not in texts:
            raise UserError("create needs a table")
        return cls(source_name(texts["to"]), texts.get("table"), create, texts.get("subset"))

    def __str__(self) -> str:
        return self.source if self.table is None else f"{self.source}.{self.table}"

    @property
    def document(self) -> dict[str, Any]:
        """Its members as they were given."""
        return {"to": self.source, "table": self.table, "create": self.create, "subset": self.subset}


@dataclass(frozen=True)
class Definition:
    """The definition of a pipe."""

    pipe: str
    dataset: str
    """That it brings; of a pipe with a sink the one that it reads."""
    other_end: PostgresTable | Files | Feed | Transform | Sink
    """Its other end: what it reads, or where it writes to."""
    every_seconds: int | None = None

    @property
    def delivers(self) -> bool:
        """Whether it copies its dataset to a sink."""
        return isinstance(self.other_end, Sink)

    @property
    def timestamp(self) -> str | None:
        """The column with the time of an event; None: it reads or delivers entities."""
        return self.other_end.timestamp if isinstance(self.other_end, PostgresTable | Files) else None

    @property
    def kind(self) -> DatasetKind:
        """The kind of its dataset."""
        return DatasetKind.EVENTS if self.timestamp else DatasetKind.ENTITIES

    @property
    def of_postgres(self) -> PostgresTable:
        """The table that it reads. Raises UserError: it reads none."""
        if not isinstance(self.other_end, PostgresTable):
            raise UserError("the pipe reads no table of Postgres", pipe=self.pipe)
        return self.other_end

    @property
    def sink(self) -> Sink:
        """The place that it writes to. Raises UserError: it writes to none."""
        if not isinstance(self.other_end, Sink):
            raise UserError("the pipe has no sink", pipe=self.pipe)
        return self.other_end

    @property
    def document(self) -> dict[str, Any]:
        """The definition as it was given."""
        members = {
            "pipe": self.pipe,
            "from" if self.delivers else "dataset": self.dataset,
            "every": self.every_seconds,
            **self.other_end.document,
        }
        return {name: value for name, value in members.items() if value}


def definition(document: Mapping[str, Any]) -> Definition:
    """Parse a definition. Raises UserError."""
    other_end = next((kind for member, kind in KINDS.items() if document.get(member)), PostgresTable)
    dataset = "from" if other_end is Sink else "dataset"
    members = {"pipe", "every", dataset} | other_end.MEMBERS
    if document.get("timestamp") is not None and "timestamp" not in members:
        raise UserError(
            "only rows of tables and files become events: with a transform, a feed or a sink a pipe has no "
            "timestamp"
        )
    if unknown := sorted(set(map(str, document)) - members):
        raise UserError(
            f"a pipe has no {', '.join(unknown)}", fix=f"It has {', '.join(sorted(members))}, and no secrets"
        )
    texts = {
        name: _text(name, document[name])
        for name in sorted(members - {"key", "every", "create"})
        if document.get(name) is not None
    }
    if missing := [name for name in ("pipe", *other_end.NEEDED, dataset) if not texts.get(name)]:
        raise UserError(f"the pipe has no {' and no '.join(missing)}")
    every = document.get("every")
    if every is not None and (type(every) is not int or not 1 <= every <= 2**31 - 1):
        raise UserError("every must be a number of seconds")
    pipe, slug = check_slug("pipe", texts["pipe"]), check_slug("dataset", texts[dataset])
    return Definition(pipe, slug, other_end.parse(texts, document), every)


def _text(name: str, value: object) -> str:
    if name == "overlap" and type(value) in (int, float):
        return str(value)
    if not isinstance(value, str):  # YAML makes 1.10 a number, and yes or true no text either
        raise UserError(f"{name} must be a text, not {type(value).__name__}", fix="Put it in quotes")
    return value


KINDS: Mapping[str, type[PostgresTable | Files | Feed | Transform | Sink]] = {
    "to": Sink,
    "table": PostgresTable,
    "path": Files,
    "feed": Feed,
    "transform": Transform,
}
"""What a pipe may read, or write to, by a member: the first that a definition has decides."""
