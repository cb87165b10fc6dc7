"""Fast append that copies the previous manifest list's blocks instead of decoding and encoding them.

A manifest list is an Avro file: a header, then blocks of manifests, each followed by the file's sync marker.
pyiceberg itself decodes all manifests of the table at each append, and writes them again.
"""

import io
import json
from functools import cache

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
from pulse_resources.avro_decoder import CheckedDecoder

SYNC = 16
CODEC = "deflate"
"""Avro's name for pyiceberg's default, gzip."""


class Append(_FastAppendFiles):
    """pyiceberg's fast append, by bytes where the list allows."""

    _before: bytes = b""

    @override
    def _existing_manifests(self) -> list[ManifestFile]:
        parent = self._parent_snapshot_id
        snapshot = None if parent is None else self._transaction.table_metadata.snapshot_by_id(parent)
        # Other operations leave manifests with nothing but removals: the next append drops them.
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
            self._io = _Extending(self._before)  # the list is all that is written from here on
        return added


def extendable(content: bytes) -> bool:
    """Whether a manifest list has our format, so that its blocks can be copied into one of ours."""
    reader = construct_reader(META_SCHEMA, {-1: AvroFileHeader})
    header: AvroFileHeader = reader.read(CheckedDecoder(content))
    return (header.meta.get("avro.schema"), header.meta.get("avro.codec")) == (_schema(), CODEC)


def extended(content: bytes, before: bytes) -> bytes:
    """Append the blocks of an earlier manifest list to a new one; both end with their sync marker."""
    sync = before[-SYNC:]
    blocks = before[before.index(sync) + SYNC :]
    return content.replace(content[-SYNC:], sync) + blocks


@cache
def _schema() -> str:
    schema = MANIFEST_LIST_FILE_SCHEMAS[2]
    return json.dumps(AvroSchemaConversion().iceberg_to_avro(schema, schema_name="manifest_file"))


class _Extending(PyArrowFileIO):
    """Writes manifest lists followed by the blocks of an earlier one."""

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
    """Buffers what is written until it is complete."""

    def __init__(self, sink: OutputStream, before: bytes) -> None:
        super().__init__()
        self._sink, self._before = sink, before

    @override
    def close(self) -> None:
        if not self.closed:
            with self._sink as sink:
                sink.write(extended(self.getvalue(), self._before))
        super().close()
