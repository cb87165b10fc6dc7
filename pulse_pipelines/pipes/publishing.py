"""Publishing: rows of a pipe, as events of entities, on their tenant's topic."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message, Producer

from pulse_resources import kafka
from pulse_resources.errors import Transient

FLUSH_S = 120.0
POLLED = 1_000
"""Rows after which the producer is asked what was refused."""


@dataclass(frozen=True)
class Loaded:
    """Rows that the broker has acknowledged."""

    rows: int
    bytes: int
    position: str | None = None
    """Position in the source after them, if it is known only after reading."""
    more: bool = False
    """Whether the source has more, which the next run reads."""


def publish(topic: str, rows: Iterable[Sequence[bytes]]) -> Loaded:
    """Publish rows, as keys and events, and wait until the broker has acknowledged all of them.

    Raises:
        Transient: it did not. Rows that had not left are dropped: nothing reaches the topic later.
    """
    refused: list[KafkaError] = []

    def failed(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)

    producer = kafka.producer(delivery_timeout_s=FLUSH_S, in_bulk=True)
    count = size = 0
    try:
        for key, payload in rows:
            _produce(producer, topic, key, payload, failed)
            count, size = count + 1, size + len(payload)
            if count % POLLED == 0:
                producer.poll(0)
            if refused:
                raise _not_acknowledged(topic, refused)
        if kafka.flush(producer, FLUSH_S) or refused:
            raise _not_acknowledged(topic, refused)
    except BaseException:
        producer.purge()
        raise
    return Loaded(count, size)


def _not_acknowledged(topic: str, refused: Sequence[KafkaError]) -> Transient:
    why = refused[0] if refused else "time-out"
    return Transient(f"Kafka did not acknowledge rows of a pipe: {why}", topic=topic)


def _produce(producer: Producer, topic: str, key: bytes, payload: bytes, failed: Callable[..., None]) -> None:
    while True:
        try:
            producer.produce(topic, payload, key, on_delivery=failed)
        except BufferError:
            producer.poll(0.1)
        else:
            return
