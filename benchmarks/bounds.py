"""Memory by batch size: which services grow with it, and up to which bound."""

from collections.abc import Iterator

from rich.console import Console

from benchmarks import load
from benchmarks.sampling import repeated
from benchmarks.steps import run_batch
from pulse_resources.local.layout import Layout
from pulse_resources.local.status import status
from pulse_resources.settings import load_settings

PERIOD_S = 0.2


def measure(console: Console, sizes: list[int], tenants: int) -> Iterator[tuple[int, dict[str, int]]]:
    """Peak memory of each service in bytes, for batches of increasing size."""
    owners, layout = load.make_tenants(tenants), Layout(load_settings().home)
    load.send(console, owners, 1_000)
    run_batch(owners)  # loads what is loaded once, which must not count for the batch
    for size in sizes:
        load.send(console, owners, size)
        peaks: dict[str, int] = {}

        def take_sample(peaks: dict[str, int] = peaks) -> None:
            for row in status(layout).rows:
                peaks[row.service] = max(peaks.get(row.service, 0), row.memory_bytes or 0)

        with repeated(take_sample, PERIOD_S):
            run_batch(owners)
        yield size, peaks
