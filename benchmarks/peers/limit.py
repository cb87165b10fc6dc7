"""Upper bound: decode events and write typed Parquet, and nothing else.

No broker, no table, no validation: payloads in memory become files in the object store. Python code that
decodes events into typed columns cannot be faster on the same cores.
"""

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from itertools import repeat
from threading import Barrier

import orjson
import pyarrow.parquet as pq

from benchmarks import load
from benchmarks.peers import tables
from pulse_resources import object_store

PROCESSES = 2
MOST_EVENTS = 1_000_000
"""Upper bound of the events, whose payloads are held in memory."""
FILE_ROWS = 100_000
_PATIENCE_S = 300.0

_together: list[Barrier] = []
"""Barrier at which worker processes wait for each other."""


def run(peer: str, events: int) -> float:
    """Events per second of all processes together, excluding payload generation.

    Raises:
        AssertionError: the files' row count differs from the number of events.
    """
    share = min(events, MOST_EVENTS) // PROCESSES
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        PROCESSES, context, initializer=_share, initargs=(context.Barrier(PROCESSES),)
    ) as pool:
        # The monotonic clock is shared by all processes of a machine.
        spans = list(pool.map(_work, repeat(peer), range(PROCESSES), repeat(share)))
    files = object_store.file_system()
    rows = 0
    for number in range(PROCESSES):
        for path, _, _ in _pieces(peer, number, share):
            with files.open_input_file(path) as file:
                rows += pq.read_metadata(file).num_rows
    assert rows == share * PROCESSES, f"{peer}: {share * PROCESSES} events, {rows} rows"
    return rows / (max(ended for _, ended in spans) - min(began for began, _ in spans))


def _share(barrier: Barrier) -> None:
    _together.append(barrier)


def _work(peer: str, number: int, share: int) -> tuple[float, float]:
    """Start and end time of the work."""
    day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    payloads = [load.event(i, day) for i in range(number * share, (number + 1) * share)]
    files = object_store.file_system()
    _together[0].wait(_PATIENCE_S)
    began = time.monotonic()
    for path, start, end in _pieces(peer, number, share):
        rows = tables.typed([orjson.loads(payload) for payload in payloads[start:end]])
        pq.write_table(rows, path, filesystem=files, compression="zstd")
    return began, time.monotonic()


def _pieces(peer: str, number: int, share: int) -> Iterator[tuple[str, int, int]]:
    """Files of one process: path, first event, end."""
    folder = object_store.key(f"{tables.warehouse()}/{peer}")
    for start in range(0, share, FILE_ROWS):
        yield f"{folder}/{number}-{start}.parquet", start, min(start + FILE_ROWS, share)
