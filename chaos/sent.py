"""What was sent to a tenant's topic, and where the broker put it."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from confluent_kafka import KafkaError, Message, Producer

from chaos.load import Event
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import kafka

PARTITIONS = 2
FLUSH_S = 300.0


@dataclass
class Sent:
    """The messages of one tenant by position; `doubtful` were not acknowledged, and may be there or not."""

    tenant: Tenant
    events: dict[tuple[int, int], Event] = field(default_factory=dict)
    doubtful: list[Event] = field(default_factory=list)
    _turn: int = 0

    def send(self, events: Iterable[Event], producer: Producer | None = None) -> int:
        """Publish events, in turns to each partition, and wait for the broker's word; returns how many."""
        producer = producer or kafka.producer()
        count = 0
        for event in events:
            count += 1
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
        left = producer.flush(FLUSH_S)
        if left:
            raise TimeoutError(f"{left} messages have neither been acknowledged nor refused")
        return count

    def valid(self) -> dict[str, dict[str, Event]]:
        """By dataset and id: the events that must be rows, each exactly once."""
        found: dict[str, dict[str, Event]] = defaultdict(dict)
        for event in self.events.values():
            if event.event_id is not None:
                found[event.dataset][event.event_id] = event
        return found

    def _note(self, event: Event, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.events[message.partition(), message.offset()] = event  # type: ignore[index]
        else:
            self.doubtful.append(event)
