"""Parsing of what a tenant's engines wrote: within limits of size, and so that other threads run meanwhile.

A metadata file is any content that a tenant may write. orjson makes of 60 MB of `{},{},` gigabytes, and
pyiceberg of a megabyte; both hold up all threads of the process. So a document is weighed before it becomes
objects, its outline is checked, and its long lists are parsed one entry at a time, up to the first error.
"""

from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import BaseModel
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry
from pyiceberg.table.statistics import PartitionStatisticsFile, StatisticsFile
from pyiceberg.view.metadata import ViewHistoryEntry, ViewMetadata, ViewVersion

from pulse_pipelines.lake import outline
from pulse_resources.errors import Terminal

Document = dict[str, Any]
LARGEST = 20 * 1024 * 1024
"""Bytes of a metadata file; 10,000 snapshots by Spark, 2,000 columns and ten schemas have 13 MB."""
CONTAINERS = 120_000
"""Objects and arrays of a metadata file; the same table has 50,000."""
MARKS = 1_200_000
"""Structural characters, those in texts too: one or two for each value. The same table has 890,000."""
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


class TooLarge(Terminal):
    """A metadata file that would cost too much memory or time."""


def check_weight(content: bytes, share: float = 1) -> None:
    """Raise TooLarge if JSON would become too much in memory; takes some 3 ms a megabyte.

    Args:
        share: of the limits.
    """
    heavy = len(content) > share * LARGEST
    if not heavy:
        containers = content.count(b"{") + content.count(b"[")
        marks = containers + content.count(b",") + content.count(b":")
        heavy = containers > share * CONTAINERS or marks > share * MARKS
    if heavy:
        raise TooLarge(
            "the table's metadata file is too large", fix="Expire snapshots, or create the table again"
        )


def loads(content: bytes) -> Document:
    """Parse JSON that a tenant may have written.

    Raises:
        TooLarge: it is not parsed.
        ValueError: it is not the JSON of an object.
    """
    check_weight(content)
    document = orjson.loads(content)
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return document


def table(document: Document) -> TableMetadata:
    """Metadata of a table. Raises an error of `updates.WRONG`: the document is none."""
    outline.check(document, outline.TABLE)
    entries = _entries(document, _TABLE_LISTS)
    rest = {name: value for name, value in document.items() if name not in entries}
    return TableMetadataUtil.parse_obj(rest).model_copy(
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
