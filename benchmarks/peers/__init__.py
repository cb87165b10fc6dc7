"""Peers: other systems that load the same events from the same broker into the same object store.

None of them has all of Pulse's features. Each has its own tables and must prove that they hold every event.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console

from benchmarks.peers import limit, plain, streaming
from pulse_pipelines.domain.tenant import Tenant


@dataclass(frozen=True)
class Peer:
    label: str
    rate: float
    """Events per second."""
    goal: float | None = None
    """Required ratio of Pulse's rate to the peer's."""
    processor_us: float | None = None
    """Processor time of each event, or row, in microseconds, if it is measured."""


def measure(console: Console, tenants: list[Tenant], warm: Tenant, events: int) -> Iterator[Peer]:
    """Measure the peers one after the other.

    Args:
        tenants: tenants whose topics hold exactly the events.
        warm: tenant with other events for a peer's warm-up.
        events: number of events sent.

    Raises:
        AssertionError: a peer did not land every event exactly once.
    """
    streaming.fetch()
    for rows, goal in ((10_000, 3.0), (100_000, 1.8)):
        with console.status(f"plain consumer, {rows:,} rows an append"):
            rate = plain.run(f"plain_{rows}", tenants, events, append_rows=rows)
        yield Peer(f"plain consumer: pyiceberg, {rows:,} rows an append", rate, goal)
    for name, label, merge, goal in (
        ("streaming_append", "Spark Structured Streaming: append", False, 2.0),
        ("streaming_merge", "Spark Structured Streaming: validated, MERGE by id", True, 3.5),
    ):
        with console.status(label):
            rate = streaming.run(name, tenants, warm, events, merge=merge)
        yield Peer(label, rate, goal)
    with console.status("limit"):
        rate = limit.run("limit", events)
    yield Peer(f"the limit: decode and write typed Parquet, {limit.PROCESSES} processes", rate, 0.6)
