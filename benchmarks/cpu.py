"""Processor time by service during a measurement."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
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
def sampled(beside: Mapping[str, int] | None = None) -> Iterator[Counter[str]]:
    """Processor seconds by service, of all processes of the stack; complete after the block.

    Args:
        beside: processes whose time, with that of their children, counts, too, by what they count as.

    Time that a process of less than `PERIOD_S` uses at its end is missed.
    """
    seconds: Counter[str] = Counter()
    layout = Layout(load_settings().home)
    first: dict[tuple[int, int], float] = {}
    last: dict[tuple[int, int], tuple[str, float]] = {}

    def take_sample() -> None:
        has_samples = bool(last)  # processes first seen later have just begun
        stack_state, table = state.read(layout), processes.table()
        services = stack_state.services.values() if stack_state else ()
        roots = {service.name: service.process for service in services}
        roots |= {name: processes.ProcessId.of(pid) for name, pid in (beside or {}).items()}
        for name, root in roots.items():
            for pid in processes.family(root, table) if root else ():
                try:
                    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                except OSError:  # ended meanwhile
                    continue
                process = pid, int(stat[19])
                used = (int(stat[11]) + int(stat[12])) / _TICKS
                first.setdefault(process, 0.0 if has_samples else used)
                last[process] = _kind(name, command), used

    try:
        with repeated(take_sample, PERIOD_S):
            yield seconds
    finally:
        for process, (kind, used) in last.items():
            seconds[kind] += used - first[process]


def _kind(service: str, command: str) -> str:
    for (owner, part), kind in PARTS.items():
        if service == owner and part in command and "java" not in command:
            return kind
    return service


def parent(pid: int) -> int:
    """The process that has started a process: of a session of Postgres, its server."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
