"""Preparation of a service after it answers and before others may use it.

The supervisor runs `python -m pulse_resources.local.prepare <service> ...` as a process of its own, so that
neither the clients' memory nor a crash in them affects it. Its output is shown by `pulse up`. In docker/ it
is a container of its own.
"""

import sys
import time

from pulse_resources.errors import PulseError, Transient
from pulse_resources.settings import Settings, load_settings

ANSWER_S = 300.0
"""Patience with a server that has just opened its port: to give up here is to end the stack."""


def _postgres(settings: Settings) -> None:
    from pulse_resources import postgres

    postgres.bootstrap(settings)
    postgres.migrate(settings)


def _minio(settings: Settings) -> None:
    from pulse_resources import object_store
    from pulse_resources.store_keys import vending_accounts

    object_store.ensure_bucket(settings)
    if settings.object_store.vending_secret_key and not vending_accounts.ensure_pulse_account(settings):
        print("this object store's accounts are made by its operator")


def _kafka(settings: Settings) -> None:
    """Wait until the broker is in the metadata: its port opens before it has registered."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    client = AdminClient(settings.kafka.client() | {"log_level": 0})
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        try:
            if client.list_topics(timeout=30).brokers:
                return
        except KafkaException:
            time.sleep(0.1)
    raise Transient("No Kafka broker answers", servers=settings.kafka.bootstrap_servers)


def _spark(settings: Settings) -> None:
    """Check an external server now instead of in the first batch."""
    from pulse_resources import spark

    if not spark.answers(ANSWER_S):
        raise Transient(
            "what listens at Spark's address does not answer as Spark Connect does",
            fix="Correct PULSE_SPARK__REMOTE; `pulse doctor` says more",
            remote=settings.spark.place,
        )
    with spark.session():
        pass


def _webserver(settings: Settings) -> None:
    from pulse_resources.local.dagster import load_problem

    if problem := load_problem(settings):
        print(f"definitions do not load: {problem}")


_STEPS = {
    "postgres": _postgres,
    "minio": _minio,
    "kafka": _kafka,
    "spark": _spark,
    "dagster-webserver": _webserver,
}


def main(services: list[str]) -> int:
    try:
        for service in services:
            _STEPS[service](load_settings())
    except PulseError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
