"""Partitioning of due days into Spark statements, as spans of consecutive days."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import TypeVar

SPANS = 64
"""Maximum spans of a statement: with more, planning takes longer than reading the rows."""
DAYS, DAYS_OF_TEAM = 512, 64
"""Maximum days of a statement, whose result is held in memory. A team's rollup may have many rows per day,
and a subquery for each."""

Owner = TypeVar("Owner")
OwnedDays = tuple[Owner, tuple[date, ...]]
"""Days of a dataset, in order, each once."""


def spans(days: Iterable[date]) -> list[tuple[date, date]]:
    """Group days into spans of consecutive ones, each as its first and last day."""
    spans: list[tuple[date, date]] = []
    for day in sorted(set(days)):
        if spans and (day - spans[-1][1]).days == 1:
            spans[-1] = spans[-1][0], day
        else:
            spans.append((day, day))
    return spans


def pieces(days: Sequence[date], most: int) -> Iterator[tuple[date, ...]]:
    """Split sorted days into pieces that fit one statement: at most `most` days and `SPANS` spans."""
    piece: list[date] = []
    spanned = 0
    for day in days:
        begins = not piece or (day - piece[-1]).days != 1
        if len(piece) == most or spanned + begins > SPANS:
            yield tuple(piece)
            piece, spanned, begins = [], 0, True
        piece.append(day)
        spanned += begins
    if piece:
        yield tuple(piece)


def chunks(inputs: Sequence[OwnedDays[Owner]], most: int) -> Iterator[list[OwnedDays[Owner]]]:
    """Group pieces of several datasets into statements of at most `most` days and `SPANS` spans."""
    chunk: list[OwnedDays[Owner]] = []
    day_count = spanned = 0
    for owner, days in inputs:
        more = len(spans(days))
        if chunk and (day_count + len(days) > most or spanned + more > SPANS):
            yield chunk
            chunk, day_count, spanned = [], 0, 0
        chunk.append((owner, days))
        day_count, spanned = day_count + len(days), spanned + more
    if chunk:
        yield chunk


def halves(
    chunk: Sequence[OwnedDays[Owner]],
) -> tuple[Sequence[OwnedDays[Owner]], Sequence[OwnedDays[Owner]]]:
    """Halve a group of at least two days, to find the day at fault in few statements."""
    if len(chunk) > 1:
        middle = len(chunk) // 2
        return chunk[:middle], chunk[middle:]
    ((owner, days),) = chunk
    middle = len(days) // 2
    return [(owner, days[:middle])], [(owner, days[middle:])]
