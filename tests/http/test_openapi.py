"""The OpenAPI document is true: Schemathesis sends what it allows and what it forbids, to the real server."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient
from support.here import ingest_here as ingest
from support.http import Api
from support.ingest import event, make_owner

from pulse_api.http.app import create_app
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.registry import keys

SCHEMATHESIS = str(Path(sys.executable).parent / "st")
CONFIG = Path(__file__).parent / "schemathesis.toml"
GROUPS = {
    # A run of its own for what can end the key that the run itself uses.
    "tenant": ("--exclude-path-regex", r"^/(v1/(tenants|keys)|metrics)"),
    "keys": ("--include-path-regex", r"^/v1/keys"),
    "operator": ("--include-path-regex", r"^/(v1/tenants|metrics)"),
}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("examples", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_schemathesis_finds_nothing(api: Api, group: str, examples: int, tmp_path: Path) -> None:
    """With few examples it leaves out each parameter's boundaries, which take most of its time."""
    phases = "examples,fuzzing,stateful" if examples == 2 else "examples,coverage,fuzzing,stateful"
    owner = make_owner()
    owner.send(event("a"), b"a dead letter")
    ingest(owner)
    issued = (
        keys.issue_operator_key("schemathesis")
        if group == "operator"
        else keys.issue_key(owner.tenant, "schemathesis", list(KeyScope))
    )
    done = subprocess.run(
        [
            *(SCHEMATHESIS, "--config-file", str(CONFIG), "run", f"{api.url}/openapi.json"),
            *("-H", f"Authorization: Bearer {issued.text}", "--checks", "all", "--no-color"),
            *("--max-examples", str(examples), "--phases", phases, "--continue-on-failure", "--seed", "4"),
            # A connection a request: one that is refused again and again, as it is once the run has revoked
            # its own key, rests before each answer.
            *("-H", "Connection: close", "--generation-database", "none", *GROUPS[group]),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    assert "passed" in done.stdout


@pytest.mark.parametrize("event_id", ["o-1", "a/b", "x\ny", "x\n", "\u2028"])
def test_the_path_of_an_event_takes_every_id_that_collect_takes(event_id: str) -> None:
    answer = TestClient(create_app()).get(f"/v1/events/{quote(event_id, safe='')}")
    assert answer.status_code == 401, "it is no path that there is not (404)"


def test_the_document_is_enough_for_a_client() -> None:
    """Every operation has a name, a summary, a description, a security scheme, and typed answers."""
    document = create_app().openapi()
    names = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            endpoint = f"{method} {path}"
            names.append(operation["operationId"])
            assert operation["summary"], endpoint
            assert operation["description"], endpoint
            assert operation["tags"], endpoint
            if path not in ("/healthz", "/readyz"):
                assert operation["security"], endpoint
                assert "401" in operation["responses"], endpoint
            for status, response in operation["responses"].items():
                assert response["description"], f"{endpoint} {status}"
                if status != "204":
                    assert response["content"], f"{endpoint} {status}"
    assert len(set(names)) == len(names)
    problem = document["components"]["schemas"]["Problem"]
    assert {"type", "title", "status", "detail", "request_id"} <= problem["properties"].keys()


def test_generators_make_names_and_types_that_a_person_would() -> None:
    """A generated function is called like its operation, and a type like its component."""
    document = create_app().openapi()
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert not [
        o["operationId"] for o in operations if not re.fullmatch(r"[a-z]+(_[a-z]+)+", o["operationId"])
    ]
    assert not [o["operationId"] for o in operations if "_v1_" in o["operationId"]]
    assert not [name for name in document["components"]["schemas"] if not re.fullmatch(r"[A-Za-z]+", name)]
    assert document["servers"][0]["url"] == "/"
    body = document["paths"]["/v1/collect"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"]["anyOf"][0] == {"$ref": "#/components/schemas/Event"}
    assert not list(closed_objects(document, "")), "an object without members of its own permits any"


def closed_objects(part: object, place: str) -> Iterator[str]:
    """Places of schemas of objects for which a generator makes a type that permits no member."""
    if isinstance(part, dict):
        if part.get("type") == "object" and not {"properties", "additionalProperties"} & part.keys():
            yield place
        for name, member in part.items():
            if name not in ("example", "examples"):
                yield from closed_objects(member, f"{place}/{name}")
    elif isinstance(part, list):
        for index, member in enumerate(part):
            yield from closed_objects(member, f"{place}/{index}")


def test_each_operation_with_a_body_documents_errors_of_the_body() -> None:
    for path, operations in create_app().openapi()["paths"].items():
        for method, operation in operations.items():
            if "requestBody" in operation:
                assert {"400", "413", "422"} <= operation["responses"].keys(), f"{method} {path}"


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
def test_the_document_in_a_browser_needs_nothing_from_elsewhere(api: Api, page: str) -> None:
    with api.client() as client:
        html = client.get(page).text
        assert "/openapi.json" in html
        assets = re.findall(r'(?:src|href)="([^"]+)"', html)
        assert any(asset.endswith(".js") for asset in assets)
        for asset in assets:
            assert client.get(asset).status_code == 200, asset
