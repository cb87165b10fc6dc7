"""Memory against the size of a batch: what grows with it, and where that ends."""

import threading
from collections.abc import Iterator

from rich.console import Console

from benchmarks import load
from benchmarks.steps import run_batch
from pulse_resources.local import processes, state
from pulse_resources.local.layout import Layout
from pulse_resources.settings import load_settings

PERIOD_S = 0.2


def measure(console: Console, sizes: list[int], tenants: int) -> Iterator[tuple[int, dict[str, int]]]:
    """Events of a batch, and the most bytes that each service held while it ran."""
    owners = load.make_tenants(tenants)
    load.send(console, owners, 1_000)
    run_batch(owners)  # what is loaded once is not the batch's
    for size in sizes:
        load.send(console, owners, size)
        peaks: dict[str, int] = {}
        done = threading.Event()

        def watch(peaks: dict[str, int] = peaks, done: threading.Event = done) -> None:
            while not done.wait(PERIOD_S):
                for name, held in _held().items():
                    peaks[name] = max(peaks.get(name, 0), held)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        run_batch(owners)
        done.set()
        watcher.join()
        yield size, peaks


def _held() -> dict[str, int]:
    found, table = state.read(Layout(load_settings().home)), processes.table()
    assert found
    return {
        name: processes.memory(processes.family(service.process.pid, table))
        for name, service in found.services.items()
        if service.process
    }
