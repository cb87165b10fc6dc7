"""What the harness knows of a tenant: its messages and where they are, which schema versions held when."""

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
from pulse_pipelines.dead_letters.replay import ORIGIN_HEADER
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import kafka, postgres

BASES = "SELECT partition, base_offset FROM ingest_positions WHERE tenant_id = %s"
PROGRESS = "SELECT partition, settled_offset, planned_offset FROM ingest_positions WHERE tenant_id = %s"
NOW = "SELECT clock_timestamp()"


class Arrived(NamedTuple):
    """A message that was seen in a topic."""

    payload: bytes
    replay_of: Position | None
    """Of a dead letter, in Pulse's counting, that was published again."""


class Place(NamedTuple):
    """Of a message, in the broker's counting; a recreated topic is the next generation."""

    generation: int
    partition: int
    offset: int


class Receipt(NamedTuple):
    """An erasure that was completed."""

    slug: str
    person: str
    covers: Mapping[int, int]
    """By partition, the offset up to which its events are gone."""
    dataset_id: UUID


class Progress(NamedTuple):
    """How far Pulse is at some moment, by partition."""

    at: datetime
    settled: Mapping[int, int]
    planned: Mapping[int, int]


@dataclass
class World:
    """One tenant."""

    tenant: Tenant
    rounds: Rounds
    hostile: bool = False
    """It sends what no one should."""
    generation: int = 0
    accepted: bool = True
    """Whether an operator said to go on with the topic as it is."""
    bases: dict[tuple[int, int], int] = field(default_factory=dict)
    """By generation and partition, what Pulse adds to the broker's offsets."""
    arrived: dict[Place, Arrived] = field(default_factory=dict)
    ends: dict[tuple[int, int], int] = field(default_factory=dict)
    """By generation and partition, the offset behind the last message that was seen."""
    events: dict[bytes, Event] = field(default_factory=dict)
    """What was sent, by its bytes: equal ones are the same event."""
    answers: Counter[int] = field(default_factory=Counter)
    """Of the door, by status."""
    acknowledged: Counter[tuple[int, bytes]] = field(default_factory=Counter)
    """By generation and bytes, how many times the broker took it."""
    recreations: set[int] = field(default_factory=set)
    """Numbers of the rounds in which the topic was recreated."""
    cuts: dict[tuple[int, int], int] = field(default_factory=dict)
    """By generation and partition, the offset before which messages were removed."""
    asked: set[tuple[str, str]] = field(default_factory=set)
    """Slugs and persons that somebody began to erase."""
    unfinished: set[tuple[str, str]] = field(default_factory=set)
    """Those of them of which nobody was told that it is done."""
    receipts: list[Receipt] = field(default_factory=list)
    quotas: list[int] = field(default_factory=list)
    """Records per month that were ever allowed; none: all that is sent."""
    forgets: list[Progress] = field(default_factory=list)
    """How far Pulse was whenever claims became old enough to be forgotten."""
    retained: bool = False
    """Raw objects may have been removed."""
    key: str = field(default="", repr=False)
    """Of the HTTP API."""

    def send(self, events: Iterable[Event], producer: Producer) -> None:
        """Publish events, in turns to each partition of the topic, and wait for the broker's word."""
        count = kafka.partition_counts()[self.tenant.topic]
        for number, event in enumerate(events):
            self.events[event.payload] = event
            producer.produce(
                self.tenant.topic,
                event.payload,
                partition=number % count,
                on_delivery=partial(self._taken, self.generation, event.payload),
            )
        left = kafka.flush(producer, FLUSH_S)
        assert not left, f"{left} messages have neither been acknowledged nor refused"

    def collect(self, found: Sequence[Event], door: str, patience_s: float) -> None:
        """Send events through the door, once; what it does not acknowledge may be in the topic, or not."""
        self.events |= {event.payload: event for event in found}
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/x-ndjson"}
        body = b"\n".join(event.payload for event in found)
        answer = httpx.post(f"{door}/v1/collect", content=body, headers=headers, timeout=patience_s)
        self.answers[answer.status_code] += 1
        if answer.status_code in (httpx.codes.ACCEPTED, httpx.codes.MULTI_STATUS):
            refused = {verdict["index"] for verdict in answer.json()["verdicts"]}
            taken = (event.payload for index, event in enumerate(found) if index not in refused)
            self.acknowledged.update((self.generation, payload) for payload in taken)

    def progress(self) -> Progress:
        """How far Pulse is."""
        with postgres.tenant_transaction("pulse_pipeline", self.tenant.tenant_id) as connection:
            ((now,),) = connection.execute(NOW).fetchall()
            found = connection.execute(PROGRESS, [self.tenant.tenant_id]).fetchall()
        return Progress(now, {p: at for p, at, _ in found}, {p: at for p, _, at in found})

    def cut(self, partition: int, until: int) -> None:
        """Messages before an offset were removed."""
        self.cuts[self.generation, partition] = until

    def recreated(self) -> None:
        """The topic is another one from now on."""
        self.generation += 1
        self.accepted = False
        self.recreations.add(self.rounds.number)

    def lost_unseen(self, at: datetime) -> bool:
        """Whether what was published in a transaction of this time may have been lost with its topic."""
        return any(self.rounds.holds(number, at) for number in self.recreations)

    def _taken(self, generation: int, payload: bytes, error: KafkaError | None, _: Message) -> None:
        assert error is None, f"the broker did not take a message: {error}"
        self.acknowledged[generation, payload] += 1

    def archive(self) -> None:
        """Remember what the topic holds now."""
        for (partition, offset), message in messages(self.tenant.topic):
            of = dict(message.headers() or ()).get(ORIGIN_HEADER)
            origin = None
            if of is not None:
                number, at = (of.decode() if isinstance(of, bytes) else str(of)).split("/")
                origin = int(number), int(at)
            place = Place(self.generation, partition, offset)
            self.arrived[place] = Arrived(message.value() or b"", origin)
            self.ends[self.generation, partition] = offset + 1

    def look(self) -> None:
        """A round has ended: remember the datasets, and the bases of the topic's offsets."""
        count = kafka.partition_counts()[self.tenant.topic] if self.accepted else 0
        with postgres.tenant_transaction("pulse_pipeline", self.tenant.tenant_id) as connection:
            for partition, base in connection.execute(BASES, [self.tenant.tenant_id]):
                if partition < count:
                    self.bases[self.generation, partition] = base
        self.rounds.end()

    def positions(self) -> dict[Position, Event]:
        """Every message that Pulse has to account for, by its position in Pulse's counting."""
        found = {position: arrived for position, arrived in self._placed() if position}
        return {position: self._event(arrived, found) for position, arrived in found.items()}

    def unseen(self) -> set[Position]:
        """Positions of what was published and ingested just before its topic was recreated, if anything."""
        found = set()
        for (generation, partition), base in self.bases.items():
            first = base + self.ends.get((generation, partition), 0)
            found |= {(partition, at) for at in range(first, self._following(generation, partition) or 0)}
        return found

    def removed(self) -> set[Position]:
        """Positions that retention may have removed before they were ingested."""
        return {
            (partition, self.bases[generation, partition] + offset)
            for (generation, partition), until in self.cuts.items()
            for offset in range(until)
        }

    def lost_replays(self) -> set[tuple[str, str | None]]:
        """Dataset and event id of replays that were lost with their topic, or by retention."""
        found = {position: arrived for position, arrived in self._placed() if position}
        removed = self.removed()
        lost = (a for at, a in self._placed() if a.replay_of and (at is None or at in removed))
        events = (self._event(arrived, found) for arrived in lost)
        return {(event.slug, event.event_id) for event in events}

    def _placed(self) -> Iterator[tuple[Position | None, Arrived]]:
        """Messages with their positions; None: where they were, the next topic begins."""
        for (generation, partition, offset), arrived in sorted(self.arrived.items()):
            following = self._following(generation, partition)
            if (base := self.bases.get((generation, partition))) is not None:
                gone = following is not None and base + offset >= following
                yield (None if gone else (partition, base + offset)), arrived

    def _following(self, generation: int, partition: int) -> int | None:
        """Where the topic after one of a generation begins, if there is one."""
        later = [base for (g, p), base in self.bases.items() if g > generation and p == partition]
        return min(later, default=None)

    def _event(self, arrived: Arrived, found: dict[Position, Arrived]) -> Event:
        if (known := self.events.get(arrived.payload)) is not None:
            return known
        # A replay that names a schema version: else it is the same event.
        document = json.loads(arrived.payload)
        version = document.pop("schema_version")
        assert arrived.replay_of is not None, f"nobody sent this: {arrived.payload[:200]!r}"
        origin = self._event(found[arrived.replay_of], found)
        return replace(origin, payload=arrived.payload, named=version)

    def unlocated(self) -> list[bytes]:
        """What the broker acknowledged and no look at its topic has found."""
        there = Counter((place.generation, arrived.payload) for place, arrived in self.arrived.items())
        return [payload for (g, payload), times in self.acknowledged.items() if there[g, payload] < times]
