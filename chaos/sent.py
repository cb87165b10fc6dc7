"""Messages sent to a tenant's topic, and their positions."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import httpx
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, Producer, TopicPartition

from chaos.load import Event
from chaos.surroundings import TLS
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest.messages import MIDDLE_FETCH_BYTES
from pulse_resources import kafka

PARTITIONS = 2
FLUSH_S = 300.0
REQUEST_S = 30.0
_SILENCE_S = 120.0

Position = tuple[int, int]
"""(partition, offset) in a tenant's topic."""


@dataclass
class Sent:
    """Messages of one tenant by position; `doubtful` ones were not acknowledged and may be there or not."""

    tenant: Tenant
    events: dict[Position, Event] = field(default_factory=dict)
    doubtful: list[Event] = field(default_factory=list)
    base: dict[int, int] = field(default_factory=dict)
    """Offset added to the broker's by partition, after the topic was recreated."""
    _turn: int = 0

    def send(self, events: Iterable[Event], producer: Producer | None = None) -> None:
        """Publish events, spread over the partitions, and wait for acknowledgements."""
        producer = producer or kafka.producer()
        deadline = time.monotonic() + FLUSH_S
        for event in events:
            self._turn += 1
            while True:
                try:
                    producer.produce(
                        self.tenant.topic,
                        event.payload,
                        partition=self._turn % PARTITIONS,
                        on_delivery=partial(self._note, event),
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
                except KafkaException as error:
                    # A broker that has just started knows no topics yet.
                    if error.args[0].code() != KafkaError._UNKNOWN_TOPIC or time.monotonic() > deadline:
                        raise
                    producer.poll(0.1)
        unsent = producer.flush(FLUSH_S)
        if unsent:
            raise TimeoutError(f"{unsent} messages have neither been acknowledged nor refused")

    def valid(self) -> dict[str, dict[str, Event]]:
        """Events that must each be exactly one row, by dataset and id."""
        valid: dict[str, dict[str, Event]] = defaultdict(dict)
        for event in self.events.values():
            if event.event_id is not None:
                valid[event.dataset][event.event_id] = event
        return valid

    def locate(self) -> None:
        """Determine the positions of messages; the broker has already returned them."""

    def unlocated(self) -> list[str]:
        """Acknowledged messages that are nowhere in the topic."""
        return []

    def _note(self, event: Event, error: KafkaError | None, message: Message) -> None:
        if error is None:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.events[partition, offset + self.base.get(partition, 0)] = event
        else:
            self.doubtful.append(event)


@dataclass
class Collected(Sent):
    """Valid events sent through POST /v1/collect, like a careful client: repeated until the status is 202."""

    url: str = ""
    key: str = field(default="", repr=False)
    _owed: list[Event] = field(default_factory=list)
    _offered: dict[bytes, Event] = field(default_factory=dict)
    _acknowledged: Counter[bytes] = field(default_factory=Counter)

    def send(self, events: Iterable[Event], producer: Producer | None = None) -> None:
        """Collect events, and repeat those not yet accepted."""
        self._owed.extend(events)
        self._offered |= {event.payload: event for event in self._owed}
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/x-ndjson"}
        body = b"\n".join(event.payload for event in self._owed)
        answer = self.post(body, headers)
        if answer is not None and answer.status_code == httpx.codes.ACCEPTED:
            self._acknowledged.update(event.payload for event in self._owed)
            self._owed.clear()

    def post(self, body: bytes, headers: dict[str, str]) -> httpx.Response | None:
        """Send one request; None: it was not answered."""
        try:
            return httpx.post(
                f"{self.url}/v1/collect", content=body, headers=headers, timeout=REQUEST_S, verify=TLS
            )
        except httpx.TransportError:
            return None

    def locate(self) -> None:
        """Read the positions from the topic, independent of the API."""
        for (partition, offset), message in messages(self.tenant.topic):
            self.events[partition, offset] = self._offered[message.value() or b""]

    def unlocated(self) -> list[str]:
        located = Counter(event.payload for event in self.events.values())
        return [
            str(self._offered[e].event_id) for e, times in self._acknowledged.items() if located[e] < times
        ]


def messages(topic: str) -> Iterator[tuple[Position, Message]]:
    """All messages in a topic.

    Raises:
        TimeoutError: the broker does not answer.
    """
    count = kafka.partition_counts().get(topic)
    if count is None:
        raise TimeoutError(f"{topic}: the broker does not know it, as one that has just started")
    where = [(topic, partition) for partition in range(count)]
    starts, ends = kafka.offsets(where, "earliest"), kafka.offsets(where, "latest")
    unread = {partition for place, partition in where if starts[place, partition] != ends[place, partition]}
    consumer = kafka.consumer(MIDDLE_FETCH_BYTES)
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in unread])
        while unread:
            message = consumer.poll(_SILENCE_S)
            if message is None:
                raise TimeoutError(f"{topic}: the broker sent nothing")
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            if message.error():  # end of the partition
                unread.discard(partition)
            else:
                yield (partition, offset), message
    finally:
        consumer.close()
