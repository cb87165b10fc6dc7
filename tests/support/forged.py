"""Files of tables as a tenant's engine may write them: valid Iceberg, whose paths lead wherever it likes."""

import json
import uuid
from dataclasses import dataclass
from typing import Any

from pyiceberg.avro.codecs import AvroCompressionCodec
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from chaos.harm import hostile
from pulse_resources import iceberg, object_store

SNAPSHOT = 4_242


class _Writer(ManifestWriterV2):
    kind = ManifestContent.DATA

    def content(self) -> ManifestContent:
        return self.kind


@dataclass(frozen=True)
class Forger:
    """Writes files for a table with one column, `id`."""

    table: Table

    @property
    def folder(self) -> str:
        return f"{self.table.location()}/metadata"

    def manifest(
        self, *paths: str, deletes: bool = False, removed: bool = False, rows: int = 1
    ) -> ManifestFile:
        """A manifest in the table's folder that names data files, or files of deleted positions."""
        at = f"{self.folder}/{uuid.uuid4()}-m0.avro"
        output = iceberg.file_io().new_output(at)
        writer = _Writer(UNPARTITIONED_PARTITION_SPEC, self.table.schema(), output, SNAPSHOT, "null")
        writer.kind = ManifestContent.DELETES if deletes else ManifestContent.DATA
        with writer:
            for path in paths:
                file = DataFile.from_args(
                    content=DataFileContent.POSITION_DELETES if deletes else DataFileContent.DATA,
                    file_path=path,
                    file_format=FileFormat.PARQUET,
                    partition=Record(),
                    record_count=rows,
                    file_size_in_bytes=size(path),
                )
                added = {"status": ManifestEntryStatus.ADDED, "snapshot_id": SNAPSHOT, "data_file": file}
                deleted = {
                    "status": ManifestEntryStatus.DELETED,
                    "sequence_number": 1,
                    "file_sequence_number": 1,
                }
                writer.add_entry(ManifestEntry.from_args(**added | (deleted if removed else {})))
        return writer.to_manifest_file()

    def manifest_list(self, *manifests: ManifestFile, codec: AvroCompressionCodec = "null") -> str:
        """A manifest list in the table's folder."""
        at = f"{self.folder}/snap-{SNAPSHOT}-{uuid.uuid4()}.avro"
        number = self.table.metadata.last_sequence_number + 1
        output = iceberg.file_io().new_output(at)
        with write_manifest_list(2, output, SNAPSHOT, None, number, codec) as writer:
            writer.add_manifests(list(manifests))
        return at

    def bomb(self, unpacked: int) -> str:
        """A manifest list in the table's folder that is small, and unpacks to so many zeros."""
        at = f"{self.folder}/snap-{SNAPSHOT}-{uuid.uuid4()}.avro"
        with write_manifest_list(2, iceberg.file_io().new_output(at), SNAPSHOT, None, 1, "deflate"):
            pass
        with object_store.file_system().open_input_stream(object_store.key(at), compression=None) as header:
            head = header.read()
        put(at, hostile.avro(head, unpacked))
        return at

    def updates(self, manifest_list: str) -> tuple[dict[str, Any], ...]:
        """The updates of a commit that makes a snapshot of this list current."""
        return (
            {
                "action": "add-snapshot",
                "snapshot": {
                    "snapshot-id": SNAPSHOT,
                    "sequence-number": self.table.metadata.last_sequence_number + 1,
                    "timestamp-ms": 2_000_000_000_000,
                    "manifest-list": manifest_list,
                    "summary": {"operation": "append"},
                    "schema-id": 0,
                },
            },
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": SNAPSHOT},
        )

    def metadata(self, manifest_list: str, **more: Any) -> str:
        """A metadata file in the table's folder, around the catalog and its checks."""
        document = json.loads(self.table.metadata.model_dump_json(exclude_none=True))
        (snapshot, _) = self.updates(manifest_list)
        document |= {
            "snapshots": [snapshot["snapshot"]],
            "current-snapshot-id": SNAPSHOT,
            "refs": {"main": {"snapshot-id": SNAPSHOT, "type": "branch"}},
            "snapshot-log": [],
            "last-sequence-number": snapshot["snapshot"]["sequence-number"],
        }
        at = f"{self.folder}/00009-{uuid.uuid4()}.metadata.json"
        put(at, json.dumps(document | more).encode())
        return at


def size(path: str) -> int:
    """Of a file of the lake; any, for other paths."""
    if not path.startswith("s3://") or "/.." in path or "//" in object_store.key(path):
        return 1_000
    return int(object_store.file_system().get_file_info(object_store.key(path)).size or 1_000)


def get(path: str) -> bytes:
    with object_store.file_system().open_input_stream(object_store.key(path), compression=None) as source:
        content: bytes = source.read()
    return content


def put(path: str, content: bytes) -> None:
    with object_store.file_system().open_output_stream(object_store.key(path), compression=None) as sink:
        sink.write(content)
