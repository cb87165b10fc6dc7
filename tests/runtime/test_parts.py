"""Parts of the definitions: what the services load is what Dagster makes of all, built once."""

import gc
import json
import uuid
from collections.abc import Callable, Collection, Hashable, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._api import snapshot_repository
from dagster._core.remote_representation.external_data import (
    RepositoryErrorSnap,
    RepositorySnap,
    asset_node_snaps_from_repo,
)
from dagster._core.snap.node import build_op_def_snap
from dagster._record import copy
from support.ingest import Owner

from pulse_pipelines import registry
from pulse_pipelines.definitions import PARTS, defs
from pulse_pipelines.runtime import parts as parts_of_this_process, run_scope
from pulse_pipelines.runtime.parts import (
    COLLECT_AFTER,
    KeptParts,
    Likeness,
    PartedSnapshot,
    keep_loaded_parts,
    shows_check,
)
from pulse_pipelines.runtime.parts_file import PartsFile, unpacked

ASSET_JOB = "__ASSET_JOB"


class Counted:
    """The parts, which were made, which of them built by themselves, and which one cannot be."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.built: list[str] = []
        self.models = 0
        self.refused = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(PARTS, name)

    def likenesses(self, names: Collection[str]) -> Mapping[str, Likeness]:
        if self.refused in names:
            raise dg.DagsterInvalidDefinitionError(self.refused)
        self.made += names
        return PARTS.likenesses(names)

    def build(self, names: Collection[str]) -> dg.Definitions:
        self.built += names
        return PARTS.build(names)

    def build_model(self, form: Hashable, name: str) -> dg.Definitions:
        self.models += 1
        return PARTS.build_model(form, name)


def loaded(parted: PartedSnapshot) -> RepositorySnap:
    """What a service loads that has kept nothing."""
    snapshot: RepositorySnap = KeptParts().deserialize(parted.text(), RepositorySnap)
    return snapshot


def create(owner: Owner) -> str:
    """A dataset besides `orders`; its slug."""
    slug = f"d{uuid.uuid4().hex[:8]}"
    registry.create_dataset(owner.tenant, slug, f"pulse://{owner.tenant.slug}/orders/1")
    return slug


@pytest.fixture
def slug(owner: Owner) -> str:
    return create(owner)


@pytest.fixture
def built_repository(monkeypatch: pytest.MonkeyPatch) -> dg.RepositoryDefinition:
    """What the code server keeps built."""
    with monkeypatch.context() as server:
        server.setattr(run_scope, "_parted", True)
        return defs().get_repository_def()


@pytest.fixture
def file(tmp_path: Path) -> PartsFile:
    return PartsFile(tmp_path / "parts.sqlite")


def keys(snapshot: RepositorySnap) -> set[str]:
    return {node.asset_key.to_user_string() for node in snapshot.asset_nodes}


def test_the_loaded_parts_equal_the_whole_repository_of_dagster(
    slug: str, built_repository: dg.RepositoryDefinition, file: PartsFile
) -> None:
    whole = defs().get_repository_def()
    expected = RepositorySnap.from_def(whole, defer_snapshots=True)
    parted = PartedSnapshot(PARTS, file)
    parted.refresh(built_repository)
    shown = loaded(parted)
    assert f"lake/{slug}" in keys(shown)

    def nodes(snapshot: RepositorySnap) -> list[Any]:
        return sorted(
            (copy(n, node_definition_name="") for n in snapshot.asset_nodes), key=lambda n: n.asset_key
        )

    assert nodes(shown) == nodes(expected)
    assert shown.asset_check_nodes is not None
    assert sorted(shown.asset_check_nodes, key=lambda c: c.key) == list(expected.asset_check_nodes or ())
    assert [copy(sensor, asset_selection=None) for sensor in shown.sensors] == expected.sensors
    updating = {sensor.name for sensor in shown.sensors if sensor.asset_selection is not None}
    assert updating == {"ingest_lag", "curated_due"}, "assets show what updates them"
    assert shown.schedules == expected.schedules
    assert [job.name for job in shown.get_job_refs()] == [job.name for job in expected.get_job_refs()]
    assert shown.metadata == expected.metadata


class Unlike:
    """The parts, each of which is built by itself."""

    def __getattr__(self, name: str) -> Any:
        return getattr(PARTS, name)

    def likenesses(self, _names: Collection[str]) -> Mapping[str, Likeness]:
        return {}


def test_a_part_made_from_a_model_is_the_one_that_dagster_builds(
    new_owner: Callable[[], Owner], slug: str, built_repository: dg.RepositoryDefinition, tmp_path: Path
) -> None:
    one, other = new_owner(), new_owner()
    acting = {"type": "object", "properties": {"who": {"type": "string", "description": 'a "name"\\n\x7f'}}}
    document = json.dumps(acting | {"x-pulse-actor": "who"})
    shared = f"d{uuid.uuid4().hex[:8]}"
    registry.create_dataset(one.tenant, shared, f"pulse://{one.tenant.slug}/orders/1")
    for owner, name in ((one, f"a_{shared}"), (other, shared)):
        uri = registry.publish_schema(owner.tenant, "acts", document).schema_uri
        registry.create_dataset(owner.tenant, name, uri, 'Orders, "all" \\u0041 of \U0001f600')
    texts = []
    for number, parts in enumerate((PARTS, Unlike())):
        parted = PartedSnapshot(parts, PartsFile(tmp_path / f"parts{number}.sqlite"))
        parted.refresh(built_repository)
        texts.append([unpacked(line) for line in parted.text().split("\n")[2:]])
    assert texts[0] == texts[1]
    assert any(f'["curated", "a_{shared}", "behaviour"]' in text for text in texts[0])


def test_an_asset_s_op_has_the_config_and_the_resources_of_its_model(
    slug: str, built_repository: dg.RepositoryDefinition, file: PartsFile
) -> None:
    part = PARTS.build([slug]).get_repository_def()
    nodes = asset_node_snaps_from_repo(part)
    assert {node.asset_key.path[0] for node in nodes} == {"lake", "curated"}
    for node in nodes:
        op = _op(part, str(node.node_definition_name))
        model = _op(built_repository, PARTS.model_of(node.asset_key))
        assert model.config_field_snap == op.config_field_snap
        assert model.required_resource_keys == op.required_resource_keys
        assert model.tags == op.tags


def _op(built: dg.RepositoryDefinition, name: str) -> Any:
    job = built.get_job(ASSET_JOB)
    return build_op_def_snap(job.graph.node_named(name).definition, job)  # type: ignore[arg-type]


def test_only_parts_that_have_changed_are_built_again(
    owner: Owner, slug: str, built_repository: dg.RepositoryDefinition, file: PartsFile
) -> None:
    parts = Counted()
    parted = PartedSnapshot(parts, file)
    parted.refresh(built_repository)
    assert slug in parts.made
    parts.made.clear()
    parted.refresh(built_repository)
    assert parts.made == []
    other = create(owner)
    parted.refresh(built_repository)
    assert parts.made == [other]
    registry.delete_dataset(owner.tenant, slug)
    parted.refresh(built_repository)
    assert parts.made == [other]
    assert {f"lake/{slug}", f"lake/{other}"} & keys(loaded(parted)) == {f"lake/{other}"}


def test_a_service_reads_only_parts_that_have_changed_again(
    owner: Owner, slug: str, built_repository: dg.RepositoryDefinition, file: PartsFile
) -> None:
    types = (RepositorySnap, RepositoryErrorSnap)
    parted, parts = PartedSnapshot(PARTS, file), KeptParts()
    parted.refresh(built_repository)
    first = parts.deserialize(parted.text(), types)
    assert first == loaded(parted)
    other = create(owner)
    parted.refresh(built_repository)
    second = parts.deserialize(parted.text(), types)
    assert second == loaded(parted)
    read = {id(node) for node in first.asset_nodes}
    assert {n.asset_key.path[1] for n in second.asset_nodes if id(n) not in read} == {other}


def test_a_launch_builds_the_selected_assets_alone(
    slug: str, built_repository: dg.RepositoryDefinition, file: PartsFile
) -> None:
    parted = PartedSnapshot(PARTS, file)
    parted.refresh(built_repository)
    pipe = dg.AssetKey(["pipes", "any"])
    assert parted.select({pipe}).asset_graph.get_all_asset_keys() == {pipe}
    selected = parted.select({dg.AssetKey(["lake", slug])})
    assert "lake/orders" not in {key.to_user_string() for key in selected.asset_graph.get_all_asset_keys()}
    assert parted.select({dg.AssetKey(["lake", slug])}) is selected
    parted.refresh(built_repository)
    assert parted.select({dg.AssetKey(["lake", slug])}) is not selected, "the dataset may be another one"


def test_a_server_that_starts_again_builds_no_part_that_is_as_before(
    owner: Owner, slug: str, built_repository: dg.RepositoryDefinition, file: PartsFile
) -> None:
    before = PartedSnapshot(PARTS, file)
    before.refresh(built_repository)
    parts = Counted()
    other = create(owner)
    again = PartedSnapshot(parts, file)
    assert again.refresh(built_repository, at_once=True)
    assert parts.made == [other]
    before.refresh(built_repository)
    assert again.text() == before.text()


def test_a_server_with_other_code_shows_the_parts_of_before_until_it_has_built_them(
    slug: str, built_repository: dg.RepositoryDefinition, file: PartsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = PartedSnapshot(PARTS, file)
    before.refresh(built_repository)
    monkeypatch.setattr("pulse_pipelines.runtime.parts.code_version", lambda: "another")
    parts = Counted()
    after = PartedSnapshot(parts, file)
    assert not after.refresh(built_repository, at_once=True)
    assert parts.made == []
    assert after.text() == before.text()
    assert after.refresh(built_repository)
    assert slug in parts.made


def test_a_damaged_file_is_replaced(
    slug: str, built_repository: dg.RepositoryDefinition, tmp_path: Path
) -> None:
    file = PartsFile(tmp_path / "parts.sqlite")
    PartedSnapshot(PARTS, file).refresh(built_repository)
    (database,) = tmp_path.iterdir()
    database.write_bytes(b"no database" * 1_000)
    assert PartedSnapshot(PARTS, file).refresh(built_repository)
    assert slug in file.read()


def test_alerts_include_the_checks_of_parts(
    slug: str, built_repository: dg.RepositoryDefinition, file: PartsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = set(defs().get_repository_def().asset_graph.asset_check_keys)
    known = dg.AssetCheckKey(dg.AssetKey(["lake", slug]), "reconciled")
    assert known in expected
    for _ in ("built", "read from the file"):
        monkeypatch.setattr(parts_of_this_process, "_shown", [])
        PartedSnapshot(PARTS, file).refresh(built_repository)
        assert all(shows_check(built_repository, key) for key in expected)
        assert not shows_check(built_repository, dg.AssetCheckKey(known.asset_key, "another"))
        assert not shows_check(built_repository, dg.AssetCheckKey(dg.AssetKey(["lake", "gone"]), known.name))


def test_a_part_like_an_existing_one_is_not_built(
    owner: Owner, slug: str, built_repository: dg.RepositoryDefinition, file: PartsFile
) -> None:
    parts = Counted()
    parted = PartedSnapshot(parts, file)
    parted.refresh(built_repository)
    parts.made.clear()
    parts.models = 0
    created = [create(owner) for _ in range(3)]
    parted.refresh(built_repository)
    assert sorted(parts.made) == sorted(created)
    assert (parts.built, parts.models) == ([], 1)


def test_a_part_that_cannot_be_built_hides_no_other(
    owner: Owner, slug: str, built_repository: dg.RepositoryDefinition, file: PartsFile
) -> None:
    parts = Counted()
    parts.refused = slug
    other = create(owner)
    parted = PartedSnapshot(parts, file)
    parted.refresh(built_repository)
    shown = keys(loaded(parted))
    assert f"lake/{other}" in shown
    assert f"lake/{slug}" not in shown


def test_a_service_with_many_kept_objects_does_not_scan_them_repeatedly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot_repository, "deserialize_value", None)
    before = gc.get_threshold()
    try:
        keep_loaded_parts()
        collected = sum(generation["collections"] for generation in gc.get_stats())
        objects = [[number] for number in range(COLLECT_AFTER // 2)]
        assert sum(generation["collections"] for generation in gc.get_stats()) - collected <= 1
        assert objects
    finally:
        gc.set_threshold(*before)
