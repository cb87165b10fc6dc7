"""Peers: what else takes the same events from the same broker to the same object store, and how fast.

None of them does what Pulse does. Each has tables of its own, and has to prove that every event is in them.
"""

from collections.abc import Iterator

from rich.console import Console

from benchmarks.peers import limit, plain, streaming
from pulse_pipelines.domain.tenant import Tenant


def measure(
    console: Console, tenants: list[Tenant], warm: Tenant, events: int
) -> Iterator[tuple[str, float]]:
    """What each peer is, and its events per second; one after the other.

    Args:
        tenants: their topics hold the events, and nothing else.
        warm: its topic holds others, with which a peer may warm up.
        events: how many were sent.

    Raises:
        AssertionError: a peer did not land every event exactly once.
    """
    streaming.fetch()
    for rows in (10_000, 100_000):
        with console.status(f"plain consumer, {rows:,} rows an append"):
            rate = plain.run(f"plain_{rows}", tenants, events, append_rows=rows)
        yield f"plain consumer: pyiceberg, {rows:,} rows an append", rate
    for peer, what, merge in (
        ("streaming_append", "Spark Structured Streaming: append", False),
        ("streaming_merge", "Spark Structured Streaming: validated, MERGE by id", True),
    ):
        with console.status(what):
            rate = streaming.run(peer, tenants, warm, events, merge=merge)
        yield what, rate
    with console.status("limit"):
        rate = limit.run("limit", events)
    yield f"the limit: decode and write typed Parquet, {limit.PROCESSES} processes", rate
