"""Snapshot of the same data files whose manifests name no removed files.

A commit that removes files keeps an entry for each, with its column bounds, and so the beginnings of values
that are no longer in any file. Engines that read changes use these entries of the commit itself; once the
history is gone nothing does.
"""

from collections.abc import Iterable
from typing import Any

from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _SnapshotProducer
from pyiceberg.typedef import EMPTY_DICT
from typing_extensions import override


def names_removed(manifest: ManifestFile) -> bool:
    """Whether a manifest has entries of removed files, according to the manifest list."""
    return manifest.deleted_files_count is None or manifest.deleted_files_count > 0


def write_existing(
    producer: "_SnapshotProducer[Any]", spec_id: int, entries: Iterable[ManifestEntry]
) -> ManifestFile:
    """Write a manifest of files that earlier snapshots added; each keeps its snapshot and its numbers."""
    with producer.new_manifest_writer(producer.spec(spec_id)) as writer:
        for entry in entries:
            writer.add_entry(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.EXISTING,
                    snapshot_id=entry.snapshot_id,
                    sequence_number=entry.sequence_number,
                    file_sequence_number=entry.file_sequence_number,
                    data_file=entry.data_file,
                )
            )
    return writer.to_manifest_file()


class LiveOnly(_SnapshotProducer["LiveOnly"]):
    """Rewrites manifests that name removed files without those entries; the others stay."""

    @override
    def _deleted_entries(self) -> list[ManifestEntry]:
        return []

    @override
    def _existing_manifests(self) -> list[ManifestFile]:
        snapshot = self._transaction.table_metadata.snapshot_by_name(self._target_branch)
        manifests = []
        for manifest in snapshot.manifests(self._io) if snapshot else ():
            if not names_removed(manifest):
                manifests.append(manifest)
            elif live := manifest.fetch_manifest_entry(self._io, discard_deleted=True):
                manifests.append(write_existing(self, manifest.partition_spec_id, live))
        return manifests

    @override
    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        totals = super()._summary(snapshot_properties)  # it cannot express replacing files by the same ones
        return Summary(operation=Operation.REPLACE, **totals.additional_properties)
