"""The code server gets over a load that failed, without anybody reloading it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._grpc.client import DagsterGrpcClient

from pulse_pipelines.defs.code_server import loaded
from pulse_resources.local import ports

MODULE = """
import pathlib
import dagster
if pathlib.Path(__file__).with_name("away").exists():
    raise OSError("the database does not answer")
defs = dagster.Definitions()
"""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[DagsterGrpcClient]:
    """Of a code server whose module cannot be loaded while there is a file `away`."""
    (tmp_path / "some_definitions.py").write_text(MODULE)
    (tmp_path / "away").touch()
    port = ports.choose(4321, [])
    words = ["--module", "some_definitions", "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(
        [sys.executable, "-m", "pulse_pipelines.defs.code_server", *words],
        env=os.environ | {"PYTHONPATH": str(tmp_path), "DAGSTER_HOME": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        yield DagsterGrpcClient(host="127.0.0.1", port=port)
        server.terminate()
        try:
            server.wait(20)
        except (
            subprocess.TimeoutExpired
        ):  # Dagster takes it for SIGINT, which a job in the background ignores
            server.kill()


def until(client: DagsterGrpcClient, wanted: bool) -> None:
    deadline = time.monotonic() + 90
    while True:
        try:
            if loaded(client) is wanted:
                return
        except DagsterUserCodeUnreachableError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_what_could_not_be_loaded_is_loaded_later(client: DagsterGrpcClient, tmp_path: Path) -> None:
    until(client, False)
    (tmp_path / "away").unlink()
    until(client, True)
