"""One batch into a dataset that holds many events already, by Pulse and by a streaming job that merges."""

from rich.console import Console

from benchmarks import claims, load
from benchmarks.peers import streaming
from benchmarks.steps import run_batch

WARM_EVENTS = 10_000
"""Of another tenant, before."""


def measure(console: Console, rows: int, events: int) -> tuple[dict[str, float], float]:
    """Seconds of a batch of Pulse by step, and of MERGE, from one topic to a table with so many rows.

    Pulse has the ids of those rows claimed, and none of them in a file of this machine. It has not the rows,
    at which it would not look.

    Raises:
        AssertionError: MERGE did not land every event.
    """
    streaming.fetch()
    tenant, warm = load.make_tenants(2)
    with console.status(f"{rows:,} claims"):
        claims.fill(tenant, rows)
    load.send(console, [warm], WARM_EVENTS)
    load.send(console, [tenant], events)
    with console.status(f"MERGE into {rows:,} rows"):
        merged = streaming.merge_into_full("full", tenant, warm, rows, events)
    run_batch([warm])
    return run_batch([tenant]), merged
