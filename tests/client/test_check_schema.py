"""`python -m pulse_client.check_schema`, its action for CI, and the page about schemas in a repository."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from support.docs import DOCS, blocks

from pulse_client import check_schema
from pulse_pipelines.domain.schemas.columns import columns

ACTION = DOCS.parent / ".github" / "actions" / "check-schemas" / "action.yml"
CHECKED = {"columns": [{"name": "country", "type": "string"}], "incompatibilities": None}
OBSTACLE = {"pointer": "/properties/amount", "change": "removed", "reason": "an event could have it"}
REFUSED = {"type": "urn:pulse:problem:invalid-schema", "detail": "the pattern backtracks", "fix": "Change it"}


@dataclass
class Pulse:
    """Answers every check with the same answer, and keeps the requests."""

    answer: httpx.Response | Exception = field(default_factory=lambda: httpx.Response(200, json=CHECKED))
    requests: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def check(self, *arguments: object) -> int:
        http = httpx.Client(transport=httpx.MockTransport(self))
        return check_schema.main([str(argument) for argument in arguments], http)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_URL", "http://pulse/")
    monkeypatch.setenv("PULSE_KEY", "the-key")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    file = tmp_path / "Shop-Orders.v2.json"
    file.write_text('\N{BOM}{"type": "object", "maximum": 1.10000000000000000001}')
    return file


def test_a_schema_that_can_be_published_passes(schema: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pulse = Pulse()
    assert pulse.check(schema, "--dataset", "orders") == 0
    (request,) = pulse.requests
    assert (request.method, str(request.url)) == ("POST", "http://pulse/v1/schemas/check?dataset=orders")
    assert request.headers["authorization"] == "Bearer the-key"
    assert request.content == (
        b'{"name": "shop_orders", "schema": {"type": "object", "maximum": 1.10000000000000000001}}'
    )
    assert capsys.readouterr().out == f"{schema}: country string\n"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (httpx.Response(422, json=REFUSED), "the pattern backtracks. Change it"),
        (
            httpx.Response(200, json=CHECKED | {"incompatibilities": [OBSTACLE]}),
            "/properties/amount: removed: an event could have it",
        ),
        (httpx.Response(502, content=b"<html>"), "http://pulse/ answers with something else than JSON"),
        (httpx.Response(404, json=[1]), "the answer does not come from a Pulse API (status 404)"),
        (httpx.ConnectError("refused"), "Pulse does not answer at http://pulse/: refused"),
    ],
)
def test_each_error_is_one_line_with_the_file_name(
    answer: httpx.Response | Exception, text: str, schema: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Pulse(answer).check(schema) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{schema}: {text}")


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"{", "it is not JSON"), (b"\xff", "it is not JSON"), (b"[" * 100_000, ""), (None, "No such file")],
)
def test_a_file_that_cannot_be_read_is_named(
    content: bytes | None, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, pulse = tmp_path / "orders.json", Pulse()
    if content is not None:
        file.write_bytes(content)
    assert pulse.check(file) == 1
    assert not pulse.requests
    error = capsys.readouterr().err
    assert error.startswith(f"{file}: ")
    assert text in error


def test_a_problem_annotates_its_file_on_one_line(
    schema: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    hostile = schema.with_name("a,b%:c.json")
    hostile.write_bytes(schema.read_bytes())
    answer = httpx.Response(422, json={"detail": "100 %\n::error::another"})
    assert Pulse(answer).check(hostile, "--name", "orders") == 1
    (line,) = capsys.readouterr().out.splitlines()
    folder, detail = hostile.parent, "100 %25\N{REPLACEMENT CHARACTER}::error::another"
    assert line == f"::error file={folder}/a%2Cb%25%3Ac.json::{detail}"


@pytest.mark.parametrize("variable", ["PULSE_URL", "PULSE_KEY"])
def test_without_an_address_or_a_key_the_command_is_wrong(
    variable: str, schema: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(variable)
    with pytest.raises(SystemExit, match="2"):
        Pulse().check(schema)
    assert f"{variable} is not set" in capsys.readouterr().err


@pytest.fixture
def address() -> Iterator[tuple[str, list[bytes]]]:
    """The address of an API that refuses everything, and the bodies of its requests."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            content = json.dumps(REFUSED).encode()
            self.send_response(422)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", bodies
        server.shutdown()


def test_the_action_checks_each_file_that_its_patterns_name(
    address: tuple[str, list[bytes]], tmp_path: Path
) -> None:
    url, bodies = address
    action: dict[str, Any] = yaml.safe_load(ACTION.read_text())
    step = action["runs"]["steps"][-1]
    for name in ("a b.json", "c.json", "$(touch owned).json"):
        (tmp_path / name).write_text("{}")
    done = subprocess.run(
        [str(shutil.which("bash")), "-e", "-c", step["run"]],
        cwd=tmp_path,
        env=os.environ
        | dict.fromkeys(step["env"], "")
        | {"PULSE_URL": url, "PULSE_KEY": "k", "FILES": "*.json\n\nmissing.json\n", "GITHUB_ACTIONS": "true"}
        | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert len(bodies) == 3
    assert done.stdout.count("::error file=") == 4
    assert not (tmp_path / "owned").exists()


def test_a_schema_of_a_pydantic_model_has_the_columns_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = blocks("schemas.md", "python")
    exec(compile(example, "schemas.md", "exec"), {"__name__": "schemas"})  # noqa: S102 - the page's own
    page = " ".join((DOCS / "schemas.md").read_text().split())
    for column in columns(json.loads(Path("orders.json").read_text())):
        assert f"`{column.name} {column.type}`" in page


def test_a_schema_of_zod_has_columns() -> None:
    document = json.loads((DOCS / "examples" / "orders.zod.json").read_text())
    types = [str(column.type) for column in columns(document)]
    assert types == ["string", "double", "long", "string", "timestamptz"]
