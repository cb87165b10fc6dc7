"""Definitions with many slugs: processor time of what the code server, Dagster's services and runs do."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from uuid import UUID, uuid4

from dagster import AssetKey, RepositoryDefinition
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._grpc.server import LoadedRepositories

from pulse_pipelines.runtime import run_scope
from pulse_pipelines.runtime.parts import KeptParts, PartedSnapshot
from pulse_pipelines.runtime.parts_file import PartsFile
from pulse_resources import postgres
from pulse_resources.local.dagster import MODULE

COLUMNS = 12
TENANT = "INSERT INTO pdm_tenants (tenant_id, slug, name) VALUES (%(id)s, %(slug)s, %(slug)s)"
SCHEMA = """
INSERT INTO pdm_schemas (tenant_id, name, version, schema_uri, document)
VALUES (%(id)s, 'any', 1, 'pulse://' || %(slug)s || '/any/1', '{}')
"""
DATASETS = """
INSERT INTO pdm_datasets (dataset_id, tenant_id, slug, name, schema_uri, table_schema)
SELECT gen_random_uuid(), %(id)s, 'dataset_' || i, 'Dataset ' || i, 'pulse://' || %(slug)s || '/any/1', (
    SELECT json_build_object('type', 'struct', 'fields', json_agg(json_build_object(
        'id', c, 'name', 'column_' || c, 'type', 'string', 'required', false)))::text
    FROM generate_series(1, %(columns)s) c)
FROM generate_series(%(first)s::int, %(last)s::int) i
WHERE (i + %(number)s) %% %(tenants)s < %(owners)s
"""


class Registry:
    """A registry of datasets without tables: only what the definitions read of it."""

    def __init__(self, tenants: int, owners: int) -> None:
        self._tenants = [uuid4() for _ in range(tenants)]
        self._owners, self.slugs = owners, 0
        for number, tenant_id in enumerate(self._tenants):
            self._execute(tenant_id, number, TENANT, SCHEMA)

    def grow(self, slugs: int) -> None:
        """Add slugs, up to this number, each with as many tenants as own one."""
        for number, tenant_id in enumerate(self._tenants):
            self._execute(tenant_id, number, DATASETS, first=self.slugs, last=slugs - 1)
        self.slugs = slugs

    def _execute(self, tenant_id: UUID, number: int, *statements: str, **values: int) -> None:
        values |= {
            "number": number,
            "tenants": len(self._tenants),
            "owners": self._owners,
            "columns": COLUMNS,
        }
        with postgres.tenant_transaction("pulse_owner", tenant_id) as connection:
            for statement in statements:
                connection.execute(statement, values | {"id": tenant_id, "slug": f"tenant_{number}"})


def measure(registry: Registry, slugs: int) -> Iterator[tuple[str, float]]:
    """Case, and seconds of processor time of this process; the registry grows to the slugs, and by one."""
    from pulse_pipelines.definitions import PARTS, defs

    registry.grow(slugs)
    place = Path(mkdtemp()) / "parts.sqlite"
    snapshot, service = PartedSnapshot(PARTS, PartsFile(place)), KeptParts()
    run_scope.build_parted()
    for what in ("first load", "load after one new dataset"):
        yield f"code server: {what}", _spent(lambda: snapshot.refresh(_rest()))
        text = snapshot.text()
        yield (
            f"web server and daemon, each: {what}",
            _spent(lambda text=text: service.deserialize(text, RepositorySnap)),
        )
        registry.grow(slugs + 1)
    yield (
        "code server: load after a restart",
        _spent(lambda: PartedSnapshot(PARTS, PartsFile(place)).refresh(_rest())),
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


def _rest() -> RepositoryDefinition:
    """What the code server loads besides the parts."""
    target = LoadableTargetOrigin(executable_path=None, working_directory=str(Path.cwd()), module_name=MODULE)
    (rest,) = LoadedRepositories(target, None, [], None).definitions_by_name.values()
    return rest


def _spent(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
