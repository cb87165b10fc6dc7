"""Events that a buffer lost, by reason, until they are reported; and a buffer's counts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pulse_client.results import Verdict

MAX_VERDICTS = 500
"""Verdicts of one report; further ones are only counted."""
FULL = "full"
CLOSED = "closed"
REFUSED = "refused"
REJECTED = "rejected"
UNSENT = "unsent"


@dataclass(frozen=True)
class Loss:
    """Events that will not reach Pulse.

    `reason` is one of: `full` and `closed` (not queued), `refused` (by Pulse, or not JSON: see `verdicts`),
    `rejected` (their request as a whole, such as for its key or quota), `unsent` (waiting when the buffer
    gave up).
    """

    events: int
    reason: str
    detail: str
    """About the first of them."""
    verdicts: tuple[Verdict, ...] = ()
    """Their `index` counts within one request."""


@dataclass(frozen=True)
class Stats:
    """Counts of events since the buffer was made, in this process; each event is in one of the first five."""

    waiting: int
    """In memory, those of a running request included."""
    accepted: int
    dead_lettered: int
    refused: int
    dropped: int
    """Lost for any other reason than `refused`."""
    waiting_bytes: int


class Losses:
    """Counts of losses, and those that are not yet reported: one for each reason, so that they stay small."""

    def __init__(self) -> None:
        self.refused = 0
        self.dropped = 0
        self._unreported: dict[str, Loss] = {}

    def __bool__(self) -> bool:
        """Whether there is something to report."""
        return bool(self._unreported)

    def add(self, loss: Loss) -> None:
        """Count a loss, and report it with the next ones."""
        if not loss.events:
            return
        if loss.reason == REFUSED:
            self.refused += loss.events
        else:
            self.dropped += loss.events
        previous = self._unreported.get(loss.reason)
        if previous is not None:
            verdicts = (*previous.verdicts, *loss.verdicts)[:MAX_VERDICTS]
            loss = replace(previous, events=previous.events + loss.events, verdicts=verdicts)
        self._unreported[loss.reason] = loss

    def take(self) -> list[Loss]:
        """What is to be reported, once."""
        losses, self._unreported = list(self._unreported.values()), {}
        return losses


def refusals(verdicts: tuple[Verdict, ...]) -> Loss:
    """The refused ones of these events."""
    refused = tuple(verdict for verdict in verdicts if verdict.status == REFUSED)
    return Loss(len(refused), REFUSED, refused[0].detail if refused else "", refused[:MAX_VERDICTS])
