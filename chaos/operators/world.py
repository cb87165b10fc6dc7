"""The harness's knowledge of a tenant: messages and positions, schema versions, losses, erasures."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import NamedTuple
from uuid import UUID

import httpx
from confluent_kafka import KafkaError, Message, Producer

from chaos.operators.events import Event
from chaos.operators.rounds import Rounds
from chaos.sent import FLUSH_S, Position, messages
from chaos.surroundings import TLS
from pulse_pipelines.dead_letters.replay import ORIGIN_HEADER
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import kafka, postgres

BASES = "SELECT partition, base_offset FROM ingest_positions WHERE tenant_id = %s"
PROGRESS = "SELECT partition, settled_offset, planned_offset FROM ingest_positions WHERE tenant_id = %s"
NOW = "SELECT clock_timestamp()"


class Arrived(NamedTuple):
    """A message seen in a topic."""

    payload: bytes
    replay_of: Position | None
    """Position, in Pulse's counting, of the dead letter that it replays."""


class Place(NamedTuple):
    """Position of a message in the broker's counting; recreating a topic starts the next generation."""

    generation: int
    partition: int
    offset: int


class Receipt(NamedTuple):
    """A completed erasure."""

    slug: str
    person: str
    covers: Mapping[int, int]
    """First offset that is not erased, by partition."""
    dataset_id: UUID


class Progress(NamedTuple):
    """Pulse's progress at a moment, by partition."""

    at: datetime
    settled: Mapping[int, int]
    planned: Mapping[int, int]


@dataclass
class World:
    """One tenant."""

    tenant: Tenant
    rounds: Rounds
    hostile: bool = False
    """Sends invalid data."""
    generation: int = 0
    accepted: bool = True
    """Whether an operator accepted the topic's state."""
    bases: dict[tuple[int, int], int] = field(default_factory=dict)
    """What Pulse adds to the broker's offsets, by generation and partition."""
    arrived: dict[Place, Arrived] = field(default_factory=dict)
    ends: dict[tuple[int, int], int] = field(default_factory=dict)
    """Offset after the last message seen, by generation and partition."""
    events: dict[bytes, Event] = field(default_factory=dict)
    """Sent events by their bytes: equal bytes are the same event."""
    answers: Counter[int] = field(default_factory=Counter)
    """Responses of the HTTP API, by status."""
    acknowledged: Counter[tuple[int, bytes]] = field(default_factory=Counter)
    """Number of acknowledgements by generation and bytes."""
    recreations: set[int] = field(default_factory=set)
    """Rounds in which the topic was recreated."""
    cuts: dict[tuple[int, int], int] = field(default_factory=dict)
    """Offset before which messages were removed, by generation and partition."""
    erasures_begun: set[tuple[str, str]] = field(default_factory=set)
    """Slug and person of each erasure that was begun."""
    unfinished: set[tuple[str, str]] = field(default_factory=set)
    """Those among them that were not reported as completed."""
    receipts: list[Receipt] = field(default_factory=list)
    quotas: list[int] = field(default_factory=list)
    """Quotas that ever applied, in records per month; empty: none."""
    forgets: list[Progress] = field(default_factory=list)
    """Progress at each time when claims became old enough to be forgotten."""
    retained: bool = False
    """Raw objects may have been removed."""
    key: str = field(default="", repr=False)
    """API key."""

    def send(self, events: Iterable[Event], producer: Producer) -> None:
        """Publish events, spread over the topic's partitions, and wait for acknowledgements."""
        count = kafka.partition_counts()[self.tenant.topic]
        for number, event in enumerate(events):
            self.events[event.payload] = event
            producer.produce(
                self.tenant.topic,
                event.payload,
                partition=number % count,
                on_delivery=partial(self._acknowledge, self.generation, event.payload),
            )
        unsent = kafka.flush(producer, FLUSH_S)
        assert not unsent, f"{unsent} messages have neither been acknowledged nor refused"

    def collect(self, events: Sequence[Event], api_url: str, patience_s: float) -> None:
        """Send events through the API once; those without acknowledgement may be in the topic or not."""
        self.events |= {event.payload: event for event in events}
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/x-ndjson"}
        body = b"\n".join(event.payload for event in events)
        answer = httpx.post(
            f"{api_url}/v1/collect", content=body, headers=headers, timeout=patience_s, verify=TLS
        )
        self.answers[answer.status_code] += 1
        if answer.status_code in (httpx.codes.ACCEPTED, httpx.codes.MULTI_STATUS):
            refused = {verdict["index"] for verdict in answer.json()["verdicts"]}
            accepted = (event.payload for index, event in enumerate(events) if index not in refused)
            self.acknowledged.update((self.generation, payload) for payload in accepted)

    def progress(self) -> Progress:
        """Pulse's current progress."""
        with postgres.tenant_transaction("pulse_pipeline", self.tenant.tenant_id) as connection:
            ((now,),) = connection.execute(NOW).fetchall()
            rows = connection.execute(PROGRESS, [self.tenant.tenant_id]).fetchall()
        return Progress(now, {p: at for p, at, _ in rows}, {p: at for p, _, at in rows})

    def cut(self, partition: int, until: int) -> None:
        """Record that messages before an offset were removed."""
        self.cuts[self.generation, partition] = until

    def recreated(self) -> None:
        """Record that the topic was recreated."""
        self.generation += 1
        self.accepted = False
        self.recreations.add(self.rounds.number)

    def lost_unseen(self, at: datetime) -> bool:
        """Whether messages published by a transaction at this time may have been lost with the topic."""
        return any(self.rounds.holds(number, at) for number in self.recreations)

    def _acknowledge(self, generation: int, payload: bytes, error: KafkaError | None, _: Message) -> None:
        assert error is None, f"the broker did not take a message: {error}"
        self.acknowledged[generation, payload] += 1

    def archive(self) -> None:
        """Record the topic's current messages."""
        for (partition, offset), message in messages(self.tenant.topic):
            of = dict(message.headers() or ()).get(ORIGIN_HEADER)
            origin = None
            if of is not None:
                number, at = (of.decode() if isinstance(of, bytes) else str(of)).split("/")
                origin = int(number), int(at)
            place = Place(self.generation, partition, offset)
            self.arrived[place] = Arrived(message.value() or b"", origin)
            self.ends[self.generation, partition] = offset + 1

    def record_round(self) -> None:
        """Record the datasets, and the bases of the topic's offsets, at the end of a round."""
        count = kafka.partition_counts()[self.tenant.topic] if self.accepted else 0
        with postgres.tenant_transaction("pulse_pipeline", self.tenant.tenant_id) as connection:
            for partition, base in connection.execute(BASES, [self.tenant.tenant_id]):
                if partition < count:
                    self.bases[self.generation, partition] = base
        self.rounds.end()

    def positions(self) -> dict[Position, Event]:
        """Every message that Pulse must account for, by its position in Pulse's counting."""
        arrivals = {position: arrived for position, arrived in self._placed() if position}
        return {position: self._event(arrived, arrivals) for position, arrived in arrivals.items()}

    def unseen(self) -> set[Position]:
        """Positions of messages published and ingested just before a recreation, if any."""
        positions = set()
        for (generation, partition), base in self.bases.items():
            first = base + self.ends.get((generation, partition), 0)
            positions |= {(partition, at) for at in range(first, self._following(generation, partition) or 0)}
        return positions

    def removed(self) -> set[Position]:
        """Positions that retention may have removed before they were ingested."""
        return {
            (partition, self.bases[generation, partition] + offset)
            for (generation, partition), until in self.cuts.items()
            for offset in range(until)
        }

    def lost_replays(self) -> set[tuple[str, str | None]]:
        """Dataset and event id of replays that were lost with their topic, or by retention."""
        arrivals = {position: arrived for position, arrived in self._placed() if position}
        removed = self.removed()
        lost = (a for at, a in self._placed() if a.replay_of and (at is None or at in removed))
        events = (self._event(arrived, arrivals) for arrived in lost)
        return {(event.slug, event.event_id) for event in events}

    def _placed(self) -> Iterator[tuple[Position | None, Arrived]]:
        """Messages with their positions; None: the next topic starts at their position."""
        for (generation, partition, offset), arrived in sorted(self.arrived.items()):
            following = self._following(generation, partition)
            if (base := self.bases.get((generation, partition))) is not None:
                lost = following is not None and base + offset >= following
                yield (None if lost else (partition, base + offset)), arrived

    def _following(self, generation: int, partition: int) -> int | None:
        """Start of the next generation's topic in a partition, if there is one."""
        later = [base for (g, p), base in self.bases.items() if g > generation and p == partition]
        return min(later, default=None)

    def _event(self, arrived: Arrived, arrivals: dict[Position, Arrived]) -> Event:
        if (event := self.events.get(arrived.payload)) is not None:
            return event
        # A replay that names a schema version is otherwise the same event.
        document = json.loads(arrived.payload)
        version = document.pop("schema_version")
        assert arrived.replay_of is not None, f"a message without a sender: {arrived.payload[:200]!r}"
        origin = self._event(arrivals[arrived.replay_of], arrivals)
        return replace(origin, payload=arrived.payload, named=version)

    def unlocated(self) -> list[bytes]:
        """Acknowledged messages that were never seen in the topic."""
        copies = Counter((place.generation, arrived.payload) for place, arrived in self.arrived.items())
        return [payload for (g, payload), times in self.acknowledged.items() if copies[g, payload] < times]
