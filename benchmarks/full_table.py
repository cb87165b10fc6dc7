"""One batch into a dataset with many events, by Pulse and by a streaming job with MERGE."""

from rich.console import Console

from benchmarks import claims, load
from benchmarks.peers import streaming
from benchmarks.steps import run_batch

WARM_EVENTS = 10_000
"""Events of another tenant, sent before as a warm-up."""


def measure(console: Console, rows: int, events: int) -> tuple[dict[str, float], float]:
    """Seconds of a batch of Pulse by step, and of MERGE, from one topic to a table with `rows` rows.

    For Pulse only the rows' ids are claimed, with no local file of them; the rows themselves do not exist,
    since a batch would not read them.

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
