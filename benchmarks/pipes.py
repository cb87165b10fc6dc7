"""Pipes from a table of another Postgres, as Dagster runs them: all rows, the same again, and their changes.

The source is a server of its own, on the same cores. The clock starts when a run is asked for, and stops when
the last of its rows has settled, or is read by a query.
"""

import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import psycopg
from rich.console import Console

from benchmarks import cpu, sensors, steps
from benchmarks.peers import Peer, tables_of_postgres as peers
from chaos.sources import SOURCE, capturing
from pulse_pipelines import pipes, registry
from pulse_pipelines.defs.pipes.assets import JOB
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities.syncs import Sync
from pulse_pipelines.query import duckdb_pool, versions
from pulse_pipelines.query.preview import limits

PIPE = "orders"
"""Name of the pipe, its table and its dataset."""
SETTINGS = ("shared_buffers = 256MB", "max_wal_size = 8GB", "checkpoint_timeout = 1h")
PRICES = [f"price_{number}" for number in range(8)]
CREATE = f"""
CREATE TABLE {PIPE} (id bigint PRIMARY KEY, customer integer, country text, state text, note text,
    shipped boolean, weight double precision, changed_at timestamptz,
    {", ".join(f"{name} numeric(12, 2)" for name in PRICES)})
"""
FILL = f"""
INSERT INTO {PIPE} SELECT n, n %% 100000, (ARRAY['DE', 'FR', 'GB', 'US'])[n %% 4 + 1], 'open', md5(n::text),
    n %% 3 = 0, n * 0.25, now(), {", ".join(f"n * 0.01 + {number}" for number in range(8))}
FROM generate_series(%s::bigint, %s) n
"""
CHANGE = f"""
UPDATE {PIPE} SET price_0 = price_0 + 1, changed_at = clock_timestamp() WHERE id BETWEEN %s AND %s
"""
WARM_ROWS = 1_000
PAGE = 1_000
PATIENCE_S = 1_800.0


@dataclass(frozen=True)
class Run:
    """A run of the pipe, until its rows have settled."""

    sync: Sync
    seconds: float
    """From its request, launch included."""
    processor_seconds: Counter[str]
    """By service; the source's, too."""

    @property
    def busy_seconds(self) -> float:
        """From the moment when it began to read."""
        assert self.sync.settled_at
        return (self.sync.settled_at - self.sync.begun_at).total_seconds()


@dataclass(frozen=True)
class PipeMeasurements:
    full: Run
    steps: Counter[str]
    """Seconds by step of its runs, of which two are concurrent: the pipe's own, and those of batches."""
    again: Run
    changes: Run
    freshness: tuple[float, float]
    """p50 and p95 of the seconds from the moment of a change to its version in a page."""
    timed_changes: int
    """Number of changes that were timed for it."""
    page: tuple[float, float]
    """p50 and p95 of a page at a random place in the log, in milliseconds."""
    versions: int
    """Versions of the log by then."""
    full_peers: list[Peer]
    again_peers: list[Peer]


def measure(
    console: Console, *, rows: int, changes: int, rate: int, seconds: float, with_peers: bool
) -> PipeMeasurements:
    """Measure a pipe of a fresh tenant; requires a running stack.

    Raises:
        AssertionError: the dataset differs from the source; or a peer did not bring every row.
    """
    tenant = registry.create_tenant(f"b{uuid.uuid4().hex[:12]}")
    with capturing(tenant, *SETTINGS) as source:
        source.execute(CREATE)
        source.execute(FILL, [1, WARM_ROWS])
        pipe_definition = {
            "pipe": PIPE,
            "source": SOURCE,
            "table": PIPE,
            "dataset": PIPE,
            "mode": "changes",
            "every": 1,
        }
        pipes.create(tenant, definition(pipe_definition))
        pipes.pause(tenant, PIPE, paused=True)
        with console.status("warming up"):
            _run(tenant, source)
            source.execute(FILL, [WARM_ROWS + 1, rows])
            source.execute(f"VACUUM ANALYZE {PIPE}")
            source.execute("CHECKPOINT")
        since = datetime.now(UTC)
        with console.status(f"{rows:,} rows"):
            full = _run(tenant, source, full=True)
        sensors.wait_until_idle()
        spent = steps.of_runs(since) + Counter({"run of the pipe": steps.of_runs(since, JOB).total()})
        assert full.sync.created == rows - WARM_ROWS, full
        with console.status("the same again"):
            before = registry.current_log(tenant, PIPE)
            again = _run(tenant, source, full=True)
            after = registry.current_log(tenant, PIPE)
        assert again.sync.unchanged == rows, again
        assert (before.metadata_location, before.updated) == (after.metadata_location, after.updated)
        with console.status(f"{changes:,} changes"):
            for first in range(1, changes, 10_000):
                source.execute(CHANGE, [first, min(first + 9_999, changes)])
            changed = _run(tenant, source)
        assert (changed.sync.changed, changed.sync.is_full) == (changes, False), changed
        with console.status(f"{rate:,} changes/s for {seconds:.0f} s"):
            late = _freshness(tenant, source, rows, rate, seconds)
        pipes.pause(tenant, PIPE, paused=True)
        log = registry.current_log(tenant, PIPE)
        page = _pages(tenant, log.generation, log.updated)
        peers_by_again: dict[bool, list[Peer]] = {False: [], True: []}
        if with_peers:
            sensors.stop(lambda _: True)
            for is_again, peer in peers.measure(console, source, rows):
                peers_by_again[is_again].append(peer)
        pipes.delete(tenant, PIPE)
    p50, p95 = np.percentile(late, [50, 95])
    late_by = float(p50), float(p95)
    results = (full, spent, again, changed, late_by, len(late), page, log.updated)
    return PipeMeasurements(*results, full_peers=peers_by_again[False], again_peers=peers_by_again[True])


def _run(tenant: Tenant, source: "psycopg.Connection[Any]", *, full: bool = False) -> Run:
    """Have Dagster run the pipe, until all that follows from it has ended."""
    last, requested_at, until = pipes.last_sync(pipes.find(tenant, PIPE)), datetime.now(UTC), time.monotonic()
    with cpu.sampled({peers.SOURCE: cpu.parent(source.info.backend_pid)}) as spent:
        pipes.ask(tenant, PIPE, full=full)
        while (sync := pipes.ended(tenant, PIPE, after=last)) is None:
            assert time.monotonic() - until < PATIENCE_S, "the pipe's run does not end: see `pulse status`"
            time.sleep(0.2)
    assert sync.state == "done", sync
    assert sync.settled_at
    return Run(sync, (sync.settled_at - requested_at).total_seconds(), spent)


def _freshness(
    tenant: Tenant, source: "psycopg.Connection[Any]", rows: int, rate: int, seconds: float
) -> list[float]:
    """Seconds from each change to its version in a page, while one row after the other changes."""
    log = registry.current_log(tenant, PIPE)
    since = f"{log.generation}-{log.updated}"
    late: list[float] = []
    pipes.pause(tenant, PIPE, paused=False)
    with _changing(source, rows, rate, seconds) as sent:
        ended = time.monotonic()
        while not sent or len(late) < sent[0]:
            page = versions.after(tenant, PIPE, since, 10_000)
            now = datetime.now(UTC)
            late += [
                (now - datetime.fromisoformat(version["changed_at"])).total_seconds()
                for version in page.versions
            ]
            since = f"{page.generation}-{page.last}"
            assert time.monotonic() - ended < seconds + PATIENCE_S, "changes do not come"
            time.sleep(0.05 if page.versions else 0.2)
    return late


@contextmanager
def _changing(source: "psycopg.Connection[Any]", rows: int, rate: int, seconds: float) -> Iterator[list[int]]:
    """Change rows, each once, in ten transactions a second; the list has their number once that is over."""
    sent: list[int] = []

    def work() -> None:
        began, count = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds and count < rows:
            target = min(int(passed * rate), rows)
            if target > count:
                source.execute(CHANGE, [count + 1, target])
                count = target
            time.sleep(0.1)
        sent.append(count)

    thread = threading.Thread(target=work, name="changes")
    thread.start()
    try:
        yield sent
    finally:
        thread.join()


def _pages(tenant: Tenant, generation: int, updated: int, times: int = 200) -> tuple[float, float]:
    duckdb_pool.warm(limits())
    places = np.random.default_rng(1).integers(0, max(1, updated - PAGE), times + 5)
    spent = []
    for place in places:
        began = time.perf_counter()
        page = versions.page(tenant, PIPE, f"{generation}-{place}", PAGE, packed=False)
        spent.append((time.perf_counter() - began) * 1_000)
        assert page.lines.count(b"\n") == min(PAGE, updated - place)
    p50, p95 = np.percentile(spent[5:], [50, 95])
    return float(p50), float(p95)
