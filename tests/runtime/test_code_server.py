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
from click.testing import CliRunner
from dagster import DagsterEvent, DagsterEventType, DagsterInstance, DagsterRunStatus, job
from dagster._api.list_repositories import sync_list_repositories_grpc
from dagster._cli.job import job_launch_command
from dagster._core.errors import DagsterUserCodeProcessError, DagsterUserCodeUnreachableError
from dagster._core.utils import make_new_run_id
from dagster._grpc.client import DagsterGrpcClient

from chaos.waiting import PATIENCE_S
from pulse_pipelines.runtime import code_server
from pulse_resources.process.niceness import BACKGROUND

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
    while run and (HERE / "slow").exists():
        time.sleep(0.1)
    with (HERE / "made").open("a") as file:
        file.write(f"{run.job if run else 'all'} ")
    return dagster.Definitions(jobs=[probe], executor=dagster.in_process_executor)
"""


@job
def nothing() -> None:
    """A job that is never executed."""


INSTANCE = """
telemetry:
  enabled: false
run_coordinator:
  module: dagster._core.run_coordinator
  class: DefaultRunCoordinator
"""


HASTY = """
import sys
from pulse_pipelines.runtime import code_server
code_server.CHECK_INTERVAL_S, code_server.LOST_S = 0.2, 2.0
code_server.main(sys.argv[1:])
"""
"""It gives up soon what is lost."""


@contextmanager
def serving(folder: Path, *program: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A code server for the module in this folder, and its socket."""
    place = str(folder / "code" / "socket")
    words = ["--module", "some_definitions", "--socket", place]
    with subprocess.Popen(
        [sys.executable, *(program or ("-m", "pulse_pipelines.runtime.code_server")), *words],
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


def test_a_failed_load_is_repeated_and_runs_are_forked_from_the_loaded_code(folder: Path) -> None:
    """And runs whose process is gone count as failed, which a slow start does not: by two servers in all."""
    (folder / "away").touch()
    with serving(folder) as (server, place):
        _until(lambda: not _loaded(place))
        assert stat.S_IMODE(Path(place).parent.stat().st_mode) == 0o700, "who may ask it, runs code"
        (folder / "away").unlink()
        _until(lambda: _loaded(place))
        client = DagsterGrpcClient(socket=place)
        size, server_id = (folder / "made").stat().st_size, client.get_server_id()
        client.reload_code(timeout=PATIENCE_S)
        assert (folder / "made").stat().st_size > size
        assert client.get_server_id() != server_id, "the webserver and the daemon would not notice"
        assert _loaded(place)
        _launch(folder, place)
        frozen, imported_by, parent, pid = map(int, (folder / "look").read_text().split())
        assert imported_by == parent != server.pid
        assert pid != parent
        assert frozen > 100_000, "`forked` was not imported to its end, which no message reports"
        (folder / "stay").touch()
        running = _launch(folder, place)
        assert _status(folder, running) == DagsterRunStatus.STARTED
        _, imported_by, parent, run = map(int, (folder / "look").read_text().split())
        assert imported_by == parent != server.pid
        assert (folder / "made").read_text().split()[-2:] == ["probe", "probe"], "each run knows what it is"
        less = os.getpriority(os.PRIO_PROCESS, run) - os.getpriority(os.PRIO_PROCESS, server.pid)
        server.kill()
        os.kill(run, signal.SIGKILL)
    assert less == BACKGROUND, "the server evaluates the sensors while runs compute"
    assert _status(folder, running) == DagsterRunStatus.STARTED, "no process was left to report it"
    before = _starting(folder)
    (folder / "slow").touch()
    with serving(folder, "-c", HASTY) as (server, place):
        _until(lambda: _loaded(place))
        assert _status(folder, running) == DagsterRunStatus.FAILURE
        assert _status(folder, before) == DagsterRunStatus.FAILURE
        slow = _request(folder, place)
        lost = _starting(folder)  # as by a daemon that died before it called the server
        _until(lambda: _status(folder, lost) == DagsterRunStatus.FAILURE)
        assert _status(folder, slow) == DagsterRunStatus.STARTING
        for name in ("slow", "stay"):
            (folder / name).unlink()
        _until(lambda: _status(folder, slow) == DagsterRunStatus.SUCCESS)
        server.terminate()
        assert server.wait(PATIENCE_S) == 0


def test_a_run_is_lost_when_it_has_had_no_process_for_long() -> None:
    lost = code_server.LostRuns()
    assert lost.among({"a"}, now=0) == set()
    assert lost.among({"a", "b"}, now=100) == set()
    assert lost.among({"a", "b"}, now=1 + code_server.LOST_S) == {"a"}
    assert lost.among({"a"}, now=2 + code_server.LOST_S) == {"a"}
    assert lost.among({"b"}, now=102 + code_server.LOST_S) == set(), "it had a process meanwhile"


def _starting(folder: Path) -> str:
    """A run that counts as starting, for which there is no process; its id."""
    with DagsterInstance.from_config(str(folder)) as instance:
        run = instance.create_run_for_job(nothing)
        starting = DagsterEvent(DagsterEventType.PIPELINE_STARTING.value, run.job_name)
        instance.report_dagster_event(starting, run.run_id)
        return run.run_id


def _status(folder: Path, run_id: str) -> DagsterRunStatus:
    with DagsterInstance.from_config(str(folder)) as instance:
        run = instance.get_run_by_id(run_id)
        assert run
        return run.status


def _launch(folder: Path, place: str) -> str:
    """Have a run, and wait until it has looked; its id."""
    (folder / "look").unlink(missing_ok=True)
    run_id = _request(folder, place)
    _until((folder / "look").exists)
    return run_id


def _request(folder: Path, place: str) -> str:
    """Have a run, which may not have started yet; its id."""
    run_id = make_new_run_id()
    words = ["--grpc-socket", place, "-j", "probe", "--run-id", run_id]
    launched = CliRunner().invoke(job_launch_command, words, env={"DAGSTER_HOME": str(folder)})
    assert launched.exit_code == 0, launched.output
    return run_id


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
