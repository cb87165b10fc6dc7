"""Reachable files: all files that the metadata of a table references, directly or through manifests.

Covers all snapshots in the current metadata and in the earlier metadata files in its log. The manifest list
of an append contains all of its parent's unless it merged some, so of consecutive appends only the last list
is read; every manifest is read once, however many snapshots share it.
"""

from collections.abc import Iterable
from functools import partial

import pyarrow.fs as pafs
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.table import Table
from pyiceberg.utils.concurrent import ExecutorFactory

from pulse_pipelines.tables.commit import BATCH_PROPERTY
from pulse_resources import iceberg
from pulse_resources.errors import FileGone, Terminal
from pulse_resources.iceberg import table_metadata
from pulse_resources.iceberg.foreign_io import foreign_file_io
from pulse_resources.iceberg.manifest_list import REPLACED
from pulse_resources.iceberg.table_metadata import Document


class Outside(Terminal):
    """Metadata of other writers names a manifest elsewhere, or a file by a path that leads elsewhere."""


class ReachableFiles:
    """Finds the reachable files of tables; caches the metadata that it read, which is immutable.

    Args:
        store: reads the metadata of a table that other writers write, by a key of its folder alone; nothing
            is believed about how they do it. None: tables of Pulse's.
        folder: of that table.
    """

    def __init__(self, store: pafs.S3FileSystem | None = None, folder: str = "") -> None:
        self._store, self._folder = store, folder
        self._io = foreign_file_io(store) if store else iceberg.file_io()
        self._manifests: dict[str, tuple[ManifestFile, ...]] = {}
        self._data: dict[str, frozenset[str]] = {}
        self._documents: dict[str, Document | None] = {}

    def of(self, table: Table, *, by_log: bool = True) -> frozenset[str]:
        """Paths of the table's current metadata file, of those in its log, and of all files they reach.

        Args:
            by_log: if False, of the log only the metadata files themselves count, not what they reach.

        Raises:
            FileNotFoundError: a file that the current metadata reaches is gone.
            TooLarge: a metadata file of other writers would cost too much.
            Outside: other writers keep manifests elsewhere, or name a file by another scheme or with `..`.
            Terminal: they spell a path so that it cannot be compared with those of a listing.
        """
        current = self._document(table.metadata_location)
        if current is None:
            raise FileNotFoundError(table.metadata_location)
        earlier = table_metadata.log(current)
        reached = {table.metadata_location, *earlier} | self._of_document(current)
        current_ids = {snapshot["snapshot-id"] for snapshot in current.get("snapshots", ())}
        for location in earlier if by_log else ():
            if (document := self._document(location)) is not None:
                reached |= self._of_document(document, current_ids)
        return _plain(reached) if self._store else frozenset(reached)

    def _document(self, location: str) -> Document | None:
        if location not in self._documents:
            try:
                self._documents[location] = table_metadata.read(location, self._store)
            except FileGone:
                self._documents[location] = None
        return self._documents[location]

    def _of_document(self, document: Document, covered: Iterable[int] = ()) -> set[str]:
        """The files that a metadata file reaches, without those of `covered` snapshots.

        An expired snapshot's files may be gone: with `covered`, a missing file reaches nothing.
        """
        covered = set(covered)
        snapshots = [s for s in document.get("snapshots", ()) if s["snapshot-id"] not in covered]
        reached = {snapshot["manifest-list"] for snapshot in snapshots}
        for part in ("statistics", "partition-statistics"):
            reached |= {file["statistics-path"] for file in document.get(part, ())}
        manifests: dict[str, ManifestFile] = {}
        for snapshot in snapshots if self._store else _uncovered(snapshots):
            for manifest in self._list(self._inside(snapshot["manifest-list"]), bool(covered)):
                manifests[self._inside(manifest.manifest_path)] = manifest
        fresh = [manifest for path, manifest in manifests.items() if path not in self._data]
        read = partial(_data_files, self._io, may_be_missing=bool(covered))
        for path, files in ExecutorFactory.get_or_create().map(read, fresh):
            self._data[path] = files
        return reached.union(manifests, *(self._data[path] for path in manifests))

    def _inside(self, path: str) -> str:
        if self._store and not plain(path).startswith(f"{self._folder}/"):
            raise Outside("a manifest is not in the table's folder", path=path[:300])
        return path

    def _list(self, path: str, may_be_missing: bool) -> tuple[ManifestFile, ...]:
        if path not in self._manifests:
            try:
                self._manifests[path] = tuple(read_manifest_list(self._io.new_input(path)))
            except FileNotFoundError:
                if not may_be_missing:
                    raise
                return ()
        return self._manifests[path]


def _uncovered(snapshots: list[Document]) -> list[Document]:
    """Snapshots whose lists together name all manifests: all but the appends that another append follows.

    One that merged manifests lacks those of its parent.
    """
    covered = {
        snapshot["parent-snapshot-id"]
        for snapshot in snapshots
        if _is_append(snapshot) and "parent-snapshot-id" in snapshot and REPLACED not in snapshot["summary"]
    }
    return [s for s in snapshots if not (_is_append(s) and s["snapshot-id"] in covered)]


def _is_append(snapshot: Document) -> bool:
    """Whether the snapshot is an append by Pulse, which keeps or merges every manifest with files."""
    summary = snapshot.get("summary", {})
    return summary.get("operation") == "append" and BATCH_PROPERTY in summary


def plain(path: str) -> str:
    """A path as a listing has it: engines write s3a:// and s3n:// for s3://.

    Raises:
        Outside: it is of another scheme, or has `.` or `..`, which lead elsewhere for some readers.
        Terminal: it has an empty part, and no two readers need mean the same by it.
    """
    scheme, separator, key = path.partition("://")
    parts = set(key.split("/"))
    if not separator or scheme not in ("s3", "s3a", "s3n") or {".", ".."} & parts:
        raise Outside("a file is named by a path that leads elsewhere", path=path[:300])
    if "" in parts:
        raise Terminal("a file is named by a path that is not plain", path=path[:300])
    return f"s3://{key}"


def _plain(paths: Iterable[str]) -> frozenset[str]:
    """All as `plain`. Of paths that are wrong, one that is `Outside` is the worst."""
    plain_paths, wrong = set[str](), list[Terminal]()
    for path in paths:
        try:
            plain_paths.add(plain(path))
        except Terminal as error:
            wrong.append(error)
    if wrong:
        raise min(wrong, key=lambda error: (not isinstance(error, Outside), error.where["path"]))
    return frozenset(plain_paths)


def _data_files(io: FileIO, manifest: ManifestFile, *, may_be_missing: bool) -> tuple[str, frozenset[str]]:
    try:
        entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
    except FileNotFoundError:
        if not may_be_missing:
            raise
        entries = []
    return manifest.manifest_path, frozenset(entry.data_file.file_path for entry in entries)
