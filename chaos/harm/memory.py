"""The highest that the memory of each part of Pulse reached, as the kernel notes it."""

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
DOOR = "api: workers"
PARTS = {
    ("", "worker_pool"): JUDGES,
    ("spark", "pyspark"): WORKERS,
    ("dagster-code", "multiprocessing"): RUNS,
    ("api", "multiprocessing"): DOOR,
}
"""Of a service, or of any, by what stands in the command line of its child."""
FORKED = (WORKERS, RUNS, DOOR)
"""Parts whose processes share most of what they have: it counts once, and is looked at now and then."""
BOUNDS_MIB = {
    "api": 1_024,
    DOOR: 2_048,
    JUDGES: 512,
    "kafka": 2_048,
    "spark": 4_096,
    WORKERS: 3_072,
    "dagster-code": 1_024,
    "dagster-webserver": 1_024,
    "dagster-daemon": 1_024,
    RUNS: 3_072,
}
"""That a part may reach."""


@contextmanager
def watched() -> Iterator[dict[str, float]]:
    """The highest that each part reaches while the block runs, in MiB; complete once it has ended."""
    peaks: dict[str, float] = {}
    done = threading.Event()

    def look() -> None:
        for part, size in _sizes().items():
            peaks[part] = max(peaks.get(part, 0.0), size / MIB)

    def watch() -> None:
        while not done.wait(PERIOD_S):
            look()

    for pid, _ in _members():
        with suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # its highest is what it has now
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peaks
    finally:
        done.set()
        watcher.join()
        look()


def _sizes() -> Counter[str]:
    """Bytes, by part."""
    sizes: Counter[str] = Counter()
    for pid, service in _members():
        with suppress(OSError, StopIteration):  # gone meanwhile
            part = _part(pid, service)
            sizes[part] += processes.memory([pid]) if part in FORKED else _highest(pid)
    return sizes


def _members() -> Iterator[tuple[int, str]]:
    """Processes of services that are Pulse's own, or serve it alone; Postgres and MinIO may be anybody's."""
    found, table = state.read(Layout(load_settings().home)), processes.table()
    own = (service for name, service in found.services.items() if name in BOUNDS_MIB) if found else ()
    for service in own:
        for pid in processes.family(service.process.pid, table) if service.process else ():
            yield pid, service.name


def _part(pid: int, service: str) -> str:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return service if Path(command.partition("\0")[0]).name == "java" else part(service, command)


def part(service: str, command: str) -> str:
    """What a Python process of a service is a part of, by its command line."""
    found = (p for (owner, mark), p in PARTS.items() if owner in ("", service) and mark in command)
    return next(found, service)


def _highest(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
