"""How long reading a topic waits for a broker that is silent, by a clock of its own."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from support.clock import Clock
from support.conform import TENANT

from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.batch import OffsetRange
from pulse_pipelines.ingest import messages
from pulse_pipelines.ingest.stages import PartitionCount
from pulse_pipelines.tables.raw_zone import Message
from pulse_resources.errors import Transient


class Sent:
    """A message of Kafka."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def error(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000

    def headers(self) -> None:
        return None

    def value(self) -> bytes:
        return b"{}"


@dataclass
class Broker:
    """Sends one message per poll, after as many silent polls."""

    clock: Clock
    silent: int
    sent: int = 0
    polls: int = field(default=0)

    def assign(self, _: object) -> None: ...

    def incremental_unassign(self, _: object) -> None: ...

    def close(self) -> None: ...

    def consume(self, _size: int, _timeout: float) -> list[Sent]:
        self.polls += 1
        if self.polls <= self.silent:
            return []
        self.polls = 0
        self.sent += 1
        return [Sent(self.sent - 1)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(messages, "time", clock)
    monkeypatch.setattr(messages.kafka, "NAP_S", 1.0)
    return clock


def reading(broker: Broker, monkeypatch: pytest.MonkeyPatch, patience: int = 1) -> Iterator[list[Message]]:
    monkeypatch.setattr(messages.kafka, "consumer", lambda _fetch_bytes: broker)
    of = [OffsetRange(uuid.uuid4(), 0, 0, 3)]
    return messages.read(Scope(TENANT, ()), of, {0: PartitionCount()}, 1, patience=patience)


def test_the_work_of_the_caller_is_not_silence_of_the_broker(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = reading(Broker(clock, silent=2), monkeypatch)
    offsets = []
    for (message,) in read:
        offsets.append(message.offset)
        clock.now += 10 * messages.SILENCE_S
    assert offsets == [0, 1, 2]


def test_a_later_attempt_waits_longer(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = int(messages.SILENCE_S) + 5
    with pytest.raises(Transient, match="the broker sent nothing"):
        list(reading(Broker(clock, silent), monkeypatch))
    assert len(list(reading(Broker(clock, silent), monkeypatch, patience=2))) == 3
