"""Spark, reached through Spark Connect: the same address form serves one machine and a cluster."""

import atexit
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.connect.session import SparkSession

HANDLES = "handle binary"
Task = TypeVar("Task")


def run_tasks(
    spark: SparkSession, tasks: Sequence[Task], work: Callable[[Task], Iterator[bytes]]
) -> list[bytes]:
    """Run `work` once per task on Spark's executors and collect the small handles it yields.

    Args:
        spark: a Spark Connect session.
        tasks: one picklable description per task; each becomes one Spark partition.
        work: an importable function (executors import it by name).
    """
    if not tasks:
        return []
    # Left to itself, a process that exits while the server is away waits minutes for this clean-up.
    atexit.unregister(spark.client._cleanup_ml_cache)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                handles = pa.array(list(work(tasks[index])), pa.binary())
                yield pa.record_batch([handles], names=["handle"])

    frame: Any = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(run, HANDLES)
    return [bytes(value) for value in frame.toArrow().column("handle").to_pylist()]
