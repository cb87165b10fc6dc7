"""A partial table: metadata on the local disk through which an engine sees part of a table.

It has one snapshot, with that snapshot's schema, and names only files that matter to one query. The data
files are the table's own, so the engine reads them by Iceberg's rules: field ids, evolved types, and all.
"""

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


@contextmanager
def of_files(
    metadata: TableMetadata, snapshot: Snapshot | None, schema_id: int, files: Sequence[DataFile] | None
) -> Iterator[str]:
    """A view while the block runs.

    Args:
        metadata: of the table.
        snapshot: the only one of the view; None: it is empty.
        schema_id: the view's schema.
        files: the snapshot's files that the view has; None: all, with its delete files.

    Returns:
        The path of the view's metadata file.
    """
    with TemporaryDirectory(prefix="pulse-view-") as folder:
        if snapshot is not None and files is not None:
            manifests = _manifest_list(Path(folder), metadata, snapshot.snapshot_id, files)
            snapshot = snapshot.model_copy(update={"manifest_list": manifests, "sequence_number": 1})
        seen = metadata.model_copy(
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
        path = f"{folder}/view.metadata.json"
        ToOutputFile.table_metadata(seen, _LOCAL.new_output(path))
        yield path


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
