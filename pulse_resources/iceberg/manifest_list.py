"""Fast append that copies the previous manifest list's blocks instead of decoding and encoding them.

A manifest list is an Avro file: a header, then blocks of manifests, each followed by the file's sync marker.
pyiceberg itself decodes all manifests of the table at each append, and writes them again.

Engines read manifests one by one when they plan a query. So every few appends one merges the smallest, with
those no larger than what is merged so far: a file is entered again about as often as the table doubles.
"""

import io
import json
from collections.abc import Iterable
from functools import cache, partial

from pyiceberg.avro.file import META_SCHEMA, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestContent, ManifestFile
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.utils.concurrent import ExecutorFactory
from pyiceberg.utils.schema_conversion import AvroSchemaConversion
from typing_extensions import override

from pulse_resources import object_store
from pulse_resources.iceberg.avro_decoder import CheckedDecoder
from pulse_resources.iceberg.live_manifests import write_existing

SYNC = 16
CODEC = "deflate"
"""Avro's name for pyiceberg's default, gzip."""


MERGED_FROM = 8
"""Blocks of a list, one for each append since it was written as a whole, from which the next one merges."""
MERGED_FILES = 1_000
"""Files of a merged manifest, at most: they bound what an append writes."""
REPLACED = "manifests-replaced"
"""Iceberg's name, in the summary of a snapshot, for the number of its parent's manifests that it lacks."""


class Append(_FastAppendFiles):
    """pyiceberg's fast append, by bytes where the list allows, merging manifests where they are many."""

    _before: bytes = b""
    _many = False
    _replaced = 0

    @override
    def _existing_manifests(self) -> list[ManifestFile]:
        parent = self._parent_snapshot_id
        snapshot = None if parent is None else self._transaction.table_metadata.snapshot_by_id(parent)
        # Other operations leave manifests with nothing but removals: the next append drops them.
        if snapshot and snapshot.summary and snapshot.summary.operation is Operation.APPEND:
            with self._io.new_input(snapshot.manifest_list).open() as source:
                before = source.read()
            if extendable(before):
                self._many = blocks(before) >= MERGED_FROM
                if not self._many:
                    self._before = before
                    return []
        return super()._existing_manifests()

    @override
    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        if not self._many:
            return manifests
        added = [manifest for manifest in manifests if manifest.added_snapshot_id == self._snapshot_id]
        spec_id = self._transaction.table_metadata.default_spec_id
        small = smallest(
            manifest
            for manifest in manifests
            if manifest.content is ManifestContent.DATA
            and manifest.partition_spec_id == spec_id
            and manifest not in added
        )
        self._replaced = len(small)
        if not small:
            return manifests
        read = partial(ManifestFile.fetch_manifest_entry, io=self._io, discard_deleted=True)
        entries_of_small = ExecutorFactory.get_or_create().map(read, small)
        merged = write_existing(self, spec_id, (entry for entries in entries_of_small for entry in entries))
        return [
            *added,
            merged,
            *(manifest for manifest in manifests if manifest not in added and manifest not in small),
        ]

    @override
    def _manifests(self) -> list[ManifestFile]:
        added = super()._manifests()
        if self._before:
            self._io = _Extending(self._before)  # the list is all that is written from here on
        return added

    @override
    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        replaced = {REPLACED: str(self._replaced)} if self._replaced else {}
        return super()._summary(snapshot_properties | replaced)


def blocks(content: bytes) -> int:
    """Number of blocks of a manifest list; its sync marker ends the header, and each of them."""
    return content.count(content[-SYNC:]) - 1


def smallest(manifests: Iterable[ManifestFile]) -> list[ManifestFile]:
    """Those to be merged, newest first: so many of the smallest, then others no larger than all of these."""
    ordered, chosen, files = list(manifests), list[ManifestFile](), 0
    for manifest in sorted(ordered, key=_files):
        more = _files(manifest)
        if files + more > MERGED_FILES or (len(chosen) >= MERGED_FROM and more > files):
            break
        chosen.append(manifest)
        files += more
    return [manifest for manifest in ordered if manifest in chosen] if len(chosen) > 1 else []


def _files(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


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
        return _BufferedFile(super().create(overwrite), self._before)


class _BufferedFile(io.BytesIO):
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
