"""Messages of exact offset ranges of a tenant's topic, read in chunks; offsets without one are noted."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, Message as Received, TopicPartition

from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.batch import OffsetRange
from pulse_pipelines.domain.quota import COUNTED
from pulse_pipelines.ingest.origins import Origins, headers_of
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
    topic = scope.tenant.topic
    unread = {r.partition: _Unread(topic, r, scope.bases, counts[r.partition]) for r in ranges}
    consumer = kafka.consumer(fetch_bytes)
    try:
        consumer.assign([partition.begin for partition in unread.values()])
        heard, piece = time.monotonic(), 10
        messages: list[Message] = []
        yielded_bytes = unpacked_bytes = sum(count.bytes for count in counts.values())
        while unread:
            received = consumer.consume(piece, 0)  # no time-out: it goes by the wall clock, see `kafka.flush`
            if not received:
                if time.monotonic() - heard > SILENCE_S * patience:
                    raise Transient("the broker sent nothing", topic=topic, partitions=sorted(unread))
                time.sleep(kafka.NAP_S)
                continue
            heard = time.monotonic()
            traced: list[Received] = []
            for event in received:
                number: int = event.partition()  # type: ignore[assignment]
                if (partition := unread.get(number)) is None:
                    continue
                if (message := partition.accept(event)) is not None:
                    messages.append(message)
                    if origins is not None:
                        traced.append(event)
                if partition.ended:
                    del unread[number]
                    consumer.incremental_unassign([TopicPartition(topic, number)])
            if origins is not None:
                origins.note(traced)
            before, unpacked_bytes = unpacked_bytes, sum(count.bytes for count in counts.values())
            piece = min(PIECE, PIECE_BYTES * len(received) // max(1, unpacked_bytes - before) + 1)
            size = unpacked_bytes - yielded_bytes
            if messages and (len(messages) >= chunk_rows or size >= CHUNK_BYTES or not unread):
                yield messages
                messages, yielded_bytes = [], unpacked_bytes
                heard = time.monotonic()  # the time in which the caller worked is not the broker's silence
    finally:
        consumer.close()


class _Unread:
    """The part of a range that is still to be read; its count has the rest.

    Args:
        bases: by partition, what Pulse's offsets are above the broker's.
    """

    def __init__(
        self, topic: str, planned: OffsetRange, bases: Mapping[int, int], count: PartitionCount
    ) -> None:
        self._topic = topic
        self._partition = planned.partition
        self._next, self._end = planned.start, planned.end
        self._base = bases.get(planned.partition, 0)
        self._count = count

    @property
    def begin(self) -> TopicPartition:
        """Where the consumer begins, by the broker's offsets."""
        return TopicPartition(self._topic, self._partition, self._next - self._base)

    @property
    def ended(self) -> bool:
        return self._next >= self._end

    def accept(self, event: Received) -> Message | None:
        """Count a message, and return it if the range has it. Raises as `read`."""
        if (error := event.error()) is not None:
            self._handle(error)
            return None
        count, offset = self._count, event.offset() + self._base  # type: ignore[operator]
        if offset > self._next:
            self._note_absent(min(offset, self._end))
        self._next = offset + 1
        if offset >= self._end:
            return None
        appended_ms = event.timestamp()[1]
        count.drained += 1
        if appended_ms < count.oldest_ms:
            count.oldest_ms = appended_ms
        if (headers := headers_of(event)) and any(header[0] == COUNTED for header in headers):
            count.counted.append(offset)
        payload = event.value() or b""
        count.bytes += len(payload)
        if len(payload) > kafka.MAX_MESSAGE_BYTES:
            payload = payload[: kafka.MAX_MESSAGE_BYTES]
        return Message(self._partition, offset, appended_ms, payload)

    def _note_absent(self, until: int) -> None:
        """Offsets in between hold no messages: transaction markers, aborted messages."""
        self._count.absent.append((self._next, until))

    def _handle(self, error: KafkaError) -> None:
        """End the range at the end of its partition, ignore an error that passes, else raise."""
        if error.code() == KafkaError._PARTITION_EOF:
            if not self.ended:
                self._note_absent(self._end)
            self._next = self._end
            return
        place: dict[str, Any] = {"topic": self._topic, "partition": self._partition, "offset": self._next}
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise Terminal("offsets that were never ingested are gone from the topic", **place)
        if error.retriable() and not error.fatal():
            return
        if error.code() in (KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG):
            raise UnreadableError(f"{error.str()} (partition {self._partition}, offset {self._next})")
        raise Transient(f"Kafka: {error.str()}", **place)


class UnreadableError(Exception):
    """A batch of messages cannot be unpacked: the fault is in what a client sent, and not an outage."""


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
