"""Whether Postgres and Kafka answer: looked at in a thread and by a connection that nothing else uses.

What holds up all other requests cannot hold up this, and however many ask, there is one look a second.
Whoever asks while one is under way is told what the last one found, unless that is long ago and all was well.
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
"""After a look has begun, until the next may."""
STALE_S = 2.5
"""After a look has begun, until what it found says nothing any more."""
GRACE_S = 0.5
"""For a look to find that what was missing answers again: while it does not, each look takes long."""
PATIENCE_S = 3
"""For each of the two to answer."""


class Seen(NamedTuple):
    """What a look found."""

    began: float
    """When, by the monotonic clock."""
    missing: str | None
    """Which of the two did not answer."""


class Readiness:
    """Use from the event loop.

    Args:
        look: at both; it blocks.
    """

    def __init__(self, look: Callable[[], Seen]) -> None:
        self._look = look
        self._thread = ThreadPoolExecutor(1, "readiness")
        self._looking: asyncio.Future[Seen] | None = None
        self._last = Seen(float("-inf"), None)

    async def missing(self) -> str | None:
        """Which of the two does not answer; None when both do."""
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
    """Ask both. Use it in a thread."""
    began, missing = time.monotonic(), None
    url = load_settings().postgres.url("pulse_api")
    try:
        with psycopg.connect(url, connect_timeout=PATIENCE_S, application_name="pulse-ready") as connection:
            connection.execute("SELECT 1")
        kafka.admin().list_topics(topic="", timeout=PATIENCE_S)
    except (psycopg.Error, KafkaException) as error:
        missing = "Kafka" if isinstance(error, KafkaException) else "Postgres"
    return Seen(began, missing)
