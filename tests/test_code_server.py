"""The code server: loads that failed are tried again, and runs are copies of what has imported everything."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRunStatus
from dagster._api.list_repositories import sync_list_repositories_grpc
from dagster._core.errors import DagsterUserCodeProcessError, DagsterUserCodeUnreachableError
from dagster._grpc.client import DagsterGrpcClient

from pulse_resources.local import ports

MODULE = """
import gc, os, pathlib, time
import dagster
IMPORTED_BY = os.getpid()
HERE = pathlib.Path(__file__).parent

if (HERE / "away").exists():
    raise OSError("the database does not answer")

@dagster.op
def look():
    (HERE / "look.part").write_text(f"{gc.get_freeze_count()} {IMPORTED_BY} {os.getppid()} {os.getpid()}")
    (HERE / "look.part").rename(HERE / "look")
    while (HERE / "stay").exists():
        time.sleep(0.1)

@dagster.job
def probe():
    look()

@dagster.definitions
def defs():
    with (HERE / "made").open("a") as file:
        file.write("!")
    return dagster.Definitions(jobs=[probe], executor=dagster.in_process_executor)
"""

INSTANCE = """
telemetry:
  enabled: false
run_coordinator:
  module: dagster._core.run_coordinator
  class: DefaultRunCoordinator
"""


@contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A code server for the module in this folder, and its port."""
    port = ports.choose(4321, [])
    words = ["--module", "some_definitions", "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(
        [sys.executable, "-m", "pulse_pipelines.defs.code_server", *words],
        env=_environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            yield server, port
        finally:
            server.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "some_definitions.py").write_text(MODULE)
    (tmp_path / "dagster.yaml").write_text(INSTANCE)
    return tmp_path


def test_what_could_not_be_loaded_is_loaded_later(folder: Path) -> None:
    (folder / "away").touch()
    with serving(folder) as (_, port):
        _until(lambda: not _loaded(port))
        (folder / "away").unlink()
        _until(lambda: _loaded(port))


def test_to_reload_makes_the_definitions_anew(folder: Path) -> None:
    with serving(folder) as (_, port):
        _until(lambda: _loaded(port))
        client = DagsterGrpcClient(host="127.0.0.1", port=port)
        made, server = (folder / "made").stat().st_size, client.get_server_id()
        client.reload_code(timeout=60)
        assert (folder / "made").stat().st_size > made
        assert client.get_server_id() != server, "the webserver and the daemon would not notice"
        assert _loaded(port)


def test_a_run_is_forked_from_what_has_imported_the_definitions(folder: Path) -> None:
    with serving(folder) as (server, port):
        _until(lambda: _loaded(port))
        for _ in range(2):
            _launch(folder, port)
            frozen, imported_by, parent, pid = map(int, (folder / "look").read_text().split())
            assert imported_by == parent != server.pid
            assert pid != parent
            assert frozen > 100_000, "`forked` was not imported to its end, which nobody would be told"
        server.terminate()
        assert server.wait(60) == 0


def test_runs_that_died_with_the_server_count_as_failed(folder: Path) -> None:
    def statuses() -> list[DagsterRunStatus]:
        with DagsterInstance.from_config(str(folder)) as instance:
            return [run.status for run in instance.get_runs()]

    (folder / "stay").touch()
    with serving(folder) as (server, port):
        _until(lambda: _loaded(port))
        _launch(folder, port)
        assert statuses() == [DagsterRunStatus.STARTED]
        server.kill()
        os.kill(int((folder / "look").read_text().split()[-1]), signal.SIGKILL)
    assert statuses() == [DagsterRunStatus.STARTED], "nobody was there to report it"
    with serving(folder) as (_, port):
        _until(lambda: _loaded(port))
        assert statuses() == [DagsterRunStatus.FAILURE]


def _launch(folder: Path, port: int) -> None:
    """Have a run, and wait until it has looked."""
    (folder / "look").unlink(missing_ok=True)
    grpc = ["--grpc-host", "127.0.0.1", "--grpc-port", str(port)]
    subprocess.run(
        [sys.executable, "-m", "dagster", "job", "launch", *grpc, "-j", "probe"],
        env=_environment(folder),
        check=True,
        capture_output=True,
    )
    _until((folder / "look").exists)


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(folder), "DAGSTER_HOME": str(folder)}


def _loaded(port: int) -> bool:
    """Whether it has definitions, rather than the error of a load that failed."""
    try:
        sync_list_repositories_grpc(DagsterGrpcClient(host="127.0.0.1", port=port))
    except DagsterUserCodeProcessError:
        return False
    return True


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while True:
        try:
            if holds():
                return
        except DagsterUserCodeUnreachableError:
            pass  # it is starting
        assert time.monotonic() < deadline
        time.sleep(0.2)
