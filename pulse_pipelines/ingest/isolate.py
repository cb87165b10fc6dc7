"""Isolate: events that end the process that works on them are found by halving, and set aside.

Such an event (a crash of native code, memory without end) would stop its tenant for ever: each attempt dies
of it. So a failed job's ranges are drained again in halves, and these in halves, until those at fault are
alone. They become dead letters, with nothing but their bytes looked at; the others land.
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
from pulse_pipelines.ingest.results import Failure, TopicDrained
from pulse_pipelines.tables.raw_zone import Message
from pulse_pipelines.validation.validator import refusal
from pulse_resources.errors import PulseError
from pulse_resources.settings import load_settings

OUTAGES = (PulseError, OSError, psycopg.OperationalError, psycopg.InterfaceError, KafkaException)
"""Errors that are no event's."""
DIED = "the process that worked on it died, or took more memory than it has"
TOO_MANY = (
    "it is among events so many of which end the process that works on them that there was no time to find "
    "each: replay it, maybe it is none of them"
)
PATIENCE = 1 / 3
"""Of what an attempt may take: the search ends then."""

Outcomes = list[TopicDrained | Failure]
Drain = Callable[[Sequence[OffsetRange], str | None], Outcomes]
"""Drains ranges of one tenant, one of each partition, in a job of their own; or sets all of it aside: why."""


def patience() -> float:
    """Seconds that an attempt looks for events at fault."""
    return load_settings().ingest.attempt_seconds * PATIENCE


def needed(outcomes: Iterable[TopicDrained | Failure]) -> bool:
    """Whether a job failed by one of its events, as far as it can be told."""
    return any(isinstance(outcome, Failure) and outcome.by_event for outcome in outcomes)


def isolate(
    ranges: Sequence[OffsetRange], drain: Drain, sound: Callable[[], bool], seconds: float
) -> Outcomes:
    """Drain one tenant's ranges, a job of which failed, without the events at fault.

    Args:
        sound: asked where not one event passed: whether an event that has nothing to do with the tenant does.
            If not, none of its events is at fault, and none is set aside.
        seconds: after which what is left is set aside as a whole.
    """
    until = time.monotonic() + seconds
    drained: Outcomes = []
    aside: list[tuple[str, Sequence[OffsetRange]]] = []
    left: list[Sequence[OffsetRange]] = [*spread(ranges, 2)]
    while left:
        part = left.pop()
        if time.monotonic() > until:
            aside.append((TOO_MANY, part))
            continue
        outcomes = drain(part, None)
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        if not failures:
            drained.extend(outcomes)
        elif not needed(outcomes):
            return list(failures)
        elif _count(part) == 1:
            aside.append((failures[0].error, part))
        else:
            left.extend(spread(part, 2))
    if not drained and not sound():
        why = f"no event can be processed, whoever's it is: {aside[0][0]}"
        return [Failure(ranges[0].tenant_id, "isolate", why)]
    for why, part in aside:
        outcomes = drain(part, why)
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        if failures:
            return list(failures)
        drained.extend(outcomes)
    return drained


def _count(ranges: Iterable[OffsetRange]) -> int:
    return sum(r.length for r in ranges)


def set_aside(why: str, messages: Sequence[Message]) -> Conformed:
    """Messages as dead letters. What conforms events is not asked: it may be what dies of them."""
    rejected = Rejected(Reason.PROCESSING_FAILED, why)
    named = (refusal(_decoded(message.payload), rejected) for message in messages)
    letters = [
        DeadLetter(message, each.dataset, each.event_id, rejected)
        for message, each in zip(messages, named, strict=True)
    ]
    return Conformed(dead_letters=letters)


def _decoded(payload: bytes) -> object:
    """An event as plain Python reads it, for its names; None where they cannot be stored."""
    try:
        event = json.loads(payload)
        json.dumps(event, ensure_ascii=False).encode()  # lone surrogates
    except (ValueError, RecursionError):
        return None
    return event
