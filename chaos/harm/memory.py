"""Peak memory of each part of Pulse, as recorded by the kernel."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pulse_resources.local import processes, state
from pulse_resources.local.layout import Layout
from pulse_resources.settings import load_settings

PERIOD_S = 0.5
MIB = 1024 * 1024
WORKERS, JUDGES, RUNS = "Spark: Python workers", "judging workers", "Dagster: runs"
DOOR, QUERIES = "api: workers", "api: queries"
PARTS = {
    ("", "worker_pool"): JUDGES,
    ("spark", "pyspark"): WORKERS,
    ("dagster-code", "multiprocessing"): RUNS,
    ("api", "multiprocessing"): DOOR,
    ("api", "sql.template"): QUERIES,
}
"""Parts of a service, or of any, by a text in the command line of its child."""
FORKED = (WORKERS, RUNS, DOOR, QUERIES)
"""Parts whose processes share most memory: it is counted once, and sampled periodically."""
BOUNDS_MIB = {
    "api": 1_024,
    DOOR: 2_048,
    QUERIES: 2_560,
    "lake": 2_560,
    JUDGES: 512,
    "kafka": 2_048,
    "spark": 4_096,
    WORKERS: 3_072,
    "dagster-code": 1_024,
    "dagster-webserver": 1_024,
    "dagster-daemon": 1_024,
    RUNS: 3_072,
}
"""Memory bounds of the parts, in MiB."""


@contextmanager
def watched() -> Iterator[dict[str, float]]:
    """Peak memory of each part while the block runs, in MiB; complete after it."""
    peaks: dict[str, float] = {}
    done = threading.Event()

    def note_peaks() -> None:
        for part, size in _sizes().items():
            peaks[part] = max(peaks.get(part, 0.0), size / MIB)

    def watch() -> None:
        while not done.wait(PERIOD_S):
            note_peaks()

    for pid, _ in _members():
        with suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets the peak to the current value
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peaks
    finally:
        done.set()
        watcher.join()
        note_peaks()


def _sizes() -> Counter[str]:
    """Current memory by part, in bytes."""
    sizes: Counter[str] = Counter()
    for pid, service in _members():
        with suppress(OSError, StopIteration):  # ended meanwhile
            part = _part(pid, service)
            sizes[part] += processes.memory([pid]) if part in FORKED else _highest(pid)
    return sizes


def _members() -> Iterator[tuple[int, str]]:
    """Processes of Pulse's own services and of those serving it alone; excludes Postgres and MinIO."""
    stack_state, table = state.read(Layout(load_settings().home)), processes.table()
    services = stack_state.services.values() if stack_state else ()
    for service in services:
        if service.name not in BOUNDS_MIB:
            continue
        for pid in processes.family(service.process, table) if service.process else ():
            yield pid, service.name


def _part(pid: int, service: str) -> str:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return service if Path(command.partition("\0")[0]).name == "java" else part(service, command)


def part(service: str, command: str) -> str:
    """Part to which a service's Python process belongs, by its command line."""
    parts = (p for (owner, mark), p in PARTS.items() if owner in ("", service) and mark in command)
    return next(parts, service)


def _highest(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
