"""Definitions with many slugs: processor time of what the code server, Dagster's services and runs do."""

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp

from dagster import AssetKey, RepositoryDefinition
from dagster._core.remote_representation.external import RemoteRepository
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._core.remote_representation.handle import RepositoryHandle
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._grpc.server import LoadedRepositories

from benchmarks.registered import Registry
from pulse_pipelines.runtime import run_scope
from pulse_pipelines.runtime.parts import COLLECT_AFTER, KeptParts, PartedSnapshot
from pulse_pipelines.runtime.parts_file import PartsFile
from pulse_resources.local.dagster import MODULE


def measure(registry: Registry, slugs: int) -> Iterator[tuple[str, float]]:
    """Case, and seconds of processor time of this process; the registry grows to the slugs, and by one."""
    from pulse_pipelines.definitions import PARTS, defs

    registry.grow(slugs=slugs)
    place = Path(mkdtemp()) / "parts.sqlite"
    snapshot, service = PartedSnapshot(PARTS, PartsFile(place)), KeptParts()
    run_scope.build_parted()
    for label in ("first load", "load after one new dataset"):
        yield f"code server: {label}", _spent(lambda: snapshot.refresh(_unparted_definitions()))
        text = snapshot.text()
        usual = gc.get_threshold()
        gc.set_threshold(COLLECT_AFTER)  # as the services do
        yield (
            f"web server and daemon, each: {label}",
            _spent(lambda text=text: service.deserialize(text, RepositorySnap)),
        )
        loaded = service.deserialize(text, RepositorySnap)
        yield f"  and the graph of all assets: {label}", _spent(lambda loaded=loaded: _graph(loaded))
        gc.set_threshold(*usual)
        registry.grow(slugs=slugs + 1)
    yield (
        "code server: load after a restart",
        _spent(lambda: PartedSnapshot(PARTS, PartsFile(place)).refresh(_unparted_definitions())),
    )
    asset = frozenset({AssetKey(["lake", "dataset_1"])})
    yield "code server: launch of a run of an asset", _spent(lambda: snapshot.select(asset))

    def run(job: str) -> float:
        run_scope._current = _Run(job, asset)  # type: ignore[assignment]
        try:
            return _spent(lambda: defs().get_repository_def().get_job(job))
        finally:
            run_scope._current = None

    yield "run: a micro-batch", run("ingest")
    yield "run: upkeep", run("upkeep")
    yield "run: of an asset", run("__ASSET_JOB")


class _Run:
    def __init__(self, job: str, assets: frozenset[AssetKey]) -> None:
        self.job, self._assets = job, assets

    def assets(self) -> frozenset[AssetKey]:
        return self._assets


def _unparted_definitions() -> RepositoryDefinition:
    """What the code server loads besides the parts."""
    target = LoadableTargetOrigin(executable_path=None, working_directory=str(Path.cwd()), module_name=MODULE)
    (definition,) = LoadedRepositories(target, None, [], None).definitions_by_name.values()
    return definition


def _graph(snapshot: RepositorySnap) -> object:
    """What the services make of a snapshot, when first needed."""
    handle = RepositoryHandle.for_test()
    return RemoteRepository(snapshot, handle, True, lambda ref: ref).asset_graph  # type: ignore[arg-type,return-value]


def _spent(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
