"""Processor time by kind of process, while something is measured."""

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pulse_resources.local import processes
from pulse_resources.settings import load_settings

PERIOD_S = 0.25
_TICKS = os.sysconf("SC_CLK_TCK")
KINDS = {
    "pyspark.worker": "Spark: Python workers",
    "pyspark.daemon": "Spark: Python workers",
    "SparkConnectServer": "Spark: JVM",
    "kafka": "Kafka",
    "minio": "MinIO",
    "execute_run": "Dagster: runs",
    "dagster._daemon": "Dagster: daemon",
    "dagster_webserver": "Dagster: UI",
    "dagster": "Dagster: code server",
    "pulse_api": "API",
    "postgres": "Postgres",
}
"""By a part of the command line; the first that fits counts."""


@contextmanager
def sampled() -> Iterator[Counter[str]]:
    """Seconds by kind, of all processes of the stack; complete once the block has ended."""
    seconds: Counter[str] = Counter()
    home, done = str(load_settings().home), threading.Event()
    first: dict[tuple[int, int], float] = {}
    last: dict[tuple[int, int], tuple[str, float]] = {}

    def look() -> None:
        for pid in processes.marked(home):
            try:
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            except OSError:  # gone meanwhile
                continue
            who = pid, int(stat[19])
            used = (int(stat[11]) + int(stat[12])) / _TICKS
            first.setdefault(who, used if not last else 0.0)  # one that began later counts whole
            last[who] = _kind(command), used

    def watch() -> None:
        while not done.wait(PERIOD_S):
            look()

    look()
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seconds
    finally:
        done.set()
        watcher.join()
        look()
        for who, (kind, used) in last.items():
            seconds[kind] += used - first[who]


def _kind(command: str) -> str:
    return next((kind for part, kind in KINDS.items() if part in command), "other")
