"""Where the time of a run of tests goes: `make test-times` records a run and prints the report.

Each process of tests writes a line of JSON per test, per set-up of a fixture and per file to a file of
its own (`--times FOLDER`). The processor time of a test or file includes that of all processes that tests
started, services too: a variable in their environment marks them. Waiting is the time in which none runs.
"""

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

MARK = "PULSE_TEST_TIMES"
TICKS = os.sysconf("SC_CLK_TCK")


class ProcessorTime:
    """Seconds of processor time of this process and of all that inherited its mark, ended ones too.

    What a process used that ended between two readings counts with the parent that waited for it;
    if its parent was not one of them, it is not counted.
    """

    def __init__(self, mark: str) -> None:
        os.environ[MARK] = mark
        self._entry = f"{MARK}={mark}".encode()
        self._marked: dict[tuple[int, int], bool] = {}
        self._last: dict[tuple[int, int], tuple[float, int]] = {}

    def advance(self) -> float:
        """Seconds since the call before."""
        now: dict[tuple[int, int], tuple[float, int]] = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                process = int(folder.name), int(fields[19])
                if process not in self._marked:
                    self._marked[process] = self._has_mark(folder)
            except OSError:
                continue
            if self._marked[process]:
                now[process] = sum(map(int, fields[11:15])) / TICKS, int(fields[1])
        pids = {pid for pid, _ in now}
        used = sum(seconds for seconds, _ in now.values())
        for process, (seconds, parent) in self._last.items():
            if process in now or parent in pids:
                used -= seconds
        self._last = now
        return used

    def _has_mark(self, folder: Path) -> bool:
        own = int(folder.name) == os.getpid()
        return own or self._entry in (folder / "environ").read_bytes().split(b"\0")


class Recorder:
    """The hooks of pytest that write what a process of tests did."""

    def __init__(self, folder: Path) -> None:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self._output = (folder / f"{worker}.jsonl").open("a", buffering=1)
        self._processors = ProcessorTime(f"{worker}-{os.getpid()}")
        self._file, self._since, self._used = "start", time.monotonic(), 0.0

    def _write(self, kind: str, name: str, began: float, **more: float) -> None:
        seconds = time.monotonic() - began
        record = {"kind": kind, "name": name, "began": began, "seconds": seconds, **more}
        self._output.write(json.dumps(record) + "\n")

    def _end_file(self, following: str) -> None:
        self._write("file", self._file, self._since, used=self._used + self._processors.advance())
        self._file, self._since, self._used = following, time.monotonic(), 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        file = item.nodeid.partition("::")[0]
        if file != self._file:
            self._end_file(file)
        began = time.monotonic()
        try:
            return (yield)
        finally:
            used = self._processors.advance()
            self._used += used
            self._write("test", item.nodeid, began, used=used)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: "pytest.FixtureDef[object]") -> Iterator[None]:
        began, used = time.monotonic(), time.process_time()
        try:
            return (yield)
        finally:
            name = f"{fixturedef.argname} ({fixturedef.scope})"
            self._write("fixture", name, began, used=time.process_time() - used)

    def pytest_sessionfinish(self) -> None:
        self._end_file("end")
        self._output.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", type=Path, metavar="FOLDER", help="record where the time of this run goes")


def pytest_configure(config: pytest.Config) -> None:
    folder: Path | None = config.getoption("--times")
    if folder is None or (config.getoption("numprocesses", None) and not hasattr(config, "workerinput")):
        return
    folder.mkdir(parents=True, exist_ok=True)
    config.pluginmanager.register(Recorder(folder), "pulse-times")


@dataclass
class Sum:
    seconds: float = 0.0
    used: float = 0.0
    number: int = 0


def report(folder: Path, most: int) -> str:
    """The workers' totals, then the files, fixtures and tests that took longest."""
    sums: dict[str, dict[str, Sum]] = defaultdict(lambda: defaultdict(Sum))
    lines = []
    for output in sorted(folder.glob("*.jsonl")):
        records = [json.loads(line) for line in output.read_text().splitlines()]
        for record in records:
            entry = sums[record["kind"]][record["name"]]
            entry.seconds += record["seconds"]
            entry.used += record["used"]
            entry.number += 1
        files = [record for record in records if record["kind"] == "file"]
        lines.append(
            f"{output.stem}: {sum(r['seconds'] for r in files):.0f} s,"
            f" {sum(r['used'] for r in files):.0f} s of processor time"
        )
    for kind, title in (
        ("file", "files (processor time with services)"),
        ("fixture", "fixtures (of this process alone)"),
        ("test", "tests (processor time with services)"),
    ):
        lines += ["", f"{'seconds':>8} {'processor':>9} {'number':>6}  {title}"]
        longest = sorted(sums[kind].items(), key=lambda pair: -max(pair[1].seconds, pair[1].used))[:most]
        lines += [f"{s.seconds:8.1f} {s.used:9.1f} {s.number:6}  {name}" for name, s in longest]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make test-times", description=__doc__)
    parser.add_argument("folder", type=Path, help="what `pytest --times` wrote")
    parser.add_argument("--most", type=int, default=40, help="rows per table (default: 40)")
    chosen = parser.parse_args()
    sys.stdout.write(report(chosen.folder, chosen.most) + "\n")


if __name__ == "__main__":
    main()
