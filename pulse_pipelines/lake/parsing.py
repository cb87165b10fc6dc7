"""Parsing of documents of a tenant's engines: within limits of size, and so that other threads run meanwhile.

A metadata file is any content that a tenant may write. orjson makes of 60 MB of `{},{},` gigabytes, and
pyiceberg of a megabyte; both hold up all threads of the process. So a document is weighed before it becomes
objects, its outline is checked, and its long lists are parsed one entry at a time, up to the first error.

What is permitted still takes a second and some hundred megabytes. A process that serves other tenants parses
only what is small (`only_small`), and leaves the rest to another one.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import orjson
from pydantic import BaseModel
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry
from pyiceberg.table.statistics import PartitionStatisticsFile, StatisticsFile
from pyiceberg.view.metadata import ViewHistoryEntry, ViewMetadata, ViewVersion

from pulse_pipelines.lake import outline
from pulse_resources.errors import PulseError
from pulse_resources.iceberg.document_weight import check_weight

Document = dict[str, Any]
SMALL = 256 * 1024
"""Bytes that a process which serves others parses itself, in some twenty milliseconds."""
TOGETHER = 2
"""How many of the largest metadata files one request may change, or smaller ones of that weight."""
WRITTEN = 5 / 6
"""Share of the limits that what Pulse writes may have: upkeep adds to it later."""
_TABLE_LISTS: Mapping[str, type[BaseModel]] = {
    "snapshots": Snapshot,
    "snapshot-log": SnapshotLogEntry,
    "metadata-log": MetadataLogEntry,
    "statistics": StatisticsFile,
    "partition-statistics": PartitionStatisticsFile,
}
_VIEW_LISTS: Mapping[str, type[BaseModel]] = {"versions": ViewVersion, "version-log": ViewHistoryEntry}


class Large(PulseError):  # noqa: N818 - reads as the fact it states
    """A document that this process leaves to another one, in which the request is carried out."""


_only_small = ContextVar("_only_small", default=False)


@contextmanager
def only_small(small: bool = True) -> Iterator[None]:
    """While the block runs, larger documents raise `Large`; False: they do not, whatever is around it."""
    before = _only_small.set(small)
    try:
        yield
    finally:
        _only_small.reset(before)


def check_small(size: int) -> None:
    """Raise Large if so many bytes are not to be parsed here."""
    if size > SMALL and _only_small.get():
        raise Large("this process parses nothing so large")


def loads(content: bytes) -> Document:
    """Parse JSON that a tenant may have written.

    Raises:
        TooLarge: it is not parsed.
        ValueError: it is not the JSON of an object.
    """
    check_weight(content)
    document = orjson.loads(content)
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    return document


def table(document: Document) -> TableMetadata:
    """Metadata of a table. Raises an error of `updates.WRONG`: the document is none."""
    outline.check(document, outline.TABLE)
    entries = _entries(document, _TABLE_LISTS)
    remainder = {name: value for name, value in document.items() if name not in entries}
    return TableMetadataUtil.parse_obj(remainder).model_copy(
        update={name.replace("-", "_"): parsed for name, parsed in entries.items()}
    )


def check_view(document: Document) -> None:
    """Check metadata of a view. Raises an error of `updates.WRONG`: the document is none."""
    outline.check(document, outline.VIEW)
    ViewMetadata.model_validate(document | dict.fromkeys(_entries(document, _VIEW_LISTS), ()))


def _entries(document: Document, lists: Mapping[str, type[BaseModel]]) -> dict[str, list[BaseModel]]:
    return {
        name: [model.model_validate(entry) for entry in document[name]]
        for name, model in lists.items()
        if name in document
    }
