"""Progress of a scenario: a bar on a terminal, else a line when it begins and one a minute."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from chaos.scenario import ReportProgress, Scenario

LINE_S = 60.0


@contextmanager
def progress(
    console: Console, scenario: Scenario, amount: float, line_s: float = LINE_S
) -> Iterator[ReportProgress]:
    """Show progress while the block runs; yields what takes how much of the amount is done.

    Args:
        line_s: seconds between two lines, where the console is not a terminal.
    """
    show = _bar if console.is_terminal else _lines
    with show(console, scenario, amount, line_s) as report_progress:
        yield report_progress


@contextmanager
def _bar(console: Console, scenario: Scenario, amount: float, _: float) -> Iterator[ReportProgress]:
    columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[done]}"))
    total = amount if scenario.unit else None
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(scenario.name, total=total, done="")
        yield lambda done: bar.update(task, completed=done, done=_part(done, amount, scenario.unit))


@contextmanager
def _lines(console: Console, scenario: Scenario, amount: float, line_s: float) -> Iterator[ReportProgress]:
    began, over = time.monotonic(), threading.Event()
    latest = ""

    def report(done: float) -> None:
        nonlocal latest
        latest = f", {_part(done, amount, scenario.unit)}"

    def say() -> None:
        while not over.wait(line_s):
            minutes = (time.monotonic() - began) / 60
            _print(console, f"{scenario.name}: {minutes:.0f} min{latest}")

    _print(console, f"begins: {scenario.name}")
    thread = threading.Thread(target=say, name="progress", daemon=True)
    thread.start()
    try:
        yield report
    finally:
        over.set()
        thread.join()


def _part(done: float, amount: float, unit: str) -> str:
    return f"{done:.0f}/{amount:.0f} {unit}"


def _print(console: Console, line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)
    console.file.flush()
