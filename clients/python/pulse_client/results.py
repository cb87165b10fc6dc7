"""Results of sending: counts, and a verdict for each event that was not simply accepted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Verdict:
    """The reason why one event was refused, or accepted as a dead letter."""

    index: int
    """Position of the event in the caller's own events, from 0, over all requests of a call."""
    event_id: str | None
    status: str
    """`refused`: not accepted; correct the event. `dead_lettered`: its dataset keeps it, with the reason."""
    reason: str
    """A reason of docs/reasons.md, such as `schema_violation`."""
    pointer: str | None
    """JSON pointer (RFC 6901) into the event, if there is one."""
    detail: str


@dataclass(frozen=True)
class Ignored:
    """A member of accepted events that Pulse does not know: only the raw zone keeps it."""

    member: str
    events: int
    """How many events have it."""
    detail: str
    fix: str


@dataclass(frozen=True)
class SendResult:
    """What became of the events of a call, or of one batch.

    Every event is counted once: accepted + dead_lettered + refused is the number of events.
    """

    accepted: int = 0
    """Events that the broker has stored and that will land."""
    dead_lettered: int = 0
    refused: int = 0
    verdicts: tuple[Verdict, ...] = ()
    """One for each dead-lettered or refused event, in order of `index`."""
    ignored: tuple[Ignored, ...] = ()

    @property
    def events(self) -> int:
        return self.accepted + self.dead_lettered + self.refused

    @classmethod
    def total(cls, results: Iterable[SendResult]) -> SendResult:
        """The results of several batches of one call as one."""
        accepted = dead_lettered = refused = 0
        verdicts: list[Verdict] = []
        ignored: dict[str, Ignored] = {}
        for result in results:
            accepted += result.accepted
            dead_lettered += result.dead_lettered
            refused += result.refused
            verdicts += result.verdicts
            for entry in result.ignored:
                previous = ignored.get(entry.member)
                count = entry.events + (previous.events if previous else 0)
                ignored[entry.member] = replace(entry, events=count)
        return cls(accepted, dead_lettered, refused, tuple(verdicts), tuple(ignored.values()))
