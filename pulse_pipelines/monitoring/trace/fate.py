"""Fate of an event: its current state and location."""

from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum

from pulse_pipelines.dead_letters import DeadLetter


class FateState(StrEnum):
    """State of an event, by precedence: of several events with one id, the first state is the id's."""

    LANDED = "landed"
    IN_BATCH = "in_batch"
    """In a batch that is not settled."""
    WAITING = "waiting"
    """In the topic, in no batch yet."""
    ERASED = "erased"
    DEAD_LETTERED = "dead_lettered"
    """An open dead letter: it could not land."""
    REPLAYED = "replayed"
    """A dead letter that was published again, as another event with the same id."""
    DISCARDED = "discarded"
    """A dead letter that was discarded."""
    DUPLICATE = "duplicate"
    """A duplicate: another event with its id has the row."""
    NO_MESSAGE = "no_message"
    """No event at this offset, but, for example, a transaction marker."""
    LOST = "lost"
    """Gone from the topic; an operator accepted the loss."""


OF_LETTER = {
    None: FateState.DEAD_LETTERED,
    "replayed": FateState.REPLAYED,
    "discarded": FateState.DISCARDED,
    "landed": FateState.LANDED,
    "erased": FateState.ERASED,
}
"""State of an event by the resolution of its dead letter."""
PENDING_STATES = frozenset({FateState.WAITING, FateState.IN_BATCH})


@dataclass(frozen=True)
class Rebuild:
    """A backfill that replaced the day of a row after it had landed."""

    backfill_id: str
    settled_at: datetime


@dataclass(frozen=True)
class Row:
    """Location of an event's row."""

    day: date
    timestamp: datetime
    schema_version: int
    file: str
    """Data file that holds it now: compaction and backfills rewrite files."""
    snapshot_id: int | None
    """Snapshot it landed with; None: the record of that commit is gone."""
    landed_at: datetime | None
    rebuilds: tuple[Rebuild, ...]
    trace_id: str | None
    """Trace id given by the sender."""


@dataclass(frozen=True)
class Fate:
    """Fate of one event; unknown fields are None."""

    state: FateState
    detail: str
    """The state as a sentence for people."""
    dataset: str | None = None
    event_id: str | None = None
    partition: int | None = None
    offset: int | None = None
    received_at: datetime | None = None
    """When the broker appended it."""
    batch_id: str | None = None
    settled_at: datetime | None = None
    row: Row | None = None
    """Location of its row; for a duplicate, of the other event's row."""
    copy_of: str | None = None
    """For a duplicate: `<partition>-<offset>` of the event that landed."""
    dead_letter: DeadLetter | None = None
    erasure_id: str | None = None

    @property
    def place(self) -> tuple[int, int] | None:
        """Partition and offset."""
        return None if self.partition is None or self.offset is None else (self.partition, self.offset)


@dataclass(frozen=True)
class Trace:
    """All fates found for an event id or a position."""

    fates: tuple[Fate, ...]
    """At least one; the first one decides the state of the id."""
    looked_at: tuple[str, ...] = field(default=())
    """Sources that were read, and what was left out."""

    @property
    def state(self) -> FateState:
        return self.fates[0].state

    @property
    def settled(self) -> bool:
        """Whether no event is still on its way."""
        return all(fate.state not in PENDING_STATES for fate in self.fates)


def ordered(fates: list[Fate]) -> tuple[Fate, ...]:
    """Sort fates by state, then latest first."""
    states = list(FateState)
    latest = sorted(fates, key=lambda fate: fate.place or (-1, -1), reverse=True)
    return tuple(sorted(latest, key=lambda fate: states.index(fate.state)))


def of_letter(letter: DeadLetter) -> Fate:
    """Fate of an event that became a dead letter."""
    state = OF_LETTER[letter.resolution]
    why = f"{letter.reason}{f' at {letter.pointer}' if letter.pointer else ''}: {letter.detail}"
    became = {
        FateState.DEAD_LETTERED: "it is a dead letter",
        FateState.REPLAYED: "it was a dead letter and was replayed",
        FateState.DISCARDED: "it was a dead letter and was discarded",
        FateState.ERASED: "it was a dead letter, and was erased",
    }[state]
    return Fate(
        state=state,
        detail=f"{became} ({why})",
        dataset=letter.dataset,
        event_id=letter.event_id,
        partition=letter.partition,
        offset=letter.offset,
        received_at=letter.received_at,
        batch_id=letter.batch_id,
        settled_at=letter.settled_at,
        dead_letter=letter,
    )
