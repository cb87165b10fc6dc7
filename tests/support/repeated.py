"""Failed tests: each is named when it fails, and `.ci/run` runs them once more, alone, at its end.

A test that passes then is printed as FLAKY and must be mended; the run is green. The run is red if a test
fails again, if more than three failed, or if it did not reach its end.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

MOST = 3
"""Failed tests that are repeated; more are no accident."""


class Outcome:
    """Prints the name of a failed test at once; writes them to a file at the end."""

    def __init__(self, file: Path, config: pytest.Config) -> None:
        self._file = file
        self._config = config
        self._failed: dict[str, None] = {}
        self._reached_end = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        """A worker of xdist ended: with an error, if it was killed."""
        self._reached_end = self._reached_end and error is None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None
            terminal = self._config.pluginmanager.get_plugin("terminalreporter")
            terminal.ensure_newline()
            terminal.write_line(f"FAILED {report.nodeid} ({report.when})", red=True)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        reached_end = self._reached_end and session.exitstatus == pytest.ExitCode.TESTS_FAILED
        self._file.write_text(json.dumps({"reached_end": reached_end, "failed": list(self._failed)}))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcome", type=Path, metavar="FILE", help="write which tests failed to a file")


def pytest_configure(config: pytest.Config) -> None:
    file: Path | None = config.getoption("--outcome")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcome(file, config), "pulse-outcome")


def repeat(file: Path) -> int:
    """Run what failed once more; returns the exit code of the whole run."""
    text = file.read_text() if file.exists() else ""
    outcome = json.loads(text or '{"reached_end": false, "failed": []}')
    names = outcome["failed"]
    if not outcome["reached_end"] or not names:
        print("RED: the run did not reach its end, so no test is repeated")
        return 1
    if len(names) > MOST:
        print(f"RED: {len(names)} tests failed; up to {MOST} are repeated")
        return 1
    codes = {name: run_alone(name) for name in names}
    for name, code in codes.items():
        print(f"FAILED AGAIN {name}" if code else f"FLAKY {name}")
    return 1 if any(codes.values()) else 0


def run_alone(name: str) -> int:
    """Run one test in a process of its own; returns its exit code."""
    print(f"\nOnce more, alone: {name}", flush=True)
    return subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", name]).returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="what `pytest --outcome` wrote")
    sys.exit(repeat(parser.parse_args().file))
