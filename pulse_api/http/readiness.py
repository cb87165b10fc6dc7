"""Readiness of Postgres and Kafka, checked in a dedicated thread over a dedicated connection.

Load on other requests cannot delay the check, and there is at most one check a second, however many probes.
During a check probes get the previous result, unless that is stale and was healthy.
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
"""Minimum seconds between the starts of two checks."""
STALE_S = 2.5
"""Seconds from the start of a check until its result is stale."""
GRACE_S = 0.5
"""Wait for a check while a service is missing, to notice its recovery: such checks take long."""
PATIENCE_S = 10
"""Timeout of each of the two services: one that is slow, as all on a busy machine, is not missing."""


class CheckResult(NamedTuple):
    """Result of a check."""

    began: float
    """When it began, by the monotonic clock."""
    missing: str | None
    """Which service did not answer."""


class Readiness:
    """Cached readiness of both services. Use from the event loop.

    Args:
        check: checks both services; it blocks.
    """

    def __init__(self, check: Callable[[], CheckResult]) -> None:
        self._check = check
        self._thread = ThreadPoolExecutor(1, "readiness")
        self._checking: asyncio.Future[CheckResult] | None = None
        self._last = CheckResult(float("-inf"), None)

    async def missing(self) -> str | None:
        """The service that does not answer; None when both do."""
        now = time.monotonic()
        if self._checking is not None and self._checking.done():
            ended, self._checking = self._checking, None
            self._last = ended.result() if ended.exception() is None else self._last
        if self._checking is None and now - self._last.began >= KEEP_S:
            self._checking = asyncio.get_running_loop().run_in_executor(self._thread, self._check)
        check, last = self._checking, self._last
        if check is not None and now - last.began >= STALE_S:
            await asyncio.wait([check], timeout=GRACE_S if last.missing else None)
            if check.done():
                return check.result().missing
        return last.missing

    def stop(self) -> None:
        self._thread.shutdown()


def check_services() -> CheckResult:
    """Check both services; blocking, so call it in a thread."""
    began, missing = time.monotonic(), None
    url = load_settings().postgres.url("pulse_api")
    try:
        with psycopg.connect(url, connect_timeout=PATIENCE_S, application_name="pulse-ready") as connection:
            connection.execute("SELECT 1")
        kafka.admin().list_topics(topic="", timeout=PATIENCE_S)
    except (psycopg.Error, KafkaException) as error:
        missing = "Kafka" if isinstance(error, KafkaException) else "Postgres"
    return CheckResult(began, missing)
