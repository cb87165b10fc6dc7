"""Resources: outside systems used by ops and assets, with the properties that an engineer needs.

Addresses come only from the settings: no resource takes config. A `ConfigurableResource` with an address, or
a `LazyPySparkResource` among the definitions, would appear in the schema of every run's config: anybody who
may launch a run could redirect its work to another server, or change what a session may do. The clients are
those of `pulse_resources`, one per process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pyspark.sql.connect.session import SparkSession

from pulse_resources import spark
from pulse_resources.settings import load_settings


@dataclass(frozen=True)
class Service:
    """Public properties of an outside system; no secrets."""

    address: str
    about: Mapping[str, str | int]


Postgres: TypeAlias = dg.ResourceParam[Service]
Kafka: TypeAlias = dg.ResourceParam[Service]
ObjectStore: TypeAlias = dg.ResourceParam[Service]
Catalog: TypeAlias = dg.ResourceParam[Service]
"""Types under which ops and assets take each service."""


class SharedSpark(LazyPySparkResource):
    """The session shared by all runs, opened and checked when an op first uses it."""

    @property
    def spark_session(self) -> SparkSession:
        self._spark_session = self._spark_session or spark.shared()
        return self._spark_session


def services() -> dict[str, dg.ResourceDefinition]:
    """Resources of all definitions, by name."""
    settings = load_settings()
    postgres, kafka, store = settings.postgres, settings.kafka, settings.object_store
    database = f"{postgres.host}:{postgres.port}/{postgres.database}"
    return {
        "postgres": _service(
            "Registry, ledger, claims and summaries, under row-level security.",
            Service(database, {"role of runs": "pulse_pipeline"}),
        ),
        "kafka": _service(
            "A topic of events and one of dead letters for each tenant.",
            Service(
                kafka.bootstrap_servers,
                {
                    "security": kafka.security_protocol,
                    "partitions of a new topic": kafka.partitions_per_topic,
                    "replication factor": kafka.replication_factor,
                },
            ),
        ),
        "object_store": _service(
            "Data files, metadata and the raw zone: a prefix for each tenant.",
            Service(store.endpoint, {"bucket": store.bucket, "region": store.region}),
        ),
        "catalog": _service(
            "The SQL catalog of the Iceberg tables: a namespace for each tenant.",
            Service(database, {"schema": "iceberg_catalog", "warehouse": f"s3://{store.bucket}"}),
        ),
        "pyspark": _pyspark(settings.spark.place, settings.spark.parallelism),
    }


def _service(name: str, client: Service) -> dg.ResourceDefinition:
    def service(_: dg.InitResourceContext) -> Service:
        return client

    return dg.ResourceDefinition(service, config_schema={}, description=_described(name, client))


def _pyspark(place: str, parallelism: int) -> dg.ResourceDefinition:
    def session(_: dg.InitResourceContext) -> LazyPySparkResource:
        return SharedSpark(spark_config={})

    summary = "A session of Spark Connect, which all runs share."
    about = _described(summary, Service(place, {"tasks of a batch at a time": parallelism}))
    return dg.ResourceDefinition(session, config_schema={}, description=about)


def _described(summary: str, service: Service) -> str:
    rows = {"address": service.address} | dict(service.about)
    return "\n".join([summary, "", *(f"- {name}: `{value}`" for name, value in rows.items())])
