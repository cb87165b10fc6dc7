"""Verdicts on the events of a request: published to land, published to be dead-lettered, or refused."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from itertools import islice
from operator import itemgetter
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

import orjson

from pulse_api.http.collect.publisher import Outgoing
from pulse_api.http.collect.split import Item
from pulse_pipelines.domain.dataset import OnInvalid
from pulse_pipelines.domain.entities import DELETION
from pulse_pipelines.domain.event import ENVELOPE, Rejected, heading, parse_timestamp
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.validation.validator import Event, Refusal, Validator, refusal
from pulse_resources.errors import meant
from pulse_resources.settings import load_settings

BREATH_SECONDS = 0.002
_OF_ENTITIES = ENVELOPE | {DELETION}
_VALIDATED = Item(b"")
"""Placeholder for an event whose verdict is known; the event itself is not passed on."""


@dataclass
class Verdicts:
    """Verdicts of one request. `outgoing` holds the events to publish, in the order of the request."""

    outgoing: list[Outgoing] = field(default_factory=list)
    dead_lettered: int = 0
    refused: int = 0
    notable: list[dict[str, Any]] = field(default_factory=list)
    """One entry per event that was not simply accepted."""
    ignored: list[dict[str, Any]] = field(default_factory=list)
    """One entry per member of accepted events that no column has."""

    @property
    def accepted(self) -> int:
        return len(self.outgoing) - self.dead_lettered

    @property
    def unknown_datasets(self) -> bool:
        """Whether an event was refused for a dataset that the tenant was not known to have."""
        return any(entry["reason"] == Reason.UNKNOWN_DATASET for entry in self.notable)

    def document(self) -> bytes:
        """The body of the response."""
        members: dict[str, Any] = {
            "accepted": self.accepted,
            "dead_lettered": self.dead_lettered,
            "refused": self.refused,
            "verdicts": self.notable,
        }
        return orjson.dumps(members | ({"ignored": self.ignored} if self.ignored else {}))


class Validation:
    """Validation of the events of one request, all at one reference time; nothing is published.

    For any events and schemas, `go_on` returns within its seconds plus twice the cost limit of inline
    validation. Events that may take longer are deferred to the end and validated in `aside`, one event of a
    tenant at a time. It may continue in another process, with the validator of that process.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = list(items)
        self._index = 0
        """Index of the next event to validate."""
        self._dear: list[tuple[int, Item]] = []
        """Deferred events, whose validation may take long."""
        self._outgoing: list[Outgoing | None] = [None] * len(items)
        self._notable: list[tuple[int, Refusal, bool]] = []
        """Events that are refused, or (True) taken as dead letters."""
        self._ignored = IgnoredMembers()
        self._now = datetime.now(UTC)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_items": [_VALIDATED] * self._index + self._items[self._index :]}

    @property
    def count(self) -> int:
        return len(self._items)

    @property
    def size(self) -> int:
        """Bytes of the events taken so far."""
        return sum(len(outgoing.payload) for outgoing in self._outgoing if outgoing is not None)

    @property
    def at_end(self) -> bool:
        """Whether only expensive events are left, which `validate_in_worker` validates."""
        return self._index == len(self._items)

    @property
    def done(self) -> bool:
        return self.at_end and not self._dear

    def go_on(self, validator: Validator, seconds: float = BREATH_SECONDS) -> None:
        """Validate inexpensive events to the end, or until the time is over."""
        now = self._now
        per_event, per_byte = validator.pace
        began, budget = time.perf_counter(), 1.0
        for item in islice(self._items, self._index, None):
            cost = per_event + per_byte * len(item.payload)
            budget -= cost
            if cost > 1:
                self._dear.append((self._index, item))
            else:
                if budget < 0:
                    # By the cost model these events may have taken long; mostly they have not.
                    if time.perf_counter() - began > seconds:
                        break
                    budget = 1 - cost
                self._sort(validator, self._index, item, _validate_item(validator, item, now))
            self._index += 1

    async def validate_in_worker(self, validator: Validator) -> None:
        """Validate the next expensive event in a validation worker, which does not block the event loop."""
        index, item = self._dear[0]
        work = partial(_validate_item, validator, item, self._now)
        async with _turns.setdefault(validator.scope.tenant.tenant_id, asyncio.Lock()):
            verdict = await asyncio.get_running_loop().run_in_executor(_threads(), work)
        self._sort(validator, index, item, verdict)
        del self._dear[0]

    def _sort(self, validator: Validator, index: int, item: Item, verdict: Event | Refusal) -> None:
        if isinstance(verdict, dict):
            accepted = validator.targets[verdict["dataset"]]
            members = _OF_ENTITIES if accepted.of_entities else ENVELOPE
            if not verdict.keys() <= members:
                self._ignored.note(verdict.keys() - members)
            # The dataset's own string: one shared object for all of its events.
            slug = accepted.dataset.slug
            self._outgoing[index] = Outgoing(slug, verdict["event_id"], item.payload)
            return
        target = validator.targets.get(verdict.dataset) if verdict.dataset else None
        foreign = verdict.rejected.reason in (Reason.WRONG_TENANT, Reason.OVERSIZE)
        dead_lettered = (
            target is not None and target.dataset.on_invalid == OnInvalid.DEAD_LETTER and not foreign
        )
        if target is not None and dead_lettered:
            text = None if item.texts is None else item.texts.of(index)
            if text is None or len(text) > validator.limits.max_bytes:
                text = item.payload
            self._outgoing[index] = Outgoing(target.dataset.slug, verdict.event_id, text)
        self._notable.append((index, verdict, dead_lettered))

    def verdicts(self) -> Verdicts:
        """Verdicts of all events; call it when `done`."""
        self._notable.sort(key=itemgetter(0))
        dead_lettered = sum(dead_lettered for _, _, dead_lettered in self._notable)
        return Verdicts(
            [outgoing for outgoing in self._outgoing if outgoing is not None],
            dead_lettered,
            len(self._notable) - dead_lettered,
            [_entry(*notable) for notable in self._notable],
            self._ignored.entries(),
        )


_turns: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()


@cache
def _threads() -> ThreadPoolExecutor:
    """Threads that wait for validation workers; a separate pool, so that no other work waits for them."""
    return ThreadPoolExecutor(load_settings().ingest.judge_workers, "judge")


def _validate_item(validator: Validator, item: Item, now: datetime) -> Event | Refusal:
    if item.rejected is not None:
        return refusal(item.event or heading(item.payload), item.rejected)
    if item.event is None:
        verdict = validator.payload(item.payload)
    elif (rejected := validator.undecodable(item.payload)) is not None:
        return refusal(item.event, rejected)
    else:
        verdict = validator.event(item.event, item.payload, plain=item.plain)
    if isinstance(verdict, dict):
        moment = parse_timestamp(verdict["timestamp"])
        if isinstance(moment, Rejected):
            return refusal(verdict, Rejected(moment.reason, moment.detail, "/timestamp"))
        target = validator.targets[verdict["dataset"]]
        rejected = validator.limits.untimely(moment, now) or target.misfit(verdict, item.payload)
        if rejected is not None:
            return refusal(verdict, rejected)
    return verdict


def _entry(index: int, verdict: Refusal, dead_lettered: bool) -> dict[str, Any]:
    return {
        "index": index,
        "event_id": verdict.event_id,
        "status": "dead_lettered" if dead_lettered else "refused",
        "reason": verdict.rejected.reason.value,
        "pointer": verdict.rejected.pointer,
        "detail": verdict.rejected.detail,
    }


MAX_MEMBERS = 20
"""Maximum different members that an answer names."""
MAX_NAME = 100
"""Characters of a name in an answer."""


class IgnoredMembers:
    """Counts the ignored members of one request's events."""

    def __init__(self) -> None:
        self._events: Counter[str] = Counter()

    def note(self, members: Iterable[str]) -> None:
        """Count one event's ignored members."""
        for member in members:
            name = member[:MAX_NAME]
            if name in self._events or len(self._events) < MAX_MEMBERS:
                self._events[name] += 1

    def entries(self) -> list[dict[str, Any]]:
        """An entry for each member, by name."""
        return [
            {
                "member": name,
                "events": count,
                "detail": f"{name} is not a member of an event: no column has it",
                "fix": meant(name, ENVELOPE, "Put what is to be stored into context or data"),
            }
            for name, count in sorted(self._events.items())
        ]
