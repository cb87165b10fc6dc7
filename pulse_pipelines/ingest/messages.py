"""Messages of exact offset ranges of a tenant's topic, read in chunks; offsets without one are noted."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

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
"""Messages per poll of the consumer, at most."""
PIECE_BYTES = 4 * 1024 * 1024
"""Bytes per poll, if the messages are as large as those of the poll before."""
CHUNK_BYTES = 32 * 1024 * 1024
"""A chunk ends at this many bytes, or at `ingest.chunk_rows`: large events must not fill the memory."""
LARGE_FETCH_BYTES = 2 * 1024 * 1024
"""Bytes of a partition that the broker sends at once: for topics of small events."""
MIDDLE_FETCH_BYTES = 64 * 1024
"""For a second attempt, as the first may have died of large events or of an outage; and for other readers."""
SMALL_FETCH_BYTES = 4 * 1024
"""For topics of large events: the client unpacks a whole answer, and zstd makes up to 32,000 bytes of one.
(At least one batch comes anyway.) With small events even 16 KiB cost a fifth of throughput."""
SILENCE_S = 30.0
"""At the first attempt, a broker that sends nothing for this long while messages are due is unreachable."""


def read(
    scope: Scope,
    ranges: Sequence[OffsetRange],
    counts: dict[int, PartitionCount],
    chunk_rows: int,
    origins: Origins | None = None,
    patience: int = 1,
    fetch_bytes: int = SMALL_FETCH_BYTES,
) -> Iterator[list[Message]]:
    """Read the messages of ranges (at most one range per partition), in chunks.

    A payload beyond `kafka.MAX_MESSAGE_BYTES`, which only a compressed batch can hold, is cut there.

    Fills `drained`, `bytes`, `oldest_ms`, `counted` and `absent` of `counts`.

    Args:
        origins: collects the traces of the messages; None if traces are off.
        patience: how many times `SILENCE_S` the broker may be silent.
        fetch_bytes: bytes of a partition that the broker sends at once.

    Raises:
        Transient: the broker fell silent.
        Terminal: the topic or the offsets are gone.
        UnreadableError: a batch of messages cannot be unpacked.
    """
    topic, bases = scope.tenant.topic, scope.bases
    pending = {r.partition: [r.start, r.end] for r in ranges}  # [next expected, end)
    consumer = kafka.consumer(fetch_bytes)
    try:
        heard = time.monotonic()
        messages: list[Message] = []
        size, unpacked, piece = 0, 0, 10
        consumer.assign(
            [TopicPartition(topic, r.partition, r.start - bases.get(r.partition, 0)) for r in ranges]
        )
        while pending:
            received = consumer.consume(piece, 0)  # no time-out: it goes by the wall clock, see `kafka.flush`
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
                        if (length := len(payload)) > kafka.MAX_MESSAGE_BYTES:
                            payload = payload[: kafka.MAX_MESSAGE_BYTES]
                        messages.append(Message(partition, offset, appended_ms, payload))
                        count.bytes += length
                        size += length
                    span[0] = offset + 1
                    reached = span[0] >= span[1]
                else:
                    reached = _at_end(error, topic, partition, span, counts)
                if reached:
                    del pending[partition]
                    consumer.incremental_unassign([TopicPartition(topic, partition)])
            if received:
                before, unpacked = unpacked, sum(count.bytes for count in counts.values())
                piece = min(PIECE, PIECE_BYTES * len(received) // max(1, unpacked - before) + 1)
            if messages and (len(messages) >= chunk_rows or size >= CHUNK_BYTES or not pending):
                yield messages
                messages, size = [], 0
                heard = time.monotonic()  # the time in which the caller worked is not the broker's silence
    finally:
        consumer.close()


class UnreadableError(Exception):
    """A batch of messages that cannot be unpacked: what somebody sent is at fault, and no outage."""


def stand_in(ranges: Iterable[OffsetRange], counts: Mapping[int, PartitionCount]) -> Iterator[list[Message]]:
    """An empty message for each offset of ranges, instead of reading them. Fills `drained` and `oldest_ms`.

    Their tenant counts as one of large events: see `ingest_positions.event_bytes`.
    """
    now_ms = round(time.time() * 1000)
    for r in ranges:
        count = counts[r.partition]
        count.drained += r.length
        count.bytes += r.length * kafka.MAX_MESSAGE_BYTES
        count.oldest_ms = min(count.oldest_ms, now_ms)
        yield [Message(r.partition, offset, now_ms, b"") for offset in range(r.start, r.end)]


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
    if error.code() in (KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG):
        raise UnreadableError(f"{error.str()} (partition {partition}, offset {span[0]})")
    raise Transient(f"Kafka: {error.str()}", topic=topic, partition=partition, offset=span[0])
