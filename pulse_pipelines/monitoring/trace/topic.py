"""Unsettled events in the topic: the latest ones, up to a limit, read from the broker."""

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.batch import OffsetRange
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest.messages import read
from pulse_pipelines.ingest.stages import PartitionCount
from pulse_pipelines.monitoring.trace.ledger import Position
from pulse_pipelines.tables.raw_zone import Message
from pulse_resources import kafka
from pulse_resources.errors import Transient

MAX_MESSAGES = 50_000
CHUNK = 1_000


@dataclass(frozen=True)
class UnsettledMessages:
    """Unsettled messages with an event id."""

    matches: tuple[tuple[Message, str | None], ...]
    """Each message with the dataset that it names."""
    read: int
    count: int
    """Number of all unsettled messages."""


def ends(tenant: Tenant, positions: Mapping[int, Position]) -> dict[int, int]:
    """Offset after the last message, by partition.

    Raises:
        Transient: the broker does not answer.
    """
    partitions = [(tenant.topic, partition) for partition in positions]
    offsets: dict[int, int] = {}
    for (_, partition), answer in kafka.offsets(partitions, "latest").items():
        if not isinstance(answer, int):
            raise Transient(
                f"the broker does not answer: {kafka.error_text(answer)}",
                tenant=tenant.slug,
                partition=partition,
            )
        offsets[partition] = answer + positions[partition].base
    return offsets


def waiting(tenant: Tenant, positions: Mapping[int, Position], event_id: str) -> UnsettledMessages:
    """Search for an event id among the unsettled messages.

    Raises:
        Transient: the broker does not answer, or stopped answering.
        Terminal: the offsets are gone from the topic.
    """
    spans = {
        partition: (positions[partition].settled, end)
        for partition, end in ends(tenant, positions).items()
        if end > positions[partition].settled
    }
    if not spans:
        return UnsettledMessages((), 0, 0)
    share = MAX_MESSAGES // len(spans)
    ranges = [
        OffsetRange(tenant.tenant_id, partition, max(start, end - share), end)
        for partition, (start, end) in spans.items()
    ]
    scope = Scope(tenant, (), None, {number: position.base for number, position in positions.items()})
    counts = {r.partition: PartitionCount() for r in ranges}
    matches = [
        (message, named[1])
        for messages in read(scope, ranges, counts, CHUNK)
        for message in messages
        if (named := names(message.payload))[0] == event_id
    ]
    count = sum(end - start for start, end in spans.values())
    return UnsettledMessages(tuple(matches), sum(r.length for r in ranges), count)


def names(payload: bytes) -> tuple[str | None, str | None]:
    """Event id and dataset named by an event, as far as it can be decoded."""
    try:
        event = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None, None
    if not isinstance(event, dict):
        return None, None
    event_id, dataset = event.get("event_id"), event.get("dataset")
    return (
        event_id if isinstance(event_id, str) else None,
        dataset if isinstance(dataset, str) else None,
    )
