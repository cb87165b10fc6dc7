"""An append whose manifest list is the one before it and a block more, instead of decoded and encoded again.

A manifest list is an Avro file: a header, then blocks of manifests, each closed by the file's sync marker.
Left to itself, pyiceberg makes objects of all manifests of the table at each append, and writes them again.
"""

import io
import json
from functools import cache

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import META_SCHEMA, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestFile
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.utils.schema_conversion import AvroSchemaConversion
from typing_extensions import override

from pulse_resources import object_store

SYNC = 16
CODEC = "deflate"
"""What pyiceberg's default, gzip, is called in Avro."""


class Append(_FastAppendFiles):
    """pyiceberg's fast append, where it can by its list's bytes."""

    _before: bytes = b""

    @override
    def _existing_manifests(self) -> list[ManifestFile]:
        parent = self._parent_snapshot_id
        snapshot = None if parent is None else self._transaction.table_metadata.snapshot_by_id(parent)
        # Other operations leave manifests of nothing but removals behind: the next append drops them.
        if snapshot and snapshot.summary and snapshot.summary.operation is Operation.APPEND:
            with self._io.new_input(snapshot.manifest_list).open() as source:
                before = source.read()
            if extendable(before):
                self._before = before
                return []
        return super()._existing_manifests()

    @override
    def _manifests(self) -> list[ManifestFile]:
        added = super()._manifests()
        if self._before:
            self._io = _Extending(self._before)  # all that is written from here on is the list
        return added


def extendable(content: bytes) -> bool:
    """Whether a manifest list is written as ours are, so that its blocks can stand in one of them."""
    reader = construct_reader(META_SCHEMA, {-1: AvroFileHeader})
    header: AvroFileHeader = reader.read(new_decoder(content))
    return (header.meta.get("avro.schema"), header.meta.get("avro.codec")) == (_schema(), CODEC)


def extended(content: bytes, before: bytes) -> bytes:
    """A manifest list with the blocks of another behind its own; both end with their sync marker."""
    sync = before[-SYNC:]
    blocks = before[before.index(sync) + SYNC :]
    return content.replace(content[-SYNC:], sync) + blocks


@cache
def _schema() -> str:
    schema = MANIFEST_LIST_FILE_SCHEMAS[2]
    return json.dumps(AvroSchemaConversion().iceberg_to_avro(schema, schema_name="manifest_file"))


class _Extending(PyArrowFileIO):
    """Writes manifest lists with the blocks of an earlier one behind their own."""

    def __init__(self, before: bytes) -> None:
        super().__init__()
        self._before = before

    @override
    def new_output(self, location: str) -> PyArrowFile:
        return _ExtendedFile(location, self._before)


class _ExtendedFile(PyArrowFile):
    def __init__(self, location: str, before: bytes) -> None:
        super().__init__(location, object_store.key(location), object_store.file_system())
        self._before = before

    @override
    def create(self, overwrite: bool = False) -> OutputStream:
        return _Held(super().create(overwrite), self._before)


class _Held(io.BytesIO):
    """Holds what is written until it is whole."""

    def __init__(self, sink: OutputStream, before: bytes) -> None:
        super().__init__()
        self._sink, self._before = sink, before

    @override
    def close(self) -> None:
        if not self.closed:
            with self._sink as sink:
                sink.write(extended(self.getvalue(), self._before))
        super().close()
