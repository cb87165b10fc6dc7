"""Clients that stock generators make from the OpenAPI document send an event, as docs/sending.md shows it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.docs import blocks
from support.here import ingest_here as ingest
from support.http import Api, Caller

INSTALL_S = 600.0
pytestmark = pytest.mark.slow  # they install their generators from a registry


def run(folder: Path, command: str, caller: Caller, api: Api, programs: Path) -> None:
    """Run a command of the page. Fails with all of its output."""
    environment = os.environ | {
        "PATH": f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PULSE": api.url,
        "KEY": caller.key.text,
        "PYTHONPATH": str(folder),
    }
    done = subprocess.run(
        ["/bin/sh", "-ec", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]


def landed(caller: Caller) -> set[str]:
    ingest(caller.owner)
    return {row["id"] for row in caller.owner.rows()}


def test_python(api: Api, caller: Caller, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=INSTALL_S)
    programs = tmp_path / "venv" / "bin"
    (generate,) = (block for block in blocks("sending.md") if "openapi-python-client" in block)
    (example,) = blocks("sending.md", "py")
    (tmp_path / "example.py").write_text(example)
    run(tmp_path, generate, caller, api, programs)
    every_module = (
        "import pkgutil, importlib, pulse_api_client as package\n"
        "for module in pkgutil.walk_packages(package.__path__, 'pulse_api_client.'):\n"
        "    importlib.import_module(module.name)\n"
    )
    (tmp_path / "every_module.py").write_text(every_module)
    run(tmp_path, "python every_module.py; python example.py", caller, api, programs)
    assert landed(caller) == {"generated-py-1"}


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm")
def test_typescript(api: Api, caller: Caller, tmp_path: Path) -> None:
    (generate,) = (block for block in blocks("sending.md") if "openapi-typescript" in block)
    (example,) = blocks("sending.md", "ts")
    (tmp_path / "example.ts").write_text(example)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    compile_it = "npx tsc --strict --module nodenext --target es2022 --types node example.ts"
    run(tmp_path, f"{generate}\n{compile_it}\nnode example.js", caller, api, tmp_path)
    types = (tmp_path / "pulse.ts").read_text()
    assert types.count("Record<string, never>") == 2, "`webhooks` and `$defs`, which are always there"
    assert landed(caller) == {"generated-ts-1"}
