"""Messages of exact offset ranges of a tenant's topic, read in chunks; offsets without one are noted."""

import time
from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import KafkaError, Message as Received, TopicPartition

from pulse_pipelines.domain.batch import OffsetRange
from pulse_pipelines.domain.quota import COUNTED
from pulse_pipelines.domain.scope import Scope
from pulse_pipelines.ingest.headers import headers_of
from pulse_pipelines.ingest.origins import Origins
from pulse_pipelines.ingest.stages import PartitionCount
from pulse_pipelines.tables.raw_zone import Message
from pulse_resources import kafka
from pulse_resources.errors import Terminal, Transient

PIECE = 1_000
"""Messages per poll of the consumer."""
CHUNK_BYTES = 32 * 1024 * 1024
"""A chunk ends at this many bytes, or at `ingest.chunk_rows`: large events must not fill the memory."""
SILENCE_S = 30.0
"""At the first attempt, a broker that sends nothing for this long while messages are due is unreachable."""


def read(
    scope: Scope,
    ranges: Sequence[OffsetRange],
    counts: dict[int, PartitionCount],
    chunk_rows: int,
    origins: Origins | None = None,
    patience: int = 1,
) -> Iterator[list[Message]]:
    """Read the messages of ranges (at most one range per partition), in chunks.

    Fills `drained`, `oldest_ms`, `counted` and `absent` of `counts`.

    Args:
        origins: collects the traces of the messages; None if traces are off.
        patience: how many times `SILENCE_S` the broker may be silent.

    Raises:
        Transient: the broker fell silent.
        Terminal: the topic or the offsets are gone.
    """
    topic, bases = scope.tenant.topic, scope.bases
    pending = {r.partition: [r.start, r.end] for r in ranges}  # [next expected, end)
    consumer = kafka.consumer()
    try:
        heard = time.monotonic()
        messages: list[Message] = []
        size = 0
        consumer.assign(
            [TopicPartition(topic, r.partition, r.start - bases.get(r.partition, 0)) for r in ranges]
        )
        while pending:
            received = consumer.consume(PIECE, 0)  # no time-out: it goes by the wall clock, see `kafka.flush`
            if received:
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENCE_S * patience:
                raise Transient("the broker sent nothing", topic=topic, partitions=sorted(pending))
            else:
                time.sleep(kafka.NAP_S)
            if origins is not None:
                origins.note(message for message in received if _due(message, pending, bases))
            for message in received:
                partition: int = message.partition()  # type: ignore[assignment]
                if (span := pending.get(partition)) is None:
                    continue
                error = message.error()
                if error is None:
                    offset: int = message.offset() + bases.get(partition, 0)  # type: ignore[operator]
                    if offset > span[0]:  # offsets in between hold no messages: markers, aborted ones
                        counts[partition].absent.append((span[0], min(offset, span[1])))
                    if offset < span[1]:
                        count, appended_ms = counts[partition], message.timestamp()[1]
                        count.drained += 1
                        if appended_ms < count.oldest_ms:
                            count.oldest_ms = appended_ms
                        if (headers := headers_of(message)) and any(h[0] == COUNTED for h in headers):
                            count.counted.append(offset)
                        payload = message.value() or b""
                        messages.append(Message(partition, offset, appended_ms, payload))
                        size += len(payload)
                    span[0] = offset + 1
                    reached = span[0] >= span[1]
                else:
                    reached = _at_end(error, topic, partition, span, counts)
                if reached:
                    del pending[partition]
                    consumer.incremental_unassign([TopicPartition(topic, partition)])
            if messages and (len(messages) >= chunk_rows or size >= CHUNK_BYTES or not pending):
                yield messages
                messages, size = [], 0
                heard = time.monotonic()  # the time in which the caller worked is not the broker's silence
    finally:
        consumer.close()


def _due(message: Received, pending: Mapping[int, Sequence[int]], bases: Mapping[int, int]) -> bool:
    """Whether a message is in one of the ranges."""
    partition, offset = message.partition(), message.offset()
    if message.error() is not None or partition is None or offset is None or partition not in pending:
        return False
    return offset + bases.get(partition, 0) < pending[partition][1]


def _at_end(
    error: KafkaError,
    topic: str,
    partition: int,
    span: list[int],
    counts: dict[int, PartitionCount],
) -> bool:
    """Whether an error event means that the partition has been read to its end."""
    if error.code() == KafkaError._PARTITION_EOF:
        if span[0] < span[1]:  # the remaining offsets hold no messages, such as transaction markers
            counts[partition].absent.append((span[0], span[1]))
        return True
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise Terminal(
            "offsets that were never ingested are gone from the topic",
            topic=topic,
            partition=partition,
            offset=span[0],
        )
    if error.retriable() and not error.fatal():
        return False
    raise Transient(f"Kafka: {error.str()}", topic=topic, partition=partition, offset=span[0])
