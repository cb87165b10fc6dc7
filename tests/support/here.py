"""What Spark's tasks would do, done in this process: for batches that are not what a test is about.

Of what a small batch takes, two thirds are Spark's: to plan, to compile, and to hand tasks to its workers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.ingest import drain, land
from pulse_resources import frames
from support.ingest import Owner, ingest


def run_here(
    _: SparkSession, tasks: Sequence[Any], work: Callable[[Any], Iterable[Any]], gives: Sequence[type[Any]]
) -> list[Any]:
    """As `spark.run_tasks`, one task after the other; what goes in and out is packed as it is there."""
    if not tasks:
        return []
    kind = type(tasks[0])
    results = [value for task in frames.values(frames.frame(tasks, [kind]), [kind]) for value in work(task)]
    return list(frames.values(frames.frame(results, gives), gives)) if results else []


@contextmanager
def tasks_here() -> Iterator[None]:
    """While the block runs, tasks of batches run in this process."""
    with pytest.MonkeyPatch.context() as patched:
        for module in (drain, land):
            patched.setattr(module, "run_tasks", run_here)
        yield


def ingest_here(*owners: Owner) -> str:
    """As `ingest`, but for Spark; returns the batch."""
    with tasks_here():
        return ingest(*owners)
