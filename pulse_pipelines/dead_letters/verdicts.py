"""Verdicts: the outcome of a replay or a discard, letter by letter and in total."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

SHOWN = 1_000
"""Maximum number of verdicts in a result; its counts are always exact."""


class DeadLetterOutcome(StrEnum):
    WOULD_LAND = "would_land"
    """Only in a dry run: the event can land in the datasets as they are now."""
    PUBLISHED = "published"
    """The event is on the tenant's topic again, and lands with the next batch."""
    DUPLICATE = "duplicate"
    """An event with its id has landed, or was published by this replay: closed without publishing."""
    REJECTED = "rejected"
    """The event still cannot land: the letter stays open."""
    DISCARDED = "discarded"
    ALREADY_REPLAYED = "already_replayed"
    ALREADY_DISCARDED = "already_discarded"
    ALREADY_LANDED = "already_landed"
    """A backfill landed the event."""
    ALREADY_ERASED = "already_erased"
    NOT_FOUND = "not_found"


@dataclass(frozen=True)
class Verdict:
    letter_id: str
    outcome: DeadLetterOutcome
    dataset: str | None = None
    event_id: str | None = None
    reason: str | None = None
    """If rejected: the current reason."""
    pointer: str | None = None
    detail: str | None = None


UNRESOLVED = frozenset(
    {outcome for outcome in DeadLetterOutcome if outcome.startswith("already_")}
    | {DeadLetterOutcome.REJECTED, DeadLetterOutcome.NOT_FOUND}
)


@dataclass(frozen=True)
class Result:
    """Counts by outcome over all letters, and the verdicts of the first `SHOWN`."""

    dry_run: bool
    counts: Mapping[DeadLetterOutcome, int]
    verdicts: tuple[Verdict, ...]
    next: str | None
    """Cursor to continue with when a limit was reached."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def complete(self) -> bool:
        """Whether every letter was, or would be, replayed or discarded as requested."""
        return not self.unresolved

    @property
    def unresolved(self) -> int:
        """Number of letters that were not, or would not be, replayed or discarded as requested."""
        return sum(self.counts.get(outcome, 0) for outcome in UNRESOLVED)


Progress = Callable[[int], None]
"""Function called with the number of letters done so far."""


@dataclass
class Tally:
    """Accumulates a result page by page."""

    progress: Progress | None = None
    counts: Counter[DeadLetterOutcome] = field(default_factory=Counter)
    verdicts: list[Verdict] = field(default_factory=list)

    def add(self, verdicts: Iterable[Verdict]) -> None:
        for verdict in verdicts:
            self.counts[verdict.outcome] += 1
            if len(self.verdicts) < SHOWN:
                self.verdicts.append(verdict)
        if self.progress is not None:
            self.progress(self.counts.total())

    def result(self, following: str | None, *, dry_run: bool = False) -> Result:
        return Result(dry_run, dict(self.counts), tuple(self.verdicts), following)
