"""Spark through Spark Connect: the same kind of address serves one machine and a cluster."""

import atexit
import os
import pkgutil
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from typing import Any, TypeVar
from uuid import NAMESPACE_URL, uuid5

import grpc
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql.connect.client.core import DefaultChannelBuilder
from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.session import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from pulse_resources import frames, spark_server, task_settings
from pulse_resources.errors import PulseError, Transient
from pulse_resources.home import pulse_home
from pulse_resources.process import faults, memory
from pulse_resources.settings import load_settings
from pulse_resources.task_settings import TaskSettings

CONNECT_S = 10.0
Task = TypeVar("Task")
Output = TypeVar("Output")


for _name_of_logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
    PySparkLogger.getLogger(_name_of_logger).disabled = True  # of errors that are raised anyway

# Sessions are stopped where they end. The finalizer would do it again whenever the garbage collector finds
# one, and a thread that held the lock of the client's release pool at that moment would wait for itself. A
# worker may import this module a second time (see `spark_daemon`).
if "__del__" in vars(SparkSession):
    del SparkSession.__del__


@contextmanager
def session() -> Iterator[SparkSession]:
    """A new session, closed when the block ends.

    Dagster's runs share one session, since opening another takes two seconds; closing that one would close it
    for all of them.

    Raises:
        Transient: the server does not answer. (By default the client retries for many minutes.)
    """
    spark = load_settings().spark
    try:
        socket.create_connection(spark.address, CONNECT_S).close()
    except OSError as error:
        raise Transient(f"Spark does not answer: {error}", remote=spark.place) from error
    opened = SparkSession.builder.remote(spark.url()).create()
    leave_at_once(opened)
    try:
        spark_server.prepare(opened)
        yield opened
    finally:
        opened.stop()


def shared() -> SparkSession:
    """Session shared by all runs; it must not be closed.

    If the settings name none, its id derives from the code and the catalog that it is given.

    Raises:
        UserError: Pulse cannot use the server.
    """
    settings = load_settings()
    session_id = settings.spark.session_id or str(uuid5(NAMESPACE_URL, spark_server.fingerprint(settings)))
    entered = SparkSession.builder.remote(settings.spark.url(session_id)).getOrCreate()
    leave_at_once(entered)
    spark_server.prepare(entered)
    return entered


def answers(patience: float) -> bool:
    """Whether a Spark Connect server answers at the settings' address within `patience` seconds.

    Without a client, which tries again for ten minutes where something else listens.
    """
    with closing(DefaultChannelBuilder(load_settings().spark.url()).toChannel()) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=patience)
        except grpc.FutureTimeoutError:
            return False
    return True


@contextmanager
def session_on_demand() -> Iterator[Callable[[], SparkSession]]:
    """Function that opens a `session` at its first call; the session ends with the block."""
    with ExitStack() as until_the_end:
        yield cache(lambda: until_the_end.enter_context(session()))


def leave_at_once(spark: SparkSession) -> None:
    """Skip the client's clean-up at exit, which would wait for minutes while the server is away."""
    atexit.unregister(spark.client._cleanup_ml_cache)


def plan(frame: DataFrame) -> str:
    """Spark's plans of a frame as text, from the parsed to the physical one."""
    text: str = frame._explain_string(extended=True)
    return text


@contextmanager
def noted(next_step: str, **where: object) -> Iterator[None]:
    """Note beside an error of the block what it happened to, what to do, and where the log of tasks is.

    For operators: Dagster shows notes. No message contains them, and so no tenant sees them.
    """
    try:
        yield
    except Exception as error:
        places = ", ".join(f"{name} {value}" for name, value in where.items())
        log = f" {_log_of_tasks()}." if isinstance(error, PySparkException) else ""
        error.add_note(f"This was {places}.{log} {next_step}.")
        raise


def _log_of_tasks() -> str:
    log = pulse_home() / "logs" / "spark.log"
    place = log if log.exists() else f"that of Spark at {load_settings().spark.place}, and of its executors"
    return f"The log of its tasks: {place}"


def run_tasks(
    spark: SparkSession,
    tasks: Sequence[Task],
    work: Callable[[Task], Iterable[Output]],
    gives: Sequence[type[Output]],
) -> list[Output]:
    """Run `work` once per task on Spark's executors and collect the small values that it yields.

    Tasks use the settings of this process, which are passed to them as an argument.

    Args:
        spark: a Spark Connect session.
        tasks: instances of one dataclass that a frame can hold; each becomes one Spark partition.
        work: a module-level function, which executors import by name.
        gives: dataclasses of the values that it yields.
    """
    if not tasks:
        return []
    leave_at_once(spark)
    fault_variables, kind = faults.variables(), type(tasks[0])
    most = load_settings().spark.task_memory_mb * 1024 * 1024
    task_frame = frames.frame(tasks, [kind])
    schema, packed = task_frame.schema, task_frame.serialize().to_pybytes()
    run_settings = frames.frame([task_settings.of_run(load_settings())], [TaskSettings])
    settings_schema, settings_packed = run_settings.schema, run_settings.serialize().to_pybytes()
    names = [_name(part) for part in (work, kind, *gives)]

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            os.getcwd()  # noqa: PTH109
        except FileNotFoundError:
            # An executor deletes a session's folder after half an hour without a task, and continues to fork
            # workers in it.
            os.chdir("/")
        memory.limit(most)
        (run_settings,) = frames.values(
            pa.ipc.read_record_batch(settings_packed, settings_schema), [TaskSettings]
        )
        task_settings.take(run_settings)
        work, kind, *gives = (pkgutil.resolve_name(name) for name in names)
        tasks = pa.ipc.read_record_batch(packed, schema)
        for batch in batches:
            for index in batch.column(0).to_pylist():
                (task,) = frames.values(tasks.slice(index, 1), [kind])
                with faults.with_variables(fault_variables):
                    try:
                        outputs = frames.frame(work(task), gives)
                    except PulseError as error:
                        error.add_note(error.as_note())  # of a task's error Spark passes on the text alone
                        raise
                    yield outputs

    of_spark = from_arrow_schema(frames.schema(gives))
    outputs: Any = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(run, of_spark)
    return frames.values(outputs.toArrow(), gives)


def _name(importable: Any) -> str:
    return f"{importable.__module__}:{importable.__qualname__}"
