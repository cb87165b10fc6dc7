"""What becomes of each event of a request: published to land, published to be dead-lettered, or refused."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from pulse_api.http.collect.publisher import Outgoing
from pulse_api.http.collect.split import Item
from pulse_pipelines.domain.dataset import OnInvalid
from pulse_pipelines.domain.event import Reason, Rejected, parse_timestamp
from pulse_pipelines.stages.judge import Event, Judge, Refusal, refusal


@dataclass
class Verdicts:
    """Of one request. `outgoing` is what the broker gets, in the order of the request."""

    outgoing: list[Outgoing] = field(default_factory=list)
    accepted: int = 0
    dead_lettered: int = 0
    refused: int = 0
    notable: list[dict[str, Any]] = field(default_factory=list)
    """One entry for each event that was not simply accepted."""

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


def judge_all(judge: Judge, items: Iterable[Item]) -> Verdicts:
    """Judge every event of a request, by the clock of now; nothing is published here."""
    verdicts, now = Verdicts(), datetime.now(UTC)
    for index, item in enumerate(items):
        verdict = _judge(judge, item, now)
        if isinstance(verdict, dict):
            verdicts.outgoing.append(Outgoing(verdict["dataset"], verdict["event_id"], item.payload))
            verdicts.accepted += 1
        else:
            _refuse(judge, verdicts, index, item, verdict)
    return verdicts


def _judge(judge: Judge, item: Item, now: datetime) -> Event | Refusal:
    if item.event is None:
        verdict = judge.payload(item.payload)
    elif (rejected := judge.undecodable(item.payload)) is not None:
        return refusal(item.event, rejected)
    else:
        verdict = judge.event(item.event, None if item.plain else item.payload)
    if isinstance(verdict, dict):
        moment = parse_timestamp(verdict["timestamp"])
        if isinstance(moment, Rejected):
            return refusal(verdict, Rejected(moment.reason, moment.detail, "/timestamp"))
        if (rejected := judge.limits.untimely(moment, now)) is not None:
            return refusal(verdict, rejected)
    return verdict


def _refuse(judge: Judge, verdicts: Verdicts, index: int, item: Item, verdict: Refusal) -> None:
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
