"""Validation agrees with the official JSON-Schema-Test-Suite's required tests, for every draft accepted.

The suite comes from the source distribution of `jsonschema`, which carries it; it is fetched once per user.
"""

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import ReferencingError

from pulse_pipelines.domain.schemas.schema import DRAFTS, validator
from pulse_resources.local.downloads import Download, Report

RELEASE = version("jsonschema")
FOLDERS = ("draft2020-12", "draft2019-09", "draft7", "draft6", "draft4")
REMOTE = "http://localhost:1234/"
"""Where the suite expects documents to be: schemas that need one of them are refused, and no others."""


def fill(folder: Path, report: Report) -> None:
    """Put the suite of jsonschema's source distribution into an empty folder."""
    report("the source distribution of jsonschema")
    options = ["--no-binary", "jsonschema", "--no-deps", f"jsonschema=={RELEASE}"]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *options],
        check=True,
        capture_output=True,
    )
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (tests,) = folder.glob("jsonschema-*/json/tests")
    tests.rename(folder / "tests")


SUITE = Download(f"json-schema-test-suite-{RELEASE}", "the JSON-Schema-Test-Suite", fill)


@pytest.fixture(scope="session")
def suite() -> Path:
    SUITE.fetch(lambda line: None)
    return SUITE.path / "tests"


def cases(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every required case of a draft; optional ones are in folders below."""
    for path in sorted(folder.glob("*.json")):
        for case in json.loads(path.read_text()):
            yield path.stem, case


def whole(schema: Any, draft: str) -> dict[str, Any]:
    """A schema as a document: what is no object cannot say its draft."""
    if isinstance(schema, dict):
        return {"$schema": draft} | schema
    return {"$schema": draft} | ({} if schema else {"not": {}})


Place = tuple[str, str, str]


def compare(suite: Path, name: str) -> tuple[int, list[Place], dict[Place, str]]:
    """How many verdicts are the suite's, where ours is another one, and which cases are refused and why."""
    draft = DRAFTS[FOLDERS.index(name)]
    agreed, wrong, refused = 0, [], {}
    for file, case in cases(suite / name):
        try:
            check = validator(whole(case["schema"], draft))
        except (ValueError, ReferencingError) as error:
            refused[name, file, case["description"]] = str(error)
            continue
        for test in case["tests"]:
            if check.is_valid(test["data"]) == test["valid"]:
                agreed += 1
            else:
                wrong.append((file, case["description"], test["description"]))
    return agreed, wrong, refused


@pytest.mark.parametrize("name", FOLDERS)
def test_every_verdict_is_that_of_the_suite(suite: Path, name: str) -> None:
    agreed, wrong, refused = compare(suite, name)
    assert wrong == [], "no verdict is another one"
    assert {place: error for place, error in refused.items() if REMOTE not in error} == {}
    files = {file for _, file, _ in refused}
    assert files <= {"refRemote", "dynamicRef", "vocabulary"}
    assert "refRemote" in files
    assert agreed > 500
