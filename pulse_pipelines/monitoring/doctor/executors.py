"""Spark's executors, asked in tasks: their Python, its packages, and whether they reach the services."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import psycopg
import pyarrow as pa
from confluent_kafka import KafkaException
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.monitoring.doctor.finding import PATIENCE_S, Finding, first_line
from pulse_resources import kafka, object_store, postgres
from pulse_resources.errors import PulseError
from pulse_resources.settings import load_settings
from pulse_resources.spark import run_tasks

SPARK = "spark"
PACKAGES = (
    "confluent-kafka",
    "isal",
    "jsonschema_rs",
    "msgspec",
    "orjson",
    "psycopg",
    "psycopg-binary",
    "psycopg-pool",
    "pyarrow",
    "pydantic",
    "pydantic-settings",
    "pyiceberg",
    "pyspark",
    "xxhash",
    "zstandard",
)
"""What the code of tasks imports beside itself."""
_NETWORK = (
    "Let executors reach the same address as this machine: name it by a host that both know, not 127.0.0.1, "
    "and open the way to it"
)


@dataclass(frozen=True)
class Reach:
    """Asks a task to use each service once."""


@dataclass(frozen=True)
class Reached:
    service: str
    error: str | None


def look(session: SparkSession) -> Iterator[Finding]:
    """Stops where tasks could import nothing."""
    found = dict(_installed(session, PACKAGES))
    wrong = [
        f"{name} {found[name] or 'is missing'}{f' (here: {version(name)})' if found[name] else ''}"
        for name in PACKAGES
        if found[name] is None or _minor(found[name]) != _minor(version(name))
    ]
    fix = "Install Pulse's requirements.lock into the Python of the executors (PYSPARK_PYTHON of the server)"
    fits = f"all {len(PACKAGES)} packages that tasks import are there"
    yield Finding(SPARK, "packages", not wrong, "; ".join(wrong) or fits, fix)
    if any(each is None for each in found.values()):
        return
    away = [each for each in run_tasks(session, [Reach()], reach_task, [Reached]) if each.error]
    said = "; ".join(f"{each.service}: {each.error}" for each in away)
    yield Finding(SPARK, "network", not away, said or "tasks reach Postgres, Kafka and the store", _NETWORK)


def reach_task(_: Reach) -> Iterator[Reached]:
    """One Spark task: an answer for each service that tasks use."""
    try:
        with postgres.transaction(postgres.TASKS) as connection:
            connection.execute("SELECT 1")
        yield Reached("postgres", None)
    except (psycopg.Error, PulseError) as error:
        yield Reached("postgres", first_line(error))
    try:
        kafka.cluster(PATIENCE_S)
        yield Reached("kafka", None)
    except KafkaException as error:
        yield Reached("kafka", first_line(error))
    try:
        object_store.file_system().get_file_info(load_settings().object_store.bucket)
        yield Reached("object store", None)
    except OSError as error:
        yield Reached("object store", first_line(error))


def _installed(session: SparkSession, names: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Versions on an executor; asked by a function that needs nothing of Pulse there."""
    wanted = list(names)

    def ask(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from importlib.metadata import PackageNotFoundError, version

        import pyarrow as pa

        def known(name: str) -> str | None:
            try:
                return version(name)
            except PackageNotFoundError:
                return None

        for _ in batches:
            yield pa.record_batch([pa.array(wanted), pa.array(map(known, wanted), pa.string())], ["n", "v"])

    frame: Any = session.range(1).mapInArrow(ask, "n string, v string")
    for row in frame.toArrow().to_pylist():
        yield row["n"], row["v"]


def _minor(number: str | None) -> list[str]:
    return (number or "").split(".")[:2]
