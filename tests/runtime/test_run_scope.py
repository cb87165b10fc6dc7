"""The process of a run builds the definitions that the run needs, and no others."""

import uuid
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from dagster import AssetCheckKey, AssetKey, DagsterInstance, OpDefinition, RepositoryDefinition
from support.ingest import Owner

from pulse_pipelines import pipes, registry
from pulse_pipelines.definitions import JOBS, defs
from pulse_pipelines.runtime import run_scope
from pulse_pipelines.runtime.run_scope import RunScope

ASSET_JOB = "__ASSET_JOB"
Scoped = Callable[..., RepositoryDefinition]


@pytest.fixture
def slug(owner: Owner) -> str:
    """A dataset besides `orders`."""
    name = f"d{uuid.uuid4().hex[:8]}"
    registry.create_dataset(owner.tenant, name, f"pulse://{owner.tenant.slug}/orders/1")
    return name


@pytest.fixture
def scoped(monkeypatch: pytest.MonkeyPatch) -> Scoped:
    """Definitions that the process of a run builds, by the run's job and selection."""

    def build(job: str, **selection: set[object]) -> RepositoryDefinition:
        run = SimpleNamespace(**{"asset_selection": None, "asset_check_selection": None} | selection)
        instance = SimpleNamespace(get_run_by_id=lambda _: run)
        monkeypatch.setattr(DagsterInstance, "from_ref", lambda _: nullcontext(instance))
        monkeypatch.setattr(run_scope, "_current", RunScope(job, "any", None))  # type: ignore[arg-type]
        return defs().get_repository_def()

    return build


def keys(built: RepositoryDefinition) -> set[str]:
    return {key.to_user_string() for key in built.asset_graph.get_all_asset_keys()}


def test_other_processes_build_all(slug: str) -> None:
    assert {f"lake/{slug}", "lake/orders"} <= keys(defs().get_repository_def())


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_run_that_needs_no_asset_builds_none(slug: str, scoped: Scoped, job: object) -> None:
    name = job.name  # type: ignore[attr-defined]
    built = scoped(name)
    assert keys(built) == set()
    assert built.get_job(name).graph.node_dict


def test_a_run_of_assets_builds_those_of_their_slugs(slug: str, scoped: Scoped) -> None:
    built = scoped(ASSET_JOB, asset_selection={AssetKey(["lake", slug])})
    assert keys(built) == {f"lake/{slug}", f"curated/{slug}/daily"}
    plan = built.get_maybe_subset_job_def(ASSET_JOB, asset_selection={AssetKey(["lake", slug])})
    assert {node.name for node in plan.graph.nodes} == {f"lake__{slug}", f"check_{slug}"}


def test_a_run_of_checks_builds_those_of_their_slugs(slug: str, scoped: Scoped) -> None:
    check = AssetCheckKey(AssetKey(["lake", slug]), "reconciled")
    built = scoped(ASSET_JOB, asset_check_selection={check})
    assert check in built.asset_graph.asset_check_keys
    assert "lake/orders" not in keys(built)


def test_a_run_of_all_pipes_builds_no_dataset(slug: str, scoped: Scoped) -> None:
    assert keys(scoped("pipes")) == {f"pipes/{name}" for name in pipes.owners()}


def test_a_run_whose_assets_follow_from_its_job_builds_all(slug: str, scoped: Scoped) -> None:
    assert {f"lake/{slug}", "lake/orders"} <= keys(scoped(ASSET_JOB))


@pytest.mark.parametrize(
    "selection", [{}, {"asset_selection": {AssetKey(["lake", "orders"])}}], ids=["batch", "asset"]
)
def test_the_definitions_that_a_run_builds_do_not_grow_with_the_datasets(
    selection: dict[str, set[object]], owner: Owner, scoped: Scoped, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ASSET_JOB if selection else "ingest"
    ops: list[object] = []
    init = OpDefinition.__init__

    def count(op: OpDefinition, *arguments: object, **names: object) -> None:
        ops.append(op)
        init(op, *arguments, **names)  # type: ignore[arg-type]

    monkeypatch.setattr(OpDefinition, "__init__", count)
    counts = []
    for _ in range(2):
        scoped(job, **selection).get_job(job)
        counts.append(len(ops))
        ops.clear()
        for _ in range(3):
            name = f"d{uuid.uuid4().hex[:8]}"
            registry.create_dataset(owner.tenant, name, f"pulse://{owner.tenant.slug}/orders/1")
    assert counts[0] == counts[1]
