"""An overwrite that finds the manifests of removed files whichever thread looks for them."""

from collections.abc import Callable

from pyiceberg.manifest import ManifestFile
from pyiceberg.table.update.snapshot import _OverwriteFiles
from typing_extensions import override


class Overwrite(_OverwriteFiles):
    """pyiceberg's overwrite, with an evaluator for each manifest.

    pyiceberg's threads share one, which keeps the bounds of the manifest that it looks at in itself: another
    thread's may take their place meanwhile, and a file that is there counts as missing.
    """

    @override
    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        build = super()._build_manifest_evaluator
        return lambda manifest: build(spec_id)(manifest)
