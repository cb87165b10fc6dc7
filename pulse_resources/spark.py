"""Spark, reached through Spark Connect: the same address form serves one machine and a cluster."""

import atexit
import os
import pickle
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.connect.session import SparkSession

from pulse_resources import faults
from pulse_resources.errors import Transient
from pulse_resources.settings import load_settings

CONNECT_S = 10.0
HANDLES = "handle binary"
Task = TypeVar("Task")


@contextmanager
def session() -> Iterator[SparkSession]:
    """A session of its own, closed when the block ends.

    Dagster's runs share one, since another takes two seconds to begin; whoever closed that one would close it
    for all of them.

    Raises:
        Transient: the server does not answer. (Left to itself, the client tries for many minutes.)
    """
    spark = load_settings().spark
    try:
        socket.create_connection(spark.address, CONNECT_S).close()
    except OSError as error:
        raise Transient(f"Spark does not answer: {error}", remote=spark.place) from error
    own = re.sub(r";?session_id=[^;]*", "", spark.remote)
    opened = SparkSession.builder.remote(own).create()
    atexit.unregister(opened.client._cleanup_ml_cache)
    try:
        yield opened
    finally:
        opened.stop()


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
    told = faults.told()
    packed = pickle.dumps((work, tasks))  # unpacked below: what it imports needs a folder to stand in

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            os.getcwd()  # noqa: PTH109
        except FileNotFoundError:
            # An executor deletes a session's folder after half an hour without a task, and goes on to
            # fork workers in it.
            os.chdir("/")
        work, tasks = pickle.loads(packed)  # noqa: S301 - written above
        for batch in batches:
            for index in batch.column(0).to_pylist():
                with faults.as_told(told):
                    handles = pa.array(list(work(tasks[index])), pa.binary())
                yield pa.record_batch([handles], names=["handle"])

    frame: Any = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(run, HANDLES)
    return [bytes(value) for value in frame.toArrow().column("handle").to_pylist()]
