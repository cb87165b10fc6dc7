"""Snapshots of tables that other engines write: staged by a key of the table's folder, as JSON.

Nothing that the table's properties ask of a writer is followed: they may name a class to load, or another
place for manifests. Of the metadata only what a snapshot changes is edited; the rest stays as its engine
wrote it.
"""

import secrets
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow.fs as pafs
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.table.update.snapshot import _SnapshotProducer

from pulse_resources import iceberg
from pulse_resources.iceberg import TableName, table_metadata
from pulse_resources.iceberg.foreign_io import foreign_file_io
from pulse_resources.iceberg.live_manifests import LiveOnly, names_removed
from pulse_resources.iceberg.overwrite import Overwrite, Replace
from pulse_resources.iceberg.table_metadata import Document


@dataclass(frozen=True)
class Following:
    """The next metadata of a table, not written yet, and its new snapshot."""

    document: Document
    snapshot_id: int


@dataclass(frozen=True)
class ForeignTable:
    """A table as of one metadata file.

    Its methods write manifests, and return the metadata that would follow. They raise ValueError, KeyError
    and their like where the metadata is damaged, and OSError when the object store failed.
    """

    name: TableName
    at: str
    """Location of the metadata file, in `<folder of the table>/metadata`."""
    document: Document
    store: pafs.S3FileSystem
    """Opens the table's folder alone."""
    mark: str = ""
    """Hexadecimal digits with which the ids in the names of written manifests begin: 16 at most."""

    def _id(self) -> uuid.UUID:
        return uuid.UUID(hex=(self.mark + secrets.token_hex(16))[:32])

    @property
    def _io(self) -> PyArrowFileIO:
        return foreign_file_io(self.store)

    def replaced(
        self,
        removed: Iterable[DataFile],
        added: Iterable[DataFile],
        summary: Mapping[str, str],
        *,
        same_rows: bool,
    ) -> Following:
        """The table with data files replaced, of partitions of its default spec.

        Args:
            removed: data files of the current snapshot.
            added: their replacements.
            same_rows: whether they have the same rows: the snapshot's operation is then `replace`.

        Raises:
            ValidationException: a file to remove is not in the current snapshot.
        """
        transaction = self._transaction()
        kind = Replace if same_rows else Overwrite
        producer = kind(Operation.OVERWRITE, transaction, self._io, self._id(), dict(summary))
        for file in removed:
            producer.delete_data_file(file)
        for file in added:
            producer.append_data_file(file)
        return self._following(producer)

    def live_only(self, summary: Mapping[str, str]) -> Following | None:
        """The table with manifests that name no removed files; None: it has none but such."""
        transaction = self._transaction()
        snapshot = transaction.table_metadata.current_snapshot()
        if snapshot is None or not any(map(names_removed, snapshot.manifests(self._io))):
            return None
        return self._following(
            LiveOnly(Operation.OVERWRITE, transaction, self._io, self._id(), dict(summary))
        )

    def _transaction(self) -> Transaction:
        parsed = table_metadata.current_only(self.document) | {"properties": {}}
        metadata = TableMetadataUtil.parse_obj(parsed)
        return Transaction(Table(self.name, metadata, self.at, self._io, NoopCatalog(iceberg.CATALOG)))

    def _following(self, producer: "_SnapshotProducer[Any]") -> Following:
        (update, *_), _ = producer._commit()  # writes manifests and their list, nothing else
        assert isinstance(update, AddSnapshotUpdate)  # noqa: S101 - pyiceberg's first one
        return Following(_with_snapshot(self.document, update.snapshot), update.snapshot.snapshot_id)


def _with_snapshot(document: Document, added: Snapshot) -> Document:
    """Metadata with a snapshot that is the newest of the main branch."""
    snapshot = orjson.loads(added.model_dump_json(exclude_none=True))
    number, refs = snapshot["snapshot-id"], document.get("refs") or {}
    main = refs.get(MAIN_BRANCH) or {"type": "branch", "snapshot-id": document["current-snapshot-id"]}
    if main["snapshot-id"] != document["current-snapshot-id"]:
        raise ValueError("the table's current snapshot is not that of its main branch")
    # An engine's clock may be ahead; the log has to be in order.
    snapshot["timestamp-ms"] = now = max(snapshot["timestamp-ms"], document["last-updated-ms"])
    return document | {
        "snapshots": [*(document.get("snapshots") or ()), snapshot],
        "snapshot-log": [
            *(document.get("snapshot-log") or ()),
            {"snapshot-id": number, "timestamp-ms": now},
        ],
        "refs": refs | {MAIN_BRANCH: main | {"snapshot-id": number}},
        "current-snapshot-id": number,
        "last-sequence-number": snapshot["sequence-number"],
        "last-updated-ms": now,
    }
