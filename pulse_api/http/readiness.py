"""Whether Postgres and Kafka answer: looked at in a thread and by a connection that nothing else uses.

What holds up all other requests cannot hold up this, and however many ask, there is one look a second.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
from confluent_kafka import KafkaException

from pulse_resources import kafka
from pulse_resources.settings import load_settings

KEEP_S = 1.0
PATIENCE_S = 3
"""For each of the two to answer."""


class Readiness:
    """Use from the event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "readiness")
        self._looking: asyncio.Future[str | None] | None = None
        self._looked_at = float("-inf")

    async def missing(self) -> str | None:
        """Which of the two does not answer; None when both do."""
        fresh = time.monotonic() - self._looked_at < KEEP_S
        if self._looking is None or (self._looking.done() and not fresh):
            self._looked_at = time.monotonic()
            self._looking = asyncio.get_running_loop().run_in_executor(self._thread, _look)
        return await asyncio.shield(self._looking)

    def stop(self) -> None:
        self._thread.shutdown()


def _look() -> str | None:
    url = load_settings().postgres.url("pulse_api")
    try:
        with psycopg.connect(url, connect_timeout=PATIENCE_S, application_name="pulse-ready") as connection:
            connection.execute("SELECT 1")
        kafka.admin().list_topics(topic="", timeout=PATIENCE_S)
    except (psycopg.Error, KafkaException) as error:
        return "Kafka" if isinstance(error, KafkaException) else "Postgres"
    return None
