"""Processor time by service during a measurement."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.sampling import repeated
from pulse_resources.local import processes, state
from pulse_resources.local.layout import Layout
from pulse_resources.settings import load_settings

PERIOD_S = 0.25
_TICKS = os.sysconf("SC_CLK_TCK")
PARTS = {
    ("spark", "pyspark"): "Spark: Python workers",
    ("dagster-code", "multiprocessing"): "Dagster: runs",
}
"""Parts of a service, by a text in the command line."""


@contextmanager
def sampled() -> Iterator[Counter[str]]:
    """Processor seconds by service, of all processes of the stack; complete after the block.

    Time that a process of less than `PERIOD_S` uses at its end is missed.
    """
    seconds: Counter[str] = Counter()
    layout = Layout(load_settings().home)
    first: dict[tuple[int, int], float] = {}
    last: dict[tuple[int, int], tuple[str, float]] = {}

    def look() -> None:
        begun = bool(last)  # processes first seen later have just begun
        found, table = state.read(layout), processes.table()
        for service in found.services.values() if found else ():
            for pid in processes.family(service.process.pid, table) if service.process else ():
                try:
                    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                except OSError:  # ended meanwhile
                    continue
                who = pid, int(stat[19])
                used = (int(stat[11]) + int(stat[12])) / _TICKS
                first.setdefault(who, 0.0 if begun else used)
                last[who] = _kind(service.name, command), used

    try:
        with repeated(look, PERIOD_S):
            yield seconds
    finally:
        for who, (kind, used) in last.items():
            seconds[kind] += used - first[who]


def _kind(service: str, command: str) -> str:
    for (owner, part), kind in PARTS.items():
        if service == owner and part in command and "java" not in command:
            return kind
    return service
