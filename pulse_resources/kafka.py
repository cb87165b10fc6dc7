"""Kafka: clients, topics, and the broker queries used for planning."""

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
    TopicDescription,
)

from pulse_resources.errors import Transient
from pulse_resources.resettable import Resettable
from pulse_resources.settings import load_settings

TIMEOUT_S = 20.0
NAP_S = 0.003
"""Seconds between two polls of an idle client."""
_log = logging.getLogger("pulse.kafka")
_log.addHandler(logging.NullHandler())

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Message limit of Pulse's topics: a dead letter is its event, within the broker's limit, plus headers."""


@Resettable
def admin() -> AdminClient:
    """Admin client of this process."""
    return AdminClient(client_settings())


def producer(*, delivery_timeout_s: float = 300.0, in_bulk: bool = False) -> Producer:
    """Producer whose acknowledgement means that all in-sync replicas hold the event.

    What is not acknowledged in time is reported as failed, and may have been written. With `in_bulk`, batches
    may fill for longer, since no caller waits for a single event; only failures are reported; and no more
    than 64 MiB wait in memory: beyond, `produce` raises BufferError.
    """
    return Producer(
        client_settings()
        | {
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 50 if in_bulk else 5,
            "delivery.report.only.error": in_bulk,
            "delivery.timeout.ms": round(delivery_timeout_s * 1000),
            "message.max.bytes": MAX_MESSAGE_BYTES,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 65_536 if in_bulk else 1_048_576,
        }
    )


@Resettable
def shared_producer() -> Producer:
    """Producer of this process, for what is not urgent enough to keep one ready.

    The first message of a new one takes half a second: librdkafka asks for the producer's id before it has a
    connection, and then waits. After an error call `shared_producer.cache_clear()`: messages may be queued.
    """
    return producer()


shared_producer.renew_in_children()  # its threads stay the parent's


def flush(producer: Producer, seconds: float) -> int:
    """Wait until every message is acknowledged or refused; returns how many are neither.

    librdkafka's own wait uses the wall clock: when that is set back an hour, it waits an hour.

    Args:
        producer: what sends them.
        seconds: how long to wait for the next acknowledgement or refusal.
    """
    remaining, deadline = len(producer), time.monotonic() + seconds
    while remaining and time.monotonic() < deadline:
        if not producer.poll(0):
            time.sleep(NAP_S)
        if len(producer) < remaining:
            remaining, deadline = len(producer), time.monotonic() + seconds
    return len(producer)


def consumer(fetch_bytes: int = 4_096) -> Consumer:
    """Consumer for exact ranges, fetched by `fetch_bytes`: it never commits, nor resets its position."""
    return Consumer(
        client_settings()
        | {
            "group.id": "pulse-ingest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "check.crcs": True,
            "fetch.message.max.bytes": fetch_bytes,
            "queued.max.messages.kbytes": max(4_096, fetch_bytes // 32),
            "queued.min.messages": 20_000,
            "fetch.queue.backoff.ms": 5,  # a full queue would delay fetching by a second
        }
    )


@Resettable
def _reader() -> Consumer:
    """Consumer of this process that asks for offsets.

    Where a topic is unknown, the admin client's `list_offsets` works on it in two threads at once, which ends
    the process sooner or later (librdkafka 2.16).
    """
    return consumer()


def forget_clients() -> None:
    """Drop this process's clients: new ones use the current settings."""
    admin.cache_clear()
    _reader.cache_clear()
    shared_producer.cache_clear()


def client_settings() -> dict[str, Any]:
    """What all clients of librdkafka in Pulse are made with."""
    return load_settings().kafka.client() | {
        "client.id": "pulse",
        "log_level": 3,
        "logger": _log,  # otherwise librdkafka writes to the console
    }


def create_topics(names: Iterable[str]) -> None:
    """Create missing topics and wait until they can be used; idempotent.

    Raises:
        Transient: the broker did not create a topic.
    """
    settings = load_settings().kafka
    names = list(names)
    topics = [
        NewTopic(
            name,
            num_partitions=settings.partitions_per_topic,
            replication_factor=settings.replication_factor,
            config={"max.message.bytes": str(MAX_MESSAGE_BYTES), "message.timestamp.type": "LogAppendTime"},
        )
        for name in names
    ]
    for name, future in admin().create_topics(topics, request_timeout=TIMEOUT_S).items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise Transient(f"Kafka did not create the topic: {error_text(error)}", topic=name) from error
    _wait_for_leaders([(name, p) for name in names for p in range(settings.partitions_per_topic)])


def ensure_partitions(topic: str, count: int) -> None:
    """Raise a topic's partition count to `count`, and wait until the partitions can be used.

    Raises:
        Transient: the broker did not add them.
    """
    if partition_counts().get(topic, 0) >= count:
        return
    added = admin().create_partitions([NewPartitions(topic, count)], request_timeout=TIMEOUT_S)
    try:
        added[topic].result()
    except KafkaException as error:
        raise Transient(
            f"Kafka did not add partitions: {error_text(error)}", topic=topic, partitions=count
        ) from error
    _wait_for_leaders([(topic, partition) for partition in range(count)])


def _wait_for_leaders(partitions: list[tuple[str, int]]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while problems := [a for a in offsets(partitions, "latest").values() if isinstance(a, KafkaException)]:
        if time.monotonic() > deadline:
            raise Transient(
                f"Kafka created topics that have no leader: {error_text(problems[0])}", topics=partitions
            )
        time.sleep(0.02)


OffsetKind = Literal["earliest", "latest"] | datetime
"""First offset of a partition, its end, or the first offset appended at or after a time (-1: none)."""


def offsets(
    partitions: Iterable[tuple[str, int]], kind: OffsetKind
) -> Mapping[tuple[str, int], int | KafkaException]:
    """One offset for each of many (topic, partition) pairs, in one request.

    A pair that the broker cannot answer for maps to its error, so that one lost topic does not hide the
    others.
    """
    if isinstance(kind, datetime):
        moment = round(kind.timestamp() * 1000)
    else:
        moment = OFFSET_BEGINNING if kind == "earliest" else OFFSET_END
    answers = _offsets(list(partitions), moment)
    failed = [where for where, answer in answers.items() if isinstance(answer, KafkaException)]
    try:
        for topic in {topic for topic, _ in failed}:
            # librdkafka remembers for long that a topic was there, or that a new one had no leader.
            _reader().list_topics(topic, timeout=TIMEOUT_S)
    except KafkaException:
        return answers  # no broker answers
    again = _offsets(failed, moment)
    return answers | {where: offset for where, offset in again.items() if isinstance(offset, int)}


def _offsets(partitions: list[tuple[str, int]], moment: int) -> dict[tuple[str, int], int | KafkaException]:
    if not partitions:
        return {}
    requested = [TopicPartition(topic, partition, moment) for topic, partition in partitions]
    try:
        answers = _reader().offsets_for_times(requested, timeout=TIMEOUT_S)
    except KafkaException as error:
        code = error.args[0].code()
        if len(partitions) == 1 or code <= 0 or code == KafkaError.REQUEST_TIMED_OUT:
            return dict.fromkeys(partitions, error)
        half = len(partitions) // 2  # the error of one partition, which hides the others
        return _offsets(partitions[:half], moment) | _offsets(partitions[half:], moment)
    return {(a.topic, a.partition): KafkaException(a.error) if a.error else a.offset for a in answers}


def error_text(error: object) -> str:
    """What an error of the client says, without the names that its library adds."""
    inner = next(iter(error.args), error) if isinstance(error, KafkaException) else error
    return inner.str() if isinstance(inner, KafkaError) else str(error)


def partition_counts(names: Iterable[str] | None = None) -> Mapping[str, int]:
    """Partition count of each existing topic, in one request.

    Args:
        names: the topics; None: all of the broker's.
    """
    if names is not None:
        return {name: len(topic.partitions) for name, topic in _described(names).items()}
    topics = admin().list_topics(timeout=TIMEOUT_S).topics
    return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}


def topic_settings(topics: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
    """Broker settings of each existing topic, such as `retention.ms`.

    Raises:
        KafkaException: the broker does not answer.
    """
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    configs: dict[str, Mapping[str, str]] = {}
    for resource, future in admin().describe_configs(resources, request_timeout=TIMEOUT_S).items():
        try:
            entries = future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            continue
        configs[resource.name] = {name: str(entry.value) for name, entry in entries.items()}
    return configs


def topic_ids(topics: Iterable[str]) -> Mapping[str, str]:
    """Broker's id of each existing topic: a recreated topic has a new id."""
    return {name: str(topic.topic_id) for name, topic in _described(topics).items()}


def _described(topics: Iterable[str]) -> dict[str, TopicDescription]:
    """Descriptions of the existing topics."""
    names = list(topics)
    if not names:
        return {}
    descriptions: dict[str, TopicDescription] = {}
    described = admin().describe_topics(TopicCollection(names), request_timeout=TIMEOUT_S)
    for name, future in described.items():
        with contextlib.suppress(KafkaException):  # missing: the caller sees that it is not there
            descriptions[name] = future.result()
    return descriptions
