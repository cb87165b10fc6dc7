"""What becomes of each event of a request: published to land, published to be dead-lettered, or refused."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from itertools import islice
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

import orjson

from pulse_api.http.collect.publisher import Outgoing
from pulse_api.http.collect.split import Item
from pulse_pipelines.domain.dataset import OnInvalid
from pulse_pipelines.domain.event import Rejected, parse_timestamp
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.validation.validator import Event, Refusal, Validator, refusal
from pulse_resources.settings import load_settings

BREATH_SECONDS = 0.002


@dataclass
class Verdicts:
    """Of one request. `outgoing` is what the broker gets, in the order of the request."""

    outgoing: list[Outgoing] = field(default_factory=list)
    dead_lettered: int = 0
    refused: int = 0
    notable: list[dict[str, Any]] = field(default_factory=list)
    """One entry for each event that was not simply accepted."""

    @property
    def accepted(self) -> int:
        return len(self.outgoing) - self.dead_lettered

    def document(self) -> bytes:
        """The body of the answer."""
        return orjson.dumps(
            {
                "accepted": self.accepted,
                "dead_lettered": self.dead_lettered,
                "refused": self.refused,
                "verdicts": self.notable,
            }
        )


class Judging:
    """The events of one request on their way to their verdicts, all by one clock; nothing is published.

    Whatever the events and their schemas are, `go_on` returns within `BREATH_SECONDS` and twice what is
    judged inline; what may take longer is judged aside, one event of a tenant at a time.
    """

    def __init__(self, judge: Validator, items: Sequence[Item]) -> None:
        self.verdicts = Verdicts()
        self.dear = False
        """Whether the next event may take long: `aside` is the way to go on."""
        self._judge, self._items, self._now = judge, items, datetime.now(UTC)
        self._index = 0

    @property
    def done(self) -> bool:
        return self._index == len(self._items)

    def go_on(self) -> None:
        """Validate until the end, the next event that is dear, or the next breath."""
        judge, now = self._judge, self._now
        each, byte = judge.pace
        began, left = time.perf_counter(), 1.0
        for item in islice(self._items, self._index, None):
            cost = each + byte * len(item.payload)
            left -= cost
            if left < 0:
                self.dear = cost > 1
                # By the model these events may have taken long; mostly they have not.
                if self.dear or time.perf_counter() - began > BREATH_SECONDS:
                    break
                left = 1 - cost
            self._sort(item, _judge(judge, item, now))

    async def aside(self) -> None:
        """Validate the next event where that holds nobody up."""
        item = self._items[self._index]
        work = partial(_judge, self._judge, item, self._now)
        async with _turns.setdefault(self._judge.scope.tenant.tenant_id, asyncio.Lock()):
            verdict = await asyncio.get_running_loop().run_in_executor(_threads(), work)
        self._sort(item, verdict)
        self.dear = False

    def _sort(self, item: Item, verdict: Event | Refusal) -> None:
        if isinstance(verdict, dict):
            outgoing = Outgoing(verdict["dataset"], verdict["event_id"], item.payload)
            self.verdicts.outgoing.append(outgoing)
        else:
            _refuse(self._judge, self.verdicts, self._index, item, verdict)
        self._index += 1


_turns: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()


@cache
def _threads() -> ThreadPoolExecutor:
    """Their work is to wait for the workers; of their own, so that nobody else waits for them."""
    return ThreadPoolExecutor(load_settings().ingest.judge_workers, "judge")


def _judge(judge: Validator, item: Item, now: datetime) -> Event | Refusal:
    if item.event is None:
        verdict = judge.payload(item.payload)
    elif (rejected := judge.undecodable(item.payload)) is not None:
        return refusal(item.event, rejected)
    else:
        verdict = judge.event(item.event, item.payload, plain=item.plain)
    if isinstance(verdict, dict):
        moment = parse_timestamp(verdict["timestamp"])
        if isinstance(moment, Rejected):
            return refusal(verdict, Rejected(moment.reason, moment.detail, "/timestamp"))
        if (rejected := judge.limits.untimely(moment, now)) is not None:
            return refusal(verdict, rejected)
    return verdict


def _refuse(judge: Validator, verdicts: Verdicts, index: int, item: Item, verdict: Refusal) -> None:
    rejected = verdict.rejected
    target = judge.targets.get(verdict.dataset) if verdict.dataset else None
    foreign = rejected.reason in (Reason.WRONG_TENANT, Reason.OVERSIZE)
    keep = target is not None and target.dataset.on_invalid == OnInvalid.DEAD_LETTER and not foreign
    if target is not None and keep:
        slug = target.dataset.slug
        verdicts.outgoing.append(Outgoing(slug, verdict.event_id, item.payload))
        verdicts.dead_lettered += 1
    else:
        verdicts.refused += 1
    verdicts.notable.append(
        {
            "index": index,
            "event_id": verdict.event_id,
            "status": "dead_lettered" if keep else "refused",
            "reason": rejected.reason.value,
            "pointer": rejected.pointer,
            "detail": rejected.detail,
        }
    )
