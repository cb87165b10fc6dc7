"""Readiness of Postgres and Kafka, checked in a dedicated thread over a dedicated connection.

Load on other requests cannot delay the check, and there is at most one look a second, however many probes.
During a look probes get the previous result, unless that is stale and was healthy.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import psycopg
from confluent_kafka import KafkaException

from pulse_resources import kafka
from pulse_resources.settings import load_settings

KEEP_S = 1.0
"""Minimum seconds between the starts of two looks."""
STALE_S = 2.5
"""Seconds from the start of a look until its result is stale."""
GRACE_S = 0.5
"""Wait for a look while a service is missing, to notice its recovery: such looks take long."""
PATIENCE_S = 10
"""Timeout of each of the two services: one that is slow, as all on a busy machine, is not missing."""


class Seen(NamedTuple):
    """Result of a look."""

    began: float
    """When it began, by the monotonic clock."""
    missing: str | None
    """Which service did not answer."""


class Readiness:
    """Cached readiness of both services. Use from the event loop.

    Args:
        look: checks both services; it blocks.
    """

    def __init__(self, look: Callable[[], Seen]) -> None:
        self._look = look
        self._thread = ThreadPoolExecutor(1, "readiness")
        self._looking: asyncio.Future[Seen] | None = None
        self._last = Seen(float("-inf"), None)

    async def missing(self) -> str | None:
        """The service that does not answer; None when both do."""
        now = time.monotonic()
        if self._looking is not None and self._looking.done():
            ended, self._looking = self._looking, None
            self._last = ended.result() if ended.exception() is None else self._last
        if self._looking is None and now - self._last.began >= KEEP_S:
            self._looking = asyncio.get_running_loop().run_in_executor(self._thread, self._look)
        looking, last = self._looking, self._last
        if looking is not None and now - last.began >= STALE_S:
            await asyncio.wait([looking], timeout=GRACE_S if last.missing else None)
            if looking.done():
                return looking.result().missing
        return last.missing

    def stop(self) -> None:
        self._thread.shutdown()


def look() -> Seen:
    """Check both services; blocking, so call it in a thread."""
    began, missing = time.monotonic(), None
    url = load_settings().postgres.url("pulse_api")
    try:
        with psycopg.connect(url, connect_timeout=PATIENCE_S, application_name="pulse-ready") as connection:
            connection.execute("SELECT 1")
        kafka.admin().list_topics(topic="", timeout=PATIENCE_S)
    except (psycopg.Error, KafkaException) as error:
        missing = "Kafka" if isinstance(error, KafkaException) else "Postgres"
    return Seen(began, missing)
