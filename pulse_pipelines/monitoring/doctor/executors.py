"""Spark's executors, checked from tasks: their Python, its packages, and their access to the services."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import psycopg
import pyarrow as pa
from confluent_kafka import KafkaException
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.monitoring.doctor.finding import PATIENCE_S, Finding
from pulse_pipelines.monitoring.doctor.kafka_service import describe_cluster
from pulse_resources import object_store, postgres
from pulse_resources.errors import PulseError, first_line
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
"""Packages that the code of tasks imports."""
_NETWORK = (
    "Let executors reach the same address as this machine: name it by a host that both know, not 127.0.0.1, "
    "and open the way to it"
)


@dataclass(frozen=True)
class Reach:
    """Input of the task that connects to each service once."""


@dataclass(frozen=True)
class Reached:
    service: str
    error: str | None


def check_executors(session: SparkSession) -> Iterator[Finding]:
    """Check the packages, then the services; stops if tasks could import nothing."""
    versions = dict(_installed(session, PACKAGES))
    wrong = [
        f"{name} {versions[name] or 'is missing'}{f' (here: {version(name)})' if versions[name] else ''}"
        for name in PACKAGES
        if versions[name] is None or _minor(versions[name]) != _minor(version(name))
    ]
    fix = "Install Pulse's requirements.lock into the Python of the executors (PYSPARK_PYTHON of the server)"
    fits = f"all {len(PACKAGES)} packages that tasks import are there"
    yield Finding(SPARK, "packages", not wrong, "; ".join(wrong) or fits, fix)
    if any(installed is None for installed in versions.values()):
        return
    away = [report for report in run_tasks(session, [Reach()], reach_task, [Reached]) if report.error]
    problem = "; ".join(f"{report.service}: {report.error}" for report in away)
    yield Finding(
        SPARK, "network", not away, problem or "tasks reach Postgres, Kafka and the store", _NETWORK
    )


def reach_task(_: Reach) -> Iterator[Reached]:
    """Spark task: connects to each service that tasks use, and returns the results."""
    try:
        with postgres.transaction(postgres.TASKS) as connection:
            connection.execute("SELECT 1")
        yield Reached("postgres", None)
    except (psycopg.Error, PulseError) as error:
        yield Reached("postgres", first_line(error))
    try:
        describe_cluster(PATIENCE_S)
        yield Reached("kafka", None)
    except KafkaException as error:
        yield Reached("kafka", first_line(error))
    try:
        object_store.file_system().get_file_info(load_settings().object_store.bucket)
        yield Reached("object store", None)
    except OSError as error:
        yield Reached("object store", first_line(error))


def _installed(session: SparkSession, names: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Package versions on an executor; the function that collects them needs no Pulse code there."""
    packages = list(names)

    def ask(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from importlib.metadata import PackageNotFoundError, version

        import pyarrow as pa

        def installed_version(name: str) -> str | None:
            try:
                return version(name)
            except PackageNotFoundError:
                return None

        for _ in batches:
            yield pa.record_batch(
                [pa.array(packages), pa.array(map(installed_version, packages), pa.string())], ["n", "v"]
            )

    frame: Any = session.range(1).mapInArrow(ask, "n string, v string")
    for row in frame.toArrow().to_pylist():
        yield row["n"], row["v"]


def _minor(number: str | None) -> list[str]:
    return (number or "").split(".")[:2]
