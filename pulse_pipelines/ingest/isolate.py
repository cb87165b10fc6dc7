"""Isolation of poison events: those that crash the process that handles them are found by halving ranges.

Such an event (a crash of native code, unbounded memory) would stop its tenant permanently, since every
attempt dies of it. So a failed job's ranges are drained again in halves, and these in halves, until each
event at fault is alone. It becomes a dead letter without being decoded; all other events land.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence

import psycopg
from confluent_kafka import KafkaException

from pulse_pipelines.domain.batch import OffsetRange, spread
from pulse_pipelines.domain.event import Rejected
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.ingest.conform import Conformed, DeadLetter
from pulse_pipelines.ingest.stages import Failure, TopicDrained
from pulse_pipelines.tables.raw_zone import Message
from pulse_pipelines.validation.validator import refusal
from pulse_resources.errors import PulseError
from pulse_resources.settings import load_settings

OUTAGES = (PulseError, OSError, psycopg.OperationalError, psycopg.InterfaceError, KafkaException)
"""Errors that no event causes."""
DIED = "the process that worked on it died, or took more memory than it has"
TOO_MANY = (
    "it is among events so many of which end the process that works on them that there was no time to find "
    "each: replay it, maybe it is none of them"
)
UNREADABLE = (
    "the batch of messages that holds it cannot be unpacked, or takes more memory than there is: its bytes "
    "are only in the topic, at its partition and offset, for as long as the topic keeps them"
)
PATIENCE = 1 / 3
"""Share of `ingest.attempt_seconds` after which the search ends."""

Outcomes = list[TopicDrained | Failure]
Drain = Callable[[Sequence[OffsetRange], str | None], Outcomes]
"""Drains ranges of one tenant in a job of their own; with a text, makes all events dead letters for this
reason."""


def patience() -> float:
    """The seconds that an attempt may search for events at fault."""
    return load_settings().ingest.attempt_seconds * PATIENCE


def needed(outcomes: Iterable[TopicDrained | Failure]) -> bool:
    """Whether a job failed in a way that one of its events may have caused."""
    return any(isinstance(outcome, Failure) and outcome.by_event for outcome in outcomes)


def isolate(
    ranges: Sequence[OffsetRange], drain: Drain, sound: Callable[[], bool], seconds: float
) -> Outcomes:
    """Drain one tenant's ranges, whose job failed, with the events at fault as dead letters.

    Args:
        sound: called if no event passed: whether an event of Pulse's own does (see `ingest.probe`). If not,
            the installation is at fault, and no event becomes a dead letter.
        seconds: after which all remaining events become dead letters.
    """
    until = time.monotonic() + seconds
    drained: Outcomes = []
    at_fault: list[tuple[str, Sequence[OffsetRange]]] = []
    pending: list[Sequence[OffsetRange]] = [*spread(ranges, 2)]
    while pending:
        part = pending.pop()
        if time.monotonic() > until:
            at_fault.append((TOO_MANY, part))
            continue
        outcomes = drain(part, None)
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        if not failures:
            drained.extend(outcomes)
        elif not needed(outcomes):
            return list(failures)
        elif _count(part) == 1:
            at_fault.append((failures[0].error, part))
        else:
            pending.extend(spread(part, 2))
    if not drained and not sound():
        why = f"no event can be processed, whoever's it is: {at_fault[0][0]}"
        return [Failure(ranges[0].tenant_id, "isolate", why)]
    for why, part in at_fault:
        outcomes = drain(part, why)
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        if failures:
            return list(failures)
        drained.extend(outcomes)
    return drained


def _count(ranges: Iterable[OffsetRange]) -> int:
    return sum(r.length for r in ranges)


def dead_letters(why: str, messages: Sequence[Message]) -> Conformed:
    """Messages as dead letters, without conforming them: that may be what crashes."""
    rejected = Rejected(Reason.PROCESSING_FAILED, why)
    named = (refusal(_decoded(message.payload), rejected) for message in messages)
    letters = [
        DeadLetter(message, event.dataset, event.event_id, rejected)
        for message, event in zip(messages, named, strict=True)
    ]
    return Conformed(dead_letters=letters)


def _decoded(payload: bytes) -> object:
    """An event decoded by the standard library, for its dataset and id; None if these cannot be stored."""
    try:
        event = json.loads(payload)
        json.dumps(event, ensure_ascii=False).encode()  # lone surrogates
    except (ValueError, RecursionError):
        return None
    return event
