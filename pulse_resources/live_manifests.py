"""A snapshot of the same data files whose manifests name nothing else.

A commit that removes files keeps an entry of each, with the bounds of its columns, and so with the beginning
of values that are in no file any more. Engines that follow changes read these entries of the commit itself;
once the history is forgotten nobody does.
"""

from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _SnapshotProducer
from pyiceberg.typedef import EMPTY_DICT
from typing_extensions import override


def names_removed(manifest: ManifestFile) -> bool:
    """Whether a manifest has entries of files that were removed, as far as its list says."""
    return manifest.deleted_files_count is None or manifest.deleted_files_count > 0


class LiveOnly(_SnapshotProducer["LiveOnly"]):
    """Writes those manifests again that name removed files, without them; the others stay."""

    @override
    def _deleted_entries(self) -> list[ManifestEntry]:
        return []

    @override
    def _existing_manifests(self) -> list[ManifestFile]:
        snapshot = self._transaction.table_metadata.snapshot_by_name(self._target_branch)
        found = []
        for manifest in snapshot.manifests(self._io) if snapshot else ():
            if not names_removed(manifest):
                found.append(manifest)
            elif live := manifest.fetch_manifest_entry(self._io, discard_deleted=True):
                found.append(self._written(manifest.partition_spec_id, live))
        return found

    def _written(self, spec_id: int, entries: list[ManifestEntry]) -> ManifestFile:
        with self.new_manifest_writer(self.spec(spec_id)) as writer:
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

    @override
    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        totals = super()._summary(snapshot_properties)  # it knows no replacement of files by the same
        return Summary(operation=Operation.REPLACE, **totals.additional_properties)
