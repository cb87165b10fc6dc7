"""The fate of an event: what it is by now, and where it is."""

from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum

from pulse_pipelines.dead_letters import DeadLetter


class State(StrEnum):
    """Of several events with one id the first state here is that of the id."""

    LANDED = "landed"
    IN_BATCH = "in_batch"
    """A batch has it, and is not settled."""
    WAITING = "waiting"
    """It is in the topic, and no batch has taken it."""
    ERASED = "erased"
    DEAD_LETTERED = "dead_lettered"
    """It could not land: an open dead letter."""
    REPLAYED = "replayed"
    """A dead letter that was published again: that is another event with the same id."""
    DISCARDED = "discarded"
    """A dead letter that nobody wanted to land."""
    DUPLICATE = "duplicate"
    """A copy: another event with its id has the row."""
    NO_MESSAGE = "no_message"
    """There is no event at this place: a marker of a transaction, say."""
    LOST = "lost"
    """The topic no longer held it, and an operator accepted the loss."""


ON_ITS_WAY = frozenset({State.WAITING, State.IN_BATCH})


@dataclass(frozen=True)
class Rebuild:
    """A backfill that replaced the day of a row after it had landed."""

    backfill_id: str
    settled_at: datetime


@dataclass(frozen=True)
class Row:
    """Where the row of an event is."""

    day: date
    timestamp: datetime
    schema_version: int
    file: str
    """The data file that has it by now: compaction and backfills write others."""
    snapshot_id: int | None
    """That it landed with; None: of that commit nothing is known any more."""
    landed_at: datetime | None
    rebuilds: tuple[Rebuild, ...]
    trace_id: str | None
    """What its sender said that it belongs to."""


@dataclass(frozen=True)
class Fate:
    """What became of one event; what is not known is None."""

    state: State
    detail: str
    """The same for a person, as a sentence."""
    dataset: str | None = None
    event_id: str | None = None
    partition: int | None = None
    offset: int | None = None
    received_at: datetime | None = None
    """When the broker appended it."""
    batch_id: str | None = None
    settled_at: datetime | None = None
    row: Row | None = None
    """Where it landed; of a duplicate, where the other event did."""
    copy_of: str | None = None
    """Of a duplicate: `<partition>-<offset>` of the event that landed."""
    dead_letter: DeadLetter | None = None
    erasure_id: str | None = None

    @property
    def place(self) -> tuple[int, int] | None:
        """Its partition and offset."""
        return None if self.partition is None or self.offset is None else (self.partition, self.offset)


@dataclass(frozen=True)
class Trace:
    """Everything that was found of an event id or of a place."""

    fates: tuple[Fate, ...]
    """At least one; that which says what the id is by now comes first."""
    looked_at: tuple[str, ...] = field(default=())
    """What was read to find them, and what was left out."""

    @property
    def state(self) -> State:
        return self.fates[0].state

    @property
    def settled(self) -> bool:
        """Whether none of it is on its way."""
        return all(fate.state not in ON_ITS_WAY for fate in self.fates)


def ordered(fates: list[Fate]) -> tuple[Fate, ...]:
    """Fates by their states, then the latest first."""
    states = list(State)
    latest = sorted(fates, key=lambda fate: fate.place or (-1, -1), reverse=True)
    return tuple(sorted(latest, key=lambda fate: states.index(fate.state)))
