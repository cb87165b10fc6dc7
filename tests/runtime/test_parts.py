"""Parts of the definitions: what the services load is what Dagster makes of all, built once."""

import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_representation.external_data import (
    RepositoryErrorSnap,
    RepositorySnap,
    asset_node_snaps_from_repo,
)
from dagster._core.snap.node import build_op_def_snap
from dagster._record import copy
from dagster._serdes import deserialize_value
from support.ingest import Owner

from pulse_pipelines import registry
from pulse_pipelines.definitions import PARTS, defs
from pulse_pipelines.runtime import parts as parts_of_this_process, run_scope
from pulse_pipelines.runtime.parts import KeptParts, PartedSnapshot
from pulse_pipelines.runtime.parts_file import PartsFile

ASSET_JOB = "__ASSET_JOB"


class Counted:
    """The parts, which were built, and which one cannot be."""

    def __init__(self) -> None:
        self.built: list[str] = []
        self.refused = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(PARTS, name)

    def build(self, names: Collection[str]) -> dg.Definitions:
        if self.refused in names:
            raise dg.DagsterInvalidDefinitionError(self.refused)
        self.built += names
        return PARTS.build(names)


def create(owner: Owner) -> str:
    """A dataset besides `orders`; its slug."""
    slug = f"d{uuid.uuid4().hex[:8]}"
    registry.create_dataset(owner.tenant, slug, f"pulse://{owner.tenant.slug}/orders/1")
    return slug


@pytest.fixture
def slug(owner: Owner) -> str:
    return create(owner)


@pytest.fixture
def rest(monkeypatch: pytest.MonkeyPatch) -> dg.RepositoryDefinition:
    """What the code server keeps built."""
    with monkeypatch.context() as server:
        server.setattr(run_scope, "_parted", True)
        return defs().get_repository_def()


@pytest.fixture
def file(tmp_path: Path) -> PartsFile:
    return PartsFile(tmp_path / "parts.sqlite")


def keys(snapshot: RepositorySnap) -> set[str]:
    return {node.asset_key.to_user_string() for node in snapshot.asset_nodes}


def test_the_services_load_what_dagster_makes_of_all(
    slug: str, rest: dg.RepositoryDefinition, file: PartsFile
) -> None:
    whole = defs().get_repository_def()
    expected = RepositorySnap.from_def(whole, defer_snapshots=True)
    parted = PartedSnapshot(PARTS, file)
    parted.refresh(rest)
    loaded = deserialize_value(parted.text(), RepositorySnap)
    assert f"lake/{slug}" in keys(loaded)

    def nodes(snapshot: RepositorySnap) -> list[Any]:
        return sorted(
            (copy(n, node_definition_name="") for n in snapshot.asset_nodes), key=lambda n: n.asset_key
        )

    assert nodes(loaded) == nodes(expected)
    assert loaded.asset_check_nodes is not None
    assert sorted(loaded.asset_check_nodes, key=lambda c: c.key) == list(expected.asset_check_nodes or ())
    assert loaded.sensors == expected.sensors
    assert loaded.schedules == expected.schedules
    assert [job.name for job in loaded.get_job_refs()] == [job.name for job in expected.get_job_refs()]
    assert loaded.metadata == expected.metadata


def test_an_asset_s_op_has_the_config_and_the_resources_of_its_model(
    slug: str, rest: dg.RepositoryDefinition, file: PartsFile
) -> None:
    part = PARTS.build([slug]).get_repository_def()
    nodes = asset_node_snaps_from_repo(part)
    assert {node.asset_key.path[0] for node in nodes} == {"lake", "curated"}
    for node in nodes:
        op = _op(part, str(node.node_definition_name))
        model = _op(rest, PARTS.model_of(node.asset_key))
        assert model.config_field_snap == op.config_field_snap
        assert model.required_resource_keys == op.required_resource_keys
        assert model.tags == op.tags


def _op(built: dg.RepositoryDefinition, name: str) -> Any:
    job = built.get_job(ASSET_JOB)
    return build_op_def_snap(job.graph.node_named(name).definition, job)  # type: ignore[arg-type]


def test_only_parts_that_have_changed_are_built_again(
    owner: Owner, slug: str, rest: dg.RepositoryDefinition, file: PartsFile
) -> None:
    parts = Counted()
    parted = PartedSnapshot(parts, file)
    parted.refresh(rest)
    assert slug in parts.built
    parts.built.clear()
    parted.refresh(rest)
    assert parts.built == []
    other = create(owner)
    parted.refresh(rest)
    assert parts.built == [other]
    registry.delete_dataset(owner.tenant, slug)
    parted.refresh(rest)
    assert parts.built == [other]
    assert {f"lake/{slug}", f"lake/{other}"} & keys(deserialize_value(parted.text(), RepositorySnap)) == {
        f"lake/{other}"
    }


def test_a_service_reads_only_parts_that_have_changed_again(
    owner: Owner, slug: str, rest: dg.RepositoryDefinition, file: PartsFile
) -> None:
    types = (RepositorySnap, RepositoryErrorSnap)
    parted, kept = PartedSnapshot(PARTS, file), KeptParts()
    parted.refresh(rest)
    first = kept.deserialize(parted.text(), types)
    assert first == deserialize_value(parted.text(), types)
    other = create(owner)
    parted.refresh(rest)
    second = kept.deserialize(parted.text(), types)
    assert second == deserialize_value(parted.text(), types)
    read = {id(node) for node in first.asset_nodes}
    assert {n.asset_key.path[1] for n in second.asset_nodes if id(n) not in read} == {other}


def test_a_launch_builds_the_selected_assets_alone(
    slug: str, rest: dg.RepositoryDefinition, file: PartsFile
) -> None:
    parted = PartedSnapshot(PARTS, file)
    parted.refresh(rest)
    assert parted.select({dg.AssetKey(["pipes", "any"])}) is None
    selected = parted.select({dg.AssetKey(["lake", slug])})
    assert selected is not None
    assert "lake/orders" not in {key.to_user_string() for key in selected.asset_graph.get_all_asset_keys()}
    assert parted.select({dg.AssetKey(["lake", slug])}) is selected
    parted.refresh(rest)
    assert parted.select({dg.AssetKey(["lake", slug])}) is not selected, "the dataset may be another one"


def test_a_server_that_starts_again_builds_no_part_that_is_as_before(
    owner: Owner, slug: str, rest: dg.RepositoryDefinition, file: PartsFile
) -> None:
    before = PartedSnapshot(PARTS, file)
    before.refresh(rest)
    parts = Counted()
    other = create(owner)
    again = PartedSnapshot(parts, file)
    assert again.refresh(rest, at_once=True)
    assert parts.built == [other]
    before.refresh(rest)
    assert again.text() == before.text()


def test_a_server_with_other_code_shows_the_parts_of_before_until_it_has_built_them(
    slug: str, rest: dg.RepositoryDefinition, file: PartsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = PartedSnapshot(PARTS, file)
    before.refresh(rest)
    monkeypatch.setattr("pulse_pipelines.runtime.parts.code_version", lambda: "another")
    parts = Counted()
    after = PartedSnapshot(parts, file)
    assert not after.refresh(rest, at_once=True)
    assert parts.built == []
    assert after.text() == before.text()
    assert after.refresh(rest)
    assert slug in parts.built


def test_a_damaged_file_is_begun_anew(slug: str, rest: dg.RepositoryDefinition, tmp_path: Path) -> None:
    file = PartsFile(tmp_path / "parts.sqlite")
    PartedSnapshot(PARTS, file).refresh(rest)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(b"no database" * 1_000)
    assert PartedSnapshot(PARTS, file).refresh(rest)
    assert slug in file.read()


def test_alerts_look_at_the_checks_of_parts(
    slug: str, rest: dg.RepositoryDefinition, file: PartsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = set(defs().get_repository_def().asset_graph.asset_check_keys)
    assert dg.AssetCheckKey(dg.AssetKey(["lake", slug]), "reconciled") in expected
    for _ in ("built", "read from the file"):
        monkeypatch.setattr(parts_of_this_process, "_check_keys", [])
        PartedSnapshot(PARTS, file).refresh(rest)
        assert expected <= set(parts_of_this_process.shown_check_keys(rest))


def test_a_part_that_cannot_be_built_hides_no_other(
    owner: Owner, slug: str, rest: dg.RepositoryDefinition, file: PartsFile
) -> None:
    parts = Counted()
    parts.refused = slug
    other = create(owner)
    parted = PartedSnapshot(parts, file)
    parted.refresh(rest)
    shown = keys(deserialize_value(parted.text(), RepositorySnap))
    assert f"lake/{other}" in shown
    assert f"lake/{slug}" not in shown
