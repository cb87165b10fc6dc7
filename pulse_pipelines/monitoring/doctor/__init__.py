"""The doctor: looks at every service that the settings name, and says what is wrong and what to do."""

from collections.abc import Callable, Iterator

import psycopg
from confluent_kafka import KafkaException
from pyspark.errors import PySparkException

from pulse_pipelines.monitoring.doctor import (
    kafka_service,
    machine,
    object_store_service,
    postgres_service,
    spark_service,
    web_services,
)
from pulse_pipelines.monitoring.doctor.finding import Finding, first_line
from pulse_resources.errors import PulseError
from pulse_resources.settings import Settings, load_settings

__all__ = ["SERVICES", "Finding", "examine"]

SERVICES: dict[str, Callable[[Settings], Iterator[Finding]]] = {
    "machine": machine.look,
    "postgres": postgres_service.look,
    "kafka": kafka_service.look,
    "object store": object_store_service.look,
    "spark": spark_service.look,
    "api": web_services.api,
    "lake": web_services.lake,
    "dagster": web_services.dagster,
}
"""Each ends its findings where nothing more can be seen."""
_ERRORS = (psycopg.Error, KafkaException, PySparkException, PulseError, OSError)


def examine(service: str) -> Iterator[Finding]:
    """All that is found about one of `SERVICES`; an error of its client is a finding, too."""
    try:
        yield from SERVICES[service](load_settings())
    except _ERRORS as error:
        fix = f"See its log, and `pulse config {service.replace(' ', '_')}` for how it is reached"
        yield Finding(service, "works", False, first_line(error), fix)
