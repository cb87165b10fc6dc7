"""Partial tables: Iceberg metadata on the local disk that shows an engine only some files of a table.

It has one snapshot, with that snapshot's schema, and lists only the files needed by one query. The data files
are the table's own, so the engine reads them by all rules of Iceberg, such as field ids and evolved types.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

_LOCAL = PyArrowFileIO()
_METADATA = "view.metadata.json"
CACHED_BYTES = 8 * 1024 * 1024
"""Size of this process's cache of views: making a view takes longer than reading some hundred rows by it."""
_Key = tuple[object, ...]


@contextmanager
def of_files(
    metadata: TableMetadata, snapshot: Snapshot | None, schema_id: int, files: Sequence[DataFile] | None
) -> Iterator[str]:
    """Make a view of a table for the block.

    Args:
        metadata: of the table.
        snapshot: the view's only snapshot; None: the view is empty.
        schema_id: the view's schema.
        files: the snapshot's files to include; None: all, with its delete files.

    Returns:
        The path of the view's metadata file.
    """
    paths = None if files is None else tuple(file.file_path for file in files)
    # These identify immutable content: a commit, an erasure or a move makes new snapshots and files.
    named = snapshot.snapshot_id if snapshot else None, schema_id, metadata.default_spec_id, paths
    key = (metadata.table_uuid, *named)
    with TemporaryDirectory(prefix="pulse-view-") as name:
        folder = Path(name)
        if not _CACHE.write(key, folder):
            _make(folder, metadata, snapshot, schema_id, files)
            _CACHE.add(key, folder)
        yield str(folder / _METADATA)


class _ViewCache:
    """An LRU cache of views, as the contents of their files.

    A view is written to a new temporary folder for each user, so that users do not share folders.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._views: OrderedDict[_Key, tuple[bytes, dict[str, bytes]]] = OrderedDict()
        self.bytes = 0

    def write(self, key: _Key, folder: Path) -> bool:
        """Write the view into a folder; False if it is not cached."""
        with self._lock:
            if key not in self._views:
                return False
            self._views.move_to_end(key)
            before, contents = self._views[key]
        for name, content in contents.items():
            # Names of temporary folders have equal lengths, so length prefixes in Avro stay right.
            (folder / name).write_bytes(content.replace(before, bytes(folder)))
        return True

    def add(self, key: _Key, folder: Path) -> None:
        contents = {file.name: file.read_bytes() for file in folder.iterdir()}
        with self._lock:
            if key not in self._views:
                self._views[key] = bytes(folder), contents
                self.bytes += _size(key, contents)
            while self.bytes > CACHED_BYTES:
                dropped, (_, old) = self._views.popitem(last=False)
                self.bytes -= _size(dropped, old)


def _size(key: _Key, contents: dict[str, bytes]) -> int:
    return len(repr(key)) + sum(map(len, contents.values()))


_CACHE = _ViewCache()


def _make(
    folder: Path,
    metadata: TableMetadata,
    snapshot: Snapshot | None,
    schema_id: int,
    files: Sequence[DataFile] | None,
) -> None:
    if snapshot is not None and files is not None:
        manifests = _manifest_list(folder, metadata, snapshot.snapshot_id, files)
        snapshot = snapshot.model_copy(update={"manifest_list": manifests, "sequence_number": 1})
    partial = metadata.model_copy(
        update={
            "current_schema_id": schema_id,
            "current_snapshot_id": snapshot.snapshot_id if snapshot else None,
            "snapshots": [snapshot] if snapshot else [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
            "statistics": [],
        }
    )
    ToOutputFile.table_metadata(partial, _LOCAL.new_output(str(folder / _METADATA)))


def _manifest_list(folder: Path, metadata: TableMetadata, snapshot_id: int, files: Sequence[DataFile]) -> str:
    manifests = []
    if files:
        output = _LOCAL.new_output(str(folder / "manifest.avro"))
        with write_manifest(2, metadata.spec(), metadata.schema(), output, snapshot_id, "null") as writer:
            for file in files:
                entry = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=file
                )
                writer.add_entry(entry)
        manifests = [writer.to_manifest_file()]
    path = str(folder / "manifests.avro")
    with write_manifest_list(2, _LOCAL.new_output(path), snapshot_id, None, 1, "null") as written:
        written.add_manifests(manifests)
    return path
