"""Doctor: checks every service that the settings name, and reports what is wrong and how to fix it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg
from confluent_kafka import KafkaException
from pyspark.errors import PySparkException

from pulse_pipelines.monitoring.doctor import (
    kafka_service,
    machine,
    notifiers,
    object_store_service,
    postgres_service,
    spark_service,
    web_services,
)
from pulse_pipelines.monitoring.doctor.finding import Finding
from pulse_resources.errors import PulseError, first_line
from pulse_resources.settings import Settings, override_settings, setting_faults
from pulse_resources.settings.setting_faults import ParsedSettings

__all__ = ["SERVICES", "SETTINGS", "Finding", "examine"]

SETTINGS = "settings"


@dataclass(frozen=True)
class Service:
    """A service to check, and the sections of the settings that must be valid for that."""

    check: Callable[[Settings], Iterator[Finding]]
    """Stops early where further checks are impossible."""
    sections: frozenset[str]


SERVICES: dict[str, Service | None] = {
    SETTINGS: None,
    "machine": Service(machine.check_machine, frozenset()),
    "postgres": Service(postgres_service.check_postgres, frozenset({"postgres"})),
    "kafka": Service(kafka_service.check_kafka, frozenset({"kafka"})),
    "object store": Service(object_store_service.check_object_store, frozenset({"object_store"})),
    "spark": Service(spark_service.check_spark, frozenset({"spark", "postgres", "kafka", "object_store"})),
    "api": Service(web_services.api, frozenset({"api"})),
    "lake": Service(web_services.lake, frozenset({"lake"})),
    "dagster": Service(web_services.dagster, frozenset({"dagster"})),
    "alerts": Service(notifiers.check_notifiers, frozenset({"alerts"})),
}
_ERRORS = (psycopg.Error, KafkaException, PySparkException, PulseError, OSError)


def examine(name: str) -> Iterator[Finding]:
    """Check one of `SERVICES`; an error of its client is a finding, too.

    Invalid settings are findings of `settings`; only services that need an invalid section are skipped.
    """
    parsed = setting_faults.parse_settings()
    service = SERVICES[name]
    if service is None:
        yield from _settings(parsed)
        return
    wrong = sorted(parsed.sections & service.sections)
    if parsed.settings is None or wrong:
        fix = f"Correct the settings of {', '.join(wrong) or 'the file'} that are named above, then ask again"
        yield Finding(name, "settings", False, "not looked at: its settings are wrong", fix)
        return
    with override_settings(parsed.settings):
        try:
            yield from service.check(parsed.settings)
        except _ERRORS as error:
            fix = f"See its log, and `pulse config {name.replace(' ', '_')}` for how it is reached"
            yield Finding(name, "works", False, first_line(error), fix)


def _settings(parsed: ParsedSettings) -> Iterator[Finding]:
    for fault in parsed.faults:
        yield Finding(SETTINGS, fault.name, False, fault.problem, fault.fix)
    if not parsed.faults:
        yield Finding(SETTINGS, "values", True, "every setting has a value that it may have")
