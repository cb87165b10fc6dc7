"""The code server: loads that failed are tried again, and runs are copies of what has imported everything."""

import os
import signal
import stat
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

from chaos.waiting import PATIENCE_S

pytestmark = pytest.mark.stack  # it starts servers
MODULE = """
import gc, os, pathlib, time
import dagster
from pulse_pipelines.runtime import run_scope
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
    run = run_scope.current()
    with (HERE / "made").open("a") as file:
        file.write(f"{run.job if run else 'all'} ")
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
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A code server for the module in this folder, and its socket."""
    place = str(folder / "code" / "socket")
    words = ["--module", "some_definitions", "--socket", place]
    with subprocess.Popen(
        [sys.executable, "-m", "pulse_pipelines.runtime.code_server", *words],
        env=_environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            yield server, place
        finally:
            server.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "some_definitions.py").write_text(MODULE)
    (tmp_path / "dagster.yaml").write_text(INSTANCE)
    return tmp_path


def test_what_could_not_be_loaded_is_loaded_later_and_anew_on_a_reload(folder: Path) -> None:
    (folder / "away").touch()
    with serving(folder) as (_, place):
        _until(lambda: not _loaded(place))
        assert stat.S_IMODE(Path(place).parent.stat().st_mode) == 0o700, "who may ask it, runs code"
        (folder / "away").unlink()
        _until(lambda: _loaded(place))
        client = DagsterGrpcClient(socket=place)
        made, server = (folder / "made").stat().st_size, client.get_server_id()
        client.reload_code(timeout=PATIENCE_S)
        assert (folder / "made").stat().st_size > made
        assert client.get_server_id() != server, "the webserver and the daemon would not notice"
        assert _loaded(place)


def test_a_run_is_forked_from_what_has_imported_the_definitions(folder: Path) -> None:
    with serving(folder) as (server, place):
        _until(lambda: _loaded(place))
        for _ in range(2):
            _launch(folder, place)
            frozen, imported_by, parent, pid = map(int, (folder / "look").read_text().split())
            assert imported_by == parent != server.pid
            assert pid != parent
            assert frozen > 100_000, "`forked` was not imported to its end, which nobody would be told"
        assert (folder / "made").read_text().split()[-2:] == ["probe", "probe"], "each run knows what it is"
        server.terminate()
        assert server.wait(PATIENCE_S) == 0


def test_runs_that_died_with_the_server_count_as_failed(folder: Path) -> None:
    def statuses() -> list[DagsterRunStatus]:
        with DagsterInstance.from_config(str(folder)) as instance:
            return [run.status for run in instance.get_runs()]

    (folder / "stay").touch()
    with serving(folder) as (server, place):
        _until(lambda: _loaded(place))
        _launch(folder, place)
        assert statuses() == [DagsterRunStatus.STARTED]
        server.kill()
        os.kill(int((folder / "look").read_text().split()[-1]), signal.SIGKILL)
    assert statuses() == [DagsterRunStatus.STARTED], "nobody was there to report it"
    with serving(folder) as (_, place):
        _until(lambda: _loaded(place))
        assert statuses() == [DagsterRunStatus.FAILURE]


def _launch(folder: Path, place: str) -> None:
    """Have a run, and wait until it has looked."""
    (folder / "look").unlink(missing_ok=True)
    grpc = ["--grpc-socket", place]
    subprocess.run(
        [sys.executable, "-m", "dagster", "job", "launch", *grpc, "-j", "probe"],
        env=_environment(folder),
        check=True,
        capture_output=True,
    )
    _until((folder / "look").exists)


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(folder), "DAGSTER_HOME": str(folder)}


def _loaded(place: str) -> bool:
    """Whether it has definitions, rather than the error of a load that failed."""
    try:
        sync_list_repositories_grpc(DagsterGrpcClient(socket=place))
    except DagsterUserCodeProcessError:
        return False
    return True


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if holds():
                return
        except DagsterUserCodeUnreachableError:
            pass  # it is starting
        assert time.monotonic() < deadline
        time.sleep(0.2)
