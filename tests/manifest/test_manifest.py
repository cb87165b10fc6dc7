"""Manifests: a plan names what differs, applying it does only that, and conflicts change nothing."""

import json
import os
import re
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import docs
from support.docs import blocks
from typer.testing import CliRunner, Result

from pulse_api import cli
from pulse_api.cli import apply as command
from pulse_pipelines import registry
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.manifest import document, plan as planning
from pulse_pipelines.manifest.steps import Step
from pulse_resources.errors import NotFound, UserError
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.settings import Settings

FIRST = {"type": "object", "properties": {"country": {"type": "string"}}}
SECOND = {"type": "object", "properties": {"country": {"type": "string"}, "amount": {"type": "number"}}}
ANOTHER_TYPE = {"type": "object", "properties": {"country": {"type": "integer"}}}

A_PIPE = "{{pipe: p{}, dataset: d, transform: SELECT 1}}"
TWICE = f"tenant: acme\npipes: [{', '.join(A_PIPE.format(number % 4) for number in range(8))}]"


@pytest.fixture
def manifest(stack: Settings) -> dict[str, Any]:
    return {
        "tenant": f"m_{uuid.uuid4().hex[:12]}",
        "limits": {"max_datasets": 5},
        "schemas": {"orders": FIRST},
        "datasets": {"orders": {"schema": "orders"}},
        "keys": {"shop": {"scopes": ["collect"]}},
    }


def apply(folder: Path, manifest: Mapping[str, Any], *options: str, code: int = 0) -> Result:
    file = folder / "manifest.yaml"
    file.write_text(yaml.safe_dump(manifest))
    result = CliRunner().invoke(cli.app, ["apply", "-f", str(file), *options])
    assert result.exit_code == code, result.output
    return result


def steps(folder: Path, manifest: Mapping[str, Any], *options: str, code: int = 0) -> list[str]:
    listed = json.loads(apply(folder, manifest, *options, "--json", code=code).stdout)["steps"]
    return [f"{step['action']} {step['kind']} {step['name']}" for step in listed]


def test_a_manifest_sets_a_tenant_up_once(manifest: dict[str, Any], tmp_path: Path) -> None:
    slug = manifest["tenant"]
    everything = [
        f"create tenant {slug}",
        "change limits max_datasets",
        f"create schema pulse://{slug}/orders/1",
        "create dataset orders",
        "create key shop",
    ]
    assert steps(tmp_path, manifest, "--plan", code=1) == everything
    with pytest.raises(NotFound):
        registry.find_tenant(slug)
    applied = json.loads(apply(tmp_path, manifest, "--json").stdout)["steps"]
    assert [f"{step['action']} {step['kind']} {step['name']}" for step in applied] == everything
    tenant = registry.find_tenant(slug)
    (key,) = registry.keys.list_keys(tenant)
    assert applied[-1]["key"].split("_")[2] == key.key_id
    assert registry.quotas.find_tenant_limits(tenant).max_datasets == 5
    assert steps(tmp_path, manifest) == steps(tmp_path, manifest, "--plan") == []
    assert "nothing to do" in apply(tmp_path, manifest).stdout


def test_a_later_version_of_a_schema_moves_its_dataset(manifest: dict[str, Any], tmp_path: Path) -> None:
    slug = manifest["tenant"]
    apply(tmp_path, manifest)
    (tmp_path / "second.json").write_text(json.dumps(SECOND))
    manifest["schemas"] = {"orders": [FIRST, "second.json"]}
    moving = [f"create schema pulse://{slug}/orders/2", "change dataset orders"]
    assert steps(tmp_path, manifest, "--plan", code=1) == moving
    assert steps(tmp_path, manifest) == moving
    tenant = registry.find_tenant(slug)
    assert registry.find_dataset(tenant, "orders").schema_uri == f"pulse://{slug}/orders/2"
    assert steps(tmp_path, manifest) == []
    manifest["datasets"]["orders"]["schema"] = f"pulse://{slug}/orders/1"
    assert "can only move to a later version" in apply(tmp_path, manifest, code=2).output


@pytest.mark.parametrize(
    ("member", "changed", "words"),
    [
        ("schemas", {"orders": [FIRST, ANOTHER_TYPE]}, "not compatible"),
        ("datasets", {"orders": {"schema": "orders", "kind": "entities"}}, "one of events"),
        ("datasets", {"orders": {"schema": "orders", "on_invalid": "dead_letter"}}, "on_invalid is refuse"),
        ("keys", {"shop": {"scopes": ["read"]}}, "its scopes are collect, not read"),
    ],
)
def test_an_impossible_change_is_a_conflict_and_nothing_is_applied(
    manifest: dict[str, Any], tmp_path: Path, member: str, changed: object, words: str
) -> None:
    apply(tmp_path, manifest)
    manifest |= {"limits": {"max_datasets": 7}, member: changed}
    assert words in apply(tmp_path, manifest, code=2).output
    assert any(step.startswith("conflict") for step in steps(tmp_path, manifest, "--plan", code=1))
    assert "1 in conflict" in apply(tmp_path, manifest, "--plan", code=1).output
    tenant = registry.find_tenant(manifest["tenant"])
    assert registry.quotas.find_tenant_limits(tenant).max_datasets == 5


def test_pruning_removes_objects_that_the_manifest_does_not_name(
    manifest: dict[str, Any], tmp_path: Path
) -> None:
    query = "SELECT country AS id, count(*) AS n FROM orders GROUP BY country"
    pipe = {"pipe": "totals", "dataset": "totals", "transform": query}
    manifest["pipes"] = [pipe]
    assert steps(tmp_path, manifest)[-1] == "create pipe totals"
    assert steps(tmp_path, manifest, "--prune", "--yes") == [], "the dataset of a pipe is not pruned"
    tenant = registry.find_tenant(manifest["tenant"])
    smaller = {"tenant": manifest["tenant"]}
    assert steps(tmp_path, smaller) == []
    assert "--plan, then add --yes" in apply(tmp_path, smaller, "--prune", code=2).output
    removed = ["remove pipe totals", "remove key shop", "remove dataset orders", "remove dataset totals"]
    assert steps(tmp_path, smaller, "--prune", "--plan", code=1) == removed
    assert steps(tmp_path, smaller, "--prune", "--yes") == removed
    assert registry.list_datasets(tenant) == []
    assert steps(tmp_path, smaller, "--prune", "--yes") == []


def test_conflicts_are_named_before_removals_are_asked_for(manifest: dict[str, Any], tmp_path: Path) -> None:
    apply(tmp_path, manifest | {"keys": {"shop": {"scopes": ["collect"]}, "old": {"scopes": ["read"]}}})
    manifest["keys"] = {"shop": {"scopes": ["read"]}}
    manifest["datasets"] = {"orders": {"schema": "orders", "kind": "entities"}}
    output = apply(tmp_path, manifest, "--prune", code=2).output
    assert "the dataset orders differs" in output
    assert "the key shop differs" in output
    assert "confirmation" not in output


def test_two_commands_for_one_tenant_follow_each_other(
    manifest: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remarks = []

    def end_of_the_first(remark: str) -> None:
        remarks.append(remark)
        parsed = document.parse(yaml.safe_dump(manifest).encode(), lambda path: b"")
        list(planning.carry_out(parsed, planning.plan(parsed)))
        first.close()

    monkeypatch.setattr(command, "remark", end_of_the_first)
    with ExitStack() as first:
        first.enter_context(locks.session(Lock.MANIFEST, manifest["tenant"]))
        assert "nothing to do" in apply(tmp_path, manifest).output
    assert remarks == [
        f"Another command applies a manifest of {manifest['tenant']}: waiting until it has ended."
    ]


def test_a_key_is_printed_even_if_a_later_step_fails(manifest: dict[str, Any], tmp_path: Path) -> None:
    manifest["pipes"] = [{"pipe": "planes", "dataset": "planes", "source": "nowhere", "table": "planes"}]
    listed = json.loads(apply(tmp_path, manifest, "--json", code=2).stdout)["steps"]
    (key,) = registry.keys.list_keys(registry.find_tenant(manifest["tenant"]))
    assert [step["key"].split("_")[2] for step in listed if "key" in step] == [key.key_id]


def test_an_object_added_during_the_confirmation_needs_another_one(
    manifest: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(tmp_path, manifest)
    tenant = registry.find_tenant(manifest["tenant"])
    prompts = []

    def add_a_key_once(slug: str, removals: Sequence[Step]) -> None:
        prompts.append([step.name for step in removals])
        if len(prompts) == 1:
            registry.keys.issue_key(tenant, "late", [KeyScope.READ])

    monkeypatch.setattr(command, "_confirm", add_a_key_once)
    removed = steps(tmp_path, {"tenant": manifest["tenant"]}, "--prune")
    assert prompts == [["shop", "orders"], ["late", "shop", "orders"]]
    assert removed == ["remove key late", "remove key shop", "remove dataset orders"]


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ("- a list", "not a mapping"),
        ("tenant: {", "neither YAML nor JSON"),
        ("name: Acme", "tenant: Field required"),
        ("tenant: acme\ndataset: {}", "dataset: Extra inputs"),
        ("tenant: acme\n? [a, b]\n: c", "neither YAML nor JSON"),
        ("tenant: acme\ntenant: b", "'tenant' is there twice"),
        ("tenant: acme\nschemas: {a: &a {b: 1}, c: *a}", "an alias"),
        ("tenant: acme\nschemas: {a: " + "[" * 100_000, "more than 100 levels"),
        ("tenant: acme\nlimits: {max_datasets: -2}", "limits.max_datasets"),
        ("tenant: acme\nlimits: {max_datasets: true}", "limits.max_datasets: Value error, must be a number"),
        ("tenant: acme\nschemas: {orders: a.json}", "schemas.orders: cannot read a.json"),
        ("tenant: acme\nschemas: {orders: 7}", "schemas.orders: a schema is a path"),
        ("tenant: acme\nschemas: {orders: []}", "schemas.orders: it has no version"),
        ("tenant: acme\nschemas: {orders: {a: 2026-11-19}}", ""),
        (
            "tenant: acme\nschemas: {orders: {maximum: 0.10000000000000000001}}",
            "schemas.orders: 0.100.*compared",
        ),
        (
            '{"tenant": "acme", "schemas": {"orders": {"const": 9007199254740993.0}}}',
            "schemas.orders: 9007.*compared",
        ),
        ("tenant: acme\ndatasets: {orders: {}}", "datasets.orders.schema: Field required"),
        ("tenant: acme\nkeys: {shop: {scopes: [all]}}", "keys.shop.scopes"),
        ("tenant: acme\npipes: [7]", "pipes: number 1 is neither"),
        ("tenant: acme\npipes: [{pipe: a}]", "the pipe has no"),
        (TWICE, "pipes: p0, p1, p2, and 1 more: a pipe is defined once"),
    ],
)
def test_a_manifest_that_is_not_valid_is_refused_with_the_place(manifest: str, words: str) -> None:
    def read(path: str) -> bytes:
        raise UserError(f"cannot read {path}")

    if words:
        with pytest.raises(UserError, match=words):
            document.parse(manifest.encode(), read)
    else:
        assert document.parse(manifest.encode(), read).schemas["orders"] == ('{"a":"2026-11-19"}',)


def test_numbers_of_a_schema_are_written_as_doubles() -> None:
    yaml = b"tenant: acme\nschemas: {a: {b: [1.10, .5, 10.0, -1.5, 0.10000000000000000001]}}"
    assert document.parse(yaml, lambda _: b"").schemas["a"] == ('{"b":[1.1,0.5,10.0,-1.5,0.1]}',)


def test_undefined_schemas_are_named_together() -> None:
    slugs = [f"d{number}" for number in range(60)]
    sets = ", ".join(f"{slug}: {{schema: of_{slug}}}" for slug in slugs)
    many = document.parse(f"tenant: acme\ndatasets: {{{sets}}}".encode(), lambda path: b"")
    with pytest.raises(UserError, match=r"d0 \('of_d0'\), d1 \('of_d1'\), d2 \('of_d2'\), and 57 more"):
        planning.plan(many)


def test_the_commands_of_the_page_work(stack: Settings, tmp_path: Path) -> None:
    slug = f"m_{uuid.uuid4().hex[:12]}"
    example = (docs.DOCS / "examples" / "acme.yaml").read_text()
    assert blocks("manifest.md", "yaml")[0] == example
    (tmp_path / "docs" / "examples").mkdir(parents=True)
    (tmp_path / "docs" / "examples" / "acme.yaml").write_text(example.replace("acme", slug))
    (tmp_path / "docs" / "examples" / "orders.json").write_bytes(
        (docs.DOCS / "examples" / "orders.json").read_bytes()
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    commands = blocks("manifest.md")[0].replace("show acme", f"show {slug}")
    shown = docs.run(commands, tmp_path, KEY="", PATH=path)
    assert shown.count("dataset orders") == 2, "in the plan, and when it is done"
    assert f"tenant {slug} is as the manifest says" in shown


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schemas": {"orders": "/dev/zero"}}, "names a file that does not exist"),
        ({"schemas": {"orders": "large.json"}}, "has more than"),
        ({"name": "x\u202ey"}, "not a valid name"),
        ({"keys": {"\x1b[31mx": {"scopes": ["read"]}}}, "not a valid name"),
    ],
)
def test_a_plan_refuses_a_manifest_that_cannot_be_applied(
    manifest: dict[str, Any], tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with (tmp_path / "large.json").open("wb") as large:
        large.truncate(5 * 1024 * 1024)
    assert words in apply(tmp_path, manifest | changes, "--plan", code=2).output


@pytest.mark.parametrize(
    "text",
    ["NO", "yes", "On", "off", "010", "0o10", "1_000", "0b11", "12:30:00", "1:30.5", "1_0.5", "1e3", "-1E-2",
     "08", "-019", "-.5", "+.5", "1.e3", ".5e3", "+1.5e3"],
)  # fmt: skip
def test_a_value_that_versions_of_yaml_do_not_take_alike_is_refused(text: str) -> None:
    for content in (f"a: {{enum: [DE, {text}]}}", f"{text}: x"):
        with pytest.raises(UserError, match=re.escape(f"{text} is not the same in all versions of YAML")):
            document.load(content.encode(), "the file")
    assert document.load(f"a: ['{text}', \"{text}\"]".encode(), "the file") == {"a": [text, text]}


@pytest.mark.parametrize("text", [".nan", "-.inf", "1.0e+400", "!!binary aGk=", "!!omap [a: 1]", "!!set {a}"])
def test_a_value_of_yaml_that_json_lacks_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"is not a number of JSON|determine a constructor"):
        document.load(f"a: {text}".encode(), "the file")


def test_a_merge_of_yaml_which_its_later_version_lacks_is_refused() -> None:
    with pytest.raises(UserError, match="<< is not the same"):
        document.load(b"{<<: {a: 1}, b: 2}", "the file")
    assert document.load(b"{'<<': 1}", "the file") == {"<<": 1}


def test_a_value_of_yaml_is_read_like_json_and_a_date_is_a_text() -> None:
    content = (
        "[true, False, 0, -7, 0x1F, 1.10, 1.0e+3, ~, null, 2026-01-01, 2026-01-01T00:00:00Z, y, 08:x, a b]"
    )
    expected = [True, False, 0, -7, 31, 1.1, 1000.0, None, None, "2026-01-01", "2026-01-01T00:00:00Z"]
    assert document.load(content.encode(), "the file") == [*expected, "y", "08:x", "a b"]
