"""Pages of documentation, executed as a person would."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from typer.testing import CliRunner

from chaos.waiting import PATIENCE_S
from pulse_api import cli

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str = "sh") -> list[str]:
    """The examples of a page in a language."""
    text = (DOCS / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run(script: str, folder: Path, *, seconds: float = PATIENCE_S, **environment: str) -> str:
    """Run commands as a person would, but for one thing: an answer that is an error ends it."""
    curl = shutil.which("curl")
    preamble = f'set -euo pipefail\ncurl() {{ {curl} --fail-with-body -sS "$@"; }}\n'
    if "KEY" not in environment:
        script += '\necho; echo "KEY IS $KEY"\n'
    done = subprocess.run(
        [str(shutil.which("bash")), "-c", preamble + script],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_as(tenant: str, page: str, folder: Path, **environment: str) -> str:
    """Run all commands of a page in order, those of `acme` as a tenant's; returns what they print.

    A `pulse` among them is run by this process, which has imported the command line already.
    """
    script = re.sub(r"\bacme\b", tenant, "\n".join(blocks(page)))
    with TemporaryDirectory(prefix="pulse-docs-") as place:
        command, address = Path(place, "pulse"), Path(place, "socket")
        command.write_text(f"#!{sys.executable} -IS\n{COMMAND.format(address=str(address))}")
        command.chmod(0o755)
        with socket.create_server(str(address), family=socket.AF_UNIX) as listener:
            with ThreadPoolExecutor(1) as thread:
                path = f"{place}:{os.environ['PATH']}"
                done = thread.submit(run, script, folder, PATH=path, **environment)
                done.add_done_callback(lambda _: listener.shutdown(socket.SHUT_RDWR))
                with suppress(OSError):
                    while True:
                        answer(listener.accept()[0])
            return done.result()


COMMAND = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({address!r})
    with connection.makefile("rw") as file:
        file.write(json.dumps([os.getcwd(), sys.argv[1:]]) + "\\n")
        file.flush()
        code, out, err = json.loads(file.readline())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""


def answer(connection: socket.socket) -> None:
    """Run the command of a page."""
    with connection, connection.makefile("rw") as file, pytest.MonkeyPatch.context() as patch:
        folder, arguments = json.loads(file.readline())
        patch.chdir(folder)
        done = CliRunner().invoke(cli.app, arguments)
        file.write(json.dumps([done.exit_code, done.stdout, done.stderr]) + "\n")
