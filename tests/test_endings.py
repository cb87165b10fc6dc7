"""A run of tests leaves no process, port or folder behind; `.ci/run` repeats what failed."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support.repeated import repeat

from chaos.waiting import PATIENCE_S, wait
from pulse_resources.local import processes

TESTS = Path(__file__).parent
INNER = """
import os, socket, subprocess, sys, time
from pathlib import Path
HERE = Path({here!r})
SERVICE = '''
import os, socket, sys, time
listening = socket.create_server(("127.0.0.1", 0))
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{{os.getpid()}} {{listening.getsockname()[1]}}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(3600)
'''

def start(name):
    (HERE / f"{{name}}.worker").write_text(str(os.getpid()))
    service = [sys.executable, "-c", SERVICE, str(HERE / f"{{name}}.service")]
    subprocess.Popen(service, start_new_session=True, stdout=-3, stderr=-3)
    while not (HERE / f"{{name}}.service").exists():
        time.sleep(0.02)

def test_one(tmp_path):
    (HERE / "one.folder").write_text(str(tmp_path))
    start("one")
    {then}
"""
HANGS, ENDS = "time.sleep(3600)", "pass"


def begin(folder: Path, then: str, *options: str) -> "subprocess.Popen[str]":
    """A run of tests, in a process group of its own, as a shell starts one."""
    (folder / "test_inner.py").write_text(INNER.format(here=str(folder), then=then))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(folder)),
            *(
                "--disable-plugin-autoload",
                "-p",
                "xdist.plugin",
                "-p",
                "support.endings",
                *options,
                str(folder),
            ),
        ],
        env=environment | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )


def started(folder: Path, name: str = "one") -> tuple[int, int, int]:
    """Pids of the worker and of the service that its test started, and the service's port."""
    file = folder / f"{name}.service"
    wait(file.exists, "the inner test does not start its service")
    pid, port = map(int, file.read_text().split())
    return int((folder / f"{name}.worker").read_text()), pid, port


def living(*pids: int) -> set[int]:
    return {process.pid for process in processes.table().values() if not process.zombie}.intersection(pids)


def is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


ENDS_BY: dict[str, Callable[[int, int], None]] = {
    "Ctrl-C": lambda run, worker: os.killpg(run, signal.SIGINT),
    "SIGTERM": lambda run, worker: os.kill(run, signal.SIGTERM),
    "a killed worker": lambda run, worker: os.kill(worker, signal.SIGKILL),
    "a killed run": lambda run, worker: os.kill(run, signal.SIGKILL),
}


@pytest.mark.long
@pytest.mark.parametrize("end", ENDS_BY)
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, end: str) -> None:
    with begin(tmp_path, HANGS, "--numprocesses", "1", "--max-worker-restart", "0") as run:
        worker, service, port = started(tmp_path)
        folder = Path((tmp_path / "one.folder").read_text())
        assert folder.exists()
        ENDS_BY[end](run.pid, worker)
        run.communicate(timeout=PATIENCE_S)
    wait(lambda: not living(worker, service), "processes outlive the run")
    wait(lambda: not folder.exists(), "the folder outlives the run")
    assert is_free(port)


@pytest.mark.long
def test_a_run_whose_tests_leave_a_process_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_TEST_PATIENCE_S", "0")
    with begin(tmp_path, ENDS) as run:
        printed, _ = run.communicate(timeout=PATIENCE_S)
    _, service, port = started(tmp_path)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "outlive the tests that started them" in printed
    assert str(service) in printed
    wait(lambda: not living(service), "it is not ended")
    assert is_free(port)


RED, FLAKY, FAILED_AGAIN = "RED", "FLAKY", "FAILED AGAIN"


@pytest.mark.long
@pytest.mark.parametrize(
    ("body", "verdict", "code"),
    [
        ("pass", "1 passed", 0),
        ("assert False", FAILED_AGAIN, 1),
        ("Path(HERE, 'mark').mkdir()\n    assert not Path(HERE, 'mark').exists()", FAILED_AGAIN, 1),
        ("seen = Path(HERE, 'mark').exists()\n    Path(HERE, 'mark').touch()\n    assert seen", FLAKY, 0),
        ("os._exit(3)", RED, 1),
    ],
    ids=["passes", "fails", "fails otherwise", "passes the second time", "ends its process"],
)
def test_continuous_integration_repeats_a_failed_test_alone(
    tmp_path: Path, body: str, verdict: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_project(tmp_path, body)
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        monkeypatch.delenv(name)
    run = subprocess.run([tmp_path / ".ci" / "run"], cwd="/", stdout=subprocess.PIPE, text=True)
    assert run.returncode == code, run.stdout
    assert verdict in run.stdout


def make_project(folder: Path, body: str) -> None:
    """A project of one test, with this project's `.ci/run` and its plugin."""
    (folder / ".ci").mkdir()
    shutil.copy(TESTS.parent / ".ci" / "run", folder / ".ci" / "run")
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "tests").mkdir()
    (folder / "tests" / "support").symlink_to(TESTS / "support")
    (folder / "tests" / "conftest.py").write_text('pytest_plugins = ["support.repeated"]\n')
    (folder / "pytest.ini").write_text(
        "[pytest]\ntestpaths = tests\npythonpath = tests\naddopts = --disable-plugin-autoload\n"
    )
    (folder / "Makefile").write_text("test:\n\t@.venv/bin/python -m pytest $(ARGS)\n")
    inner = f"import os\nfrom pathlib import Path\nHERE = {str(folder)!r}\ndef test_one():\n    {body}\n"
    (folder / "tests" / "test_inner.py").write_text(inner)


def test_more_than_three_failed_tests_are_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = tmp_path / "outcome"
    outcome.write_text(json.dumps({"reached_end": True, "failed": ["a", "b", "c", "d"]}))
    assert repeat(outcome) == 1
    assert "RED: 4 tests failed" in capsys.readouterr().out
