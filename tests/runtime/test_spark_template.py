"""The process that Spark's Python daemons are forked from."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.connect.session import SparkSession

from chaos.waiting import PATIENCE_S, wait
from pulse_pipelines.runtime import spark_template
from pulse_resources import spark
from pulse_resources.local.processes import table
from pulse_resources.settings import Settings

DAEMON = """
import os, sys
from pathlib import Path
from pulse_pipelines.runtime import spark_template

spark_template.IDLE_S = float(os.environ.get("IDLE_S", spark_template.IDLE_S))
if "STRANGER" in os.environ:
    spark_template._of_this_account = lambda _: False

def load():
    with open(os.environ["LOADS"], "a") as file:
        file.write(f"{os.getpid()}\\n")

def work():
    folders = Path.cwd().name, Path(sys.path[0]).name
    print(os.getppid(), os.environ["NAME"], *folders, sys.stdin.readline().strip(), flush=True)
    sys.stdin.read()
    sys.exit(3)

if not spark_template.serve_by_fork(load, work):
    print("none", flush=True)
"""
SERVER = """
import os, subprocess, sys
def start(name):
    os.makedirs(name, exist_ok=True)
    daemon = subprocess.Popen(
        [sys.executable, "-m", "daemon"],
        stdin=-1, stdout=-1, text=True, cwd=name, env=os.environ | {"NAME": name},
    )
    daemon.stdin.write(f"for {name}\\n")
    daemon.stdin.flush()
    return daemon
daemons = [start("a"), start("b")]
for daemon in daemons:
    print(daemon.stdout.readline().strip(), flush=True)
"""


def run_server(folder: Path, more: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a server of two daemons in a folder; `more` is what it does afterwards."""
    (folder / "daemon.py").write_text(DAEMON)
    environment = dict(os.environ) | {"LOADS": str(folder / "loads"), "PYTHONPATH": str(folder)} | variables
    return subprocess.run(
        [sys.executable, "-c", SERVER + more],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def template_of(folder: Path) -> int:
    return int((folder / "loads").read_text())


@pytest.mark.long
def test_daemons_of_one_server_are_forks_of_one_process(tmp_path: Path) -> None:
    done = run_server(tmp_path)
    template = template_of(tmp_path)
    assert done.stdout.splitlines() == [f"{template} a a a for a", f"{template} b b b for b"], done.stderr
    wait(lambda: not Path(f"/proc/{template}").exists(), "the template outlives its server")


@pytest.mark.long
def test_a_fork_ends_with_its_input_and_its_daemon_with_the_fork(tmp_path: Path) -> None:
    more = "for daemon in daemons: daemon.stdin.close(); print(daemon.wait(), repr(daemon.stdout.read()))"
    done = run_server(tmp_path, more)
    assert done.stdout.splitlines()[2:] == ["0 ''", "0 ''"], done.stderr


@pytest.mark.long
def test_where_the_template_died_another_is_started(tmp_path: Path) -> None:
    more = "\n".join(
        [
            "os.kill(int(open(os.environ['LOADS']).read()), 9)",
            "print(start('c').stdout.readline().strip(), flush=True)",
        ]
    )
    done = run_server(tmp_path, more)
    first, second = (tmp_path / "loads").read_text().split()
    assert done.stdout.splitlines()[2:] == [f"{second} c c c for c"], done.stderr
    assert first != second


@pytest.mark.long
def test_a_template_that_cannot_load_leaves_the_work_to_the_daemon(tmp_path: Path) -> None:
    (tmp_path / "loads").mkdir()  # where the template writes a file
    done = run_server(tmp_path)
    assert done.stdout.splitlines() == ["none", "none"]
    assert "IsADirectoryError" in done.stderr


@pytest.mark.long
def test_a_template_without_forks_ends_before_its_server(tmp_path: Path) -> None:
    more = """
for daemon in daemons:
    daemon.stdin.close()
    daemon.wait()
status = f"/proc/{open(os.environ['LOADS']).read().strip()}/status"
while os.path.exists(status) and "State:\tZ" not in open(status).read():
    pass
print("ended")
"""
    done = run_server(tmp_path, more, IDLE_S="0.4")
    assert done.stdout.splitlines()[2:] == ["ended"], done.stderr


@pytest.mark.long
def test_where_another_account_has_the_template_a_daemon_does_its_own_work(tmp_path: Path) -> None:
    assert run_server(tmp_path, STRANGER="yes").stdout.splitlines() == ["none", "none"]


def test_another_account_has_no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert spark_template._of_this_account(ours)
        monkeypatch.setattr(os, "getuid", lambda: 12_345)
        assert not spark_template._of_this_account(ours)


def template(session: SparkSession) -> int:
    """The process from which the daemon of a session's workers was forked."""

    def daemon(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch([pa.array([os.getppid()])], names=["pid"])

    frame: Any = session.range(1).mapInArrow(daemon, "pid long")
    (row,) = frame.toArrow().to_pylist()
    return table()[row["pid"]].parent


def test_sessions_share_one_template_process(stack: Settings) -> None:
    with spark.session() as one, spark.session() as other:
        first = template(one)
        assert template(other) == first
        os.kill(first, signal.SIGKILL)
        with spark.session() as third:
            assert template(third) not in (first, 0)
