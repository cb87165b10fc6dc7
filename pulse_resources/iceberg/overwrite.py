"""Thread-safe overwrite of pyiceberg."""

from collections.abc import Callable

from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT
from typing_extensions import override


class Overwrite(_OverwriteFiles):
    """pyiceberg's overwrite, with one evaluator per manifest.

    pyiceberg's threads share an evaluator, which stores the bounds of the manifest it evaluates: another
    thread's may replace them meanwhile, and an existing file counts as missing.
    """

    @override
    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        build = super()._build_manifest_evaluator
        return lambda manifest: build(spec_id)(manifest)


class Replace(Overwrite):
    """Overwrite by files of the same rows: readers of changes skip such a snapshot."""

    @override
    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        totals = super()._summary(snapshot_properties)  # pyiceberg adds totals to no `replace`
        return Summary(operation=Operation.REPLACE, **totals.additional_properties)
