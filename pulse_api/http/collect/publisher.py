"""Publisher to Kafka: a request's events are accepted when the broker has acknowledged all of them."""

import asyncio
import hashlib
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from pulse_api.http import process_metrics
from pulse_api.http.collect.window import Window
from pulse_api.http.telemetry import Carried
from pulse_resources import kafka
from pulse_resources.errors import Transient
from pulse_resources.settings import load_settings

POLL_S = 0.2
AT_ONCE = 200
"""Events handed to the producer before the event loop runs other tasks."""
_log = logging.getLogger("pulse.api")


class Outgoing(NamedTuple):
    """An event on its way to the tenant's topic."""

    dataset: str
    key: str | None
    """The event id, where the event has one."""
    payload: bytes

    @property
    def identity(self) -> bytes:
        """Hash that is the same for the same event of a dataset, however often it is sent."""
        hashed = self.payload if self.key is None else f"{self.dataset}\0{self.key}".encode()
        return hashlib.blake2b(hashed, digest_size=16).digest()


class Unacknowledged(Transient):
    """The broker did not acknowledge all events of a request.

    `sent`: the number of events, from the first, that were handed to the producer and may have been written;
    the others certainly were not. librdkafka knows which of the former were never transmitted (its message
    status), but the Python binding does not expose that.
    """

    def __init__(self, message: str, *, sent: int = 0, fix: str | None = None, **where: object) -> None:
        super().__init__(message, fix=fix, **where)
        self.sent = sent

    def __reduce__(self) -> tuple[Any, ...]:
        return *super().__reduce__(), {"sent": self.sent}


class _Delivery:
    """Counts the acknowledgements of one request; called by the polling thread only."""

    __slots__ = ("_done", "_loop", "_unacknowledged", "error")

    def __init__(self, count: int) -> None:
        self._unacknowledged = count
        self._loop = asyncio.get_running_loop()
        self._done = self._loop.create_future()
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError | None, _: Message) -> None:
        self.settle(1, error)

    def settle(self, count: int, error: KafkaError | None) -> None:
        if error is not None:
            self.error = error
        self._unacknowledged -= count
        if self._unacknowledged == 0:
            self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        if not self._done.done():  # the client may have left and its request been cancelled
            self._done.set_result(None)

    async def wait(self) -> None:
        await self._done


class Publisher:
    """One producer for all requests; `start` and `stop` its polling thread."""

    def __init__(self) -> None:
        settings = load_settings().api
        self._timeout_s = settings.delivery_timeout_seconds
        self._most = settings.max_unacknowledged_events
        self._producer = self._new_producer()
        self._failed: list[Producer] = []
        """Replaced producers, kept until the outcome of their last events is known."""
        self._in_flight = 0
        """Events that were sent and are not acknowledged yet."""
        self._requests: Counter[str] = Counter()
        """Requests with unacknowledged events, by topic."""
        self._silent: set[str] = set()
        """Topics whose last request was not acknowledged."""
        self._window = Window()
        self._late: list[tuple[_Delivery, int, KafkaError]] = []
        """Events that the producer rejected, for the polling thread to count."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="acknowledgements", daemon=True)

    def _new_producer(self) -> Producer:
        return kafka.producer(delivery_timeout_s=self._timeout_s)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        kafka.flush(self._producer, self._timeout_s)
        self._stopping.set()
        self._thread.join(timeout=5)

    async def publish(self, topic: str, events: Sequence[Outgoing], headers: Carried | None = None) -> None:
        """Publish events and wait until the broker has acknowledged every one of them.

        A topic that does not acknowledge gets one request at a time until it does, so that an outage leaves
        few events whose state is unknown.

        Args:
            headers: Kafka headers of each message.

        Raises:
            Unacknowledged: not all events were acknowledged; sending them again is safe.
        """
        async with self._window.take(topic, len(events)):
            await self._publish(topic, events, headers)

    async def _publish(self, topic: str, events: Sequence[Outgoing], headers: Carried | None) -> None:
        count = len(events)
        if topic in self._silent and topic in self._requests:
            raise Unacknowledged(
                "the broker does not answer: nothing was sent", fix="Send the events again later"
            )
        if self._in_flight + count > self._most:
            raise Unacknowledged(
                "the broker is slow: too many events wait for its acknowledgement, nothing was sent",
                fix="Send the events again later",
            )
        delivery = _Delivery(count)
        self._in_flight += count
        self._requests[topic] += 1
        process_metrics.IN_FLIGHT.inc(count)
        try:
            sent = await self._produce(topic, events, delivery, headers)
            await delivery.wait()
        finally:
            self._in_flight -= count
            self._requests[topic] -= 1
            if not self._requests[topic]:
                del self._requests[topic]
            process_metrics.IN_FLIGHT.dec(count)
        if delivery.error is not None:
            if sent:
                self._silent.add(topic)
            raise Unacknowledged(
                f"the broker did not acknowledge the events: {delivery.error.str()}",
                sent=sent,
                fix="Send them again: an event id lands once, however often it is sent",
            )
        self._silent.discard(topic)

    async def _produce(
        self, topic: str, events: Sequence[Outgoing], delivery: _Delivery, headers: Carried | None
    ) -> int:
        """Hand events to the producer; returns the number that it took, which are the first ones."""
        sent = 0
        arguments: dict[str, Any] = {"on_delivery": delivery}
        if headers is not None:  # an empty argument costs 0.1 µs per event
            arguments["headers"] = headers
        try:
            for event in events:
                self._producer.produce(topic, event.payload, event.key, **arguments)
                sent += 1
                if sent % AT_ONCE == 0:
                    await asyncio.sleep(0)
        except (BufferError, KafkaException) as error:
            cause = error.args[0] if isinstance(error, KafkaException) else KafkaError(KafkaError._QUEUE_FULL)
            # Left to the polling thread, the only one that counts.
            self._late.append((delivery, len(events) - sent, cause))
        return sent

    def _poll(self) -> None:
        while not self._stopping.is_set():
            try:
                self._producer.poll(POLL_S)
            except KafkaException as error:  # raised for fatal errors only
                _log.error("the producer is replaced after a fatal error: %s", error)
                self._failed.append(self._producer)
                self._producer = self._new_producer()
            for failed in self._failed:
                failed.poll(0)
            self._failed = [failed for failed in self._failed if len(failed)]
            while self._late:
                delivery, count, cause = self._late.pop()
                delivery.settle(count, cause)
