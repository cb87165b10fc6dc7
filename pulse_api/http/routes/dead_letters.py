"""/v1/dead-letters: events that could not land: list, replay once the cause is gone, discard."""

import base64
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import BaseModel, Field

from pulse_api.http import negotiation
from pulse_api.http.app_state import Kind, app_state
from pulse_api.http.auth import Manager, Reader
from pulse_api.http.letter_choice import Chosen, CursorText, LetterFilter, Replayed
from pulse_api.http.problems import documented
from pulse_api.http.routing import resource
from pulse_pipelines import dead_letters
from pulse_pipelines.dead_letters import DeadLetter, DeadLetterOutcome, Result
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.requests import MAX_LETTERS, LetterState

router = resource("dead letters", "/v1/dead-letters")
searches = resource("dead letters", "/v1/dead-letters", Kind.PREVIEW)
"""What reads all letters of a tenant, of whom some have a million: few at a time."""

BYTES = "application/octet-stream"


class _Query(LetterFilter):
    state: LetterState = Field(
        default=LetterState.OPEN, strict=False, description="Only dead letters in this state."
    )


class ListQuery(_Query):
    limit: int = Field(default=100, ge=1, le=MAX_LETTERS, strict=False)
    cursor: CursorText | None = Field(default=None, description="`next_cursor` of the previous page.")


class DeadLetterInfo(BaseModel):
    id: str = Field(
        examples=["0-17"], description="`<partition>-<offset>` of the event in the tenant's topic."
    )
    dataset: str | None = Field(description="The dataset that the event named, whether or not it exists.")
    event_id: str | None
    reason: str = Field(examples=["schema_violation"])
    pointer: str | None = Field(description="JSON pointer into the event, where there is one.")
    detail: str
    size: int = Field(description="Bytes of the event as it was received.")
    received_at: datetime
    set_aside_at: datetime
    batch_id: str
    state: LetterState
    resolved_at: datetime | None = Field(description="When it was replayed or discarded.")


class OpenedDeadLetter(DeadLetterInfo):
    payload: str | None = Field(description="The event as it was received; null where it is not UTF-8.")
    payload_base64: str = Field(description="The event as it was received, in base64.")


class DeadLetterPage(BaseModel):
    dead_letters: list[DeadLetterInfo] = Field(description="The latest first.")
    next_cursor: str | None = Field(description="Where the next page begins; null on the last.")


class ReasonInfo(BaseModel):
    reason: str
    count: int
    oldest: datetime = Field(description="When the first of them became a dead letter.")
    newest: datetime


class Summary(BaseModel):
    total: int
    reasons: list[ReasonInfo] = Field(description="The most frequent first.")


class GroupInfo(BaseModel):
    """Dead letters of one dataset with one reason at one place."""

    dataset: str | None = Field(description="null: the events named no dataset.")
    reason: str
    place: str = Field(description="JSON pointer, with `*` for numbers of items; empty: there is none.")
    count: int
    oldest: datetime = Field(description="When the first of them became a dead letter.")
    newest: datetime
    example_id: str = Field(description="Id of the latest one.")
    example_detail: str = Field(description="What is wrong with it.")
    advice: str = Field(description="What to do about the reason.")


class GroupList(BaseModel):
    as_of: datetime
    groups: list[GroupInfo] = Field(description="The largest first.")


class GroupQuery(_Query):
    limit: int = Field(default=100, ge=1, le=MAX_LETTERS, strict=False)


class VerdictInfo(BaseModel):
    id: str
    outcome: DeadLetterOutcome
    dataset: str | None
    event_id: str | None
    reason: str | None = Field(description="Why the event still cannot land.")
    pointer: str | None
    detail: str | None


class Resolved(BaseModel):
    """The outcome of each letter; of a dry run, the outcome that it would have."""

    dry_run: bool
    total: int
    counts: dict[str, int] = Field(
        description="Number of letters by outcome.", examples=[{"published": 12, "rejected": 1}]
    )
    verdicts: list[VerdictInfo] = Field(description="Verdicts on the first 1,000 letters.")
    next_cursor: str | None = Field(description="Continue with it if `limit` was reached; else null.")


def _state(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.letter_id,
        "dataset": letter.dataset,
        "event_id": letter.event_id,
        "reason": letter.reason,
        "pointer": letter.pointer,
        "detail": letter.detail,
        "size": letter.size,
        "received_at": letter.received_at,
        "set_aside_at": letter.settled_at,
        "batch_id": letter.batch_id,
        "state": LetterState(letter.resolution or LetterState.OPEN),
        "resolved_at": letter.resolved_at,
    }


def described(letter: DeadLetter) -> DeadLetterInfo:
    """A dead letter as the API shows it."""
    return DeadLetterInfo(**_state(letter))


def _resolved(result: Result) -> Resolved:
    return Resolved(
        dry_run=result.dry_run,
        total=result.total,
        counts={outcome.value: count for outcome, count in result.counts.items()},
        verdicts=[
            VerdictInfo(
                id=verdict.letter_id,
                outcome=verdict.outcome,
                dataset=verdict.dataset,
                event_id=verdict.event_id,
                reason=verdict.reason,
                pointer=verdict.pointer,
                detail=verdict.detail,
            )
            for verdict in result.verdicts
        ],
        next_cursor=result.next,
    )


@searches.get("", summary="List dead letters", responses=documented(401, 403, 404, 422, 429, 503))
def list_dead_letters(principal: Reader, query: Annotated[ListQuery, Query()]) -> DeadLetterPage:
    """The tenant's dead letters, the latest first, without their bytes."""
    page = dead_letters.list_dead_letters(
        principal.tenant, query.filter(), state=query.state, limit=query.limit, after=query.cursor
    )
    return DeadLetterPage(dead_letters=[described(letter) for letter in page.letters], next_cursor=page.next)


@searches.get("/summary", summary="Count dead letters", responses=documented(401, 403, 422, 429, 503))
def summarize_dead_letters(principal: Reader, query: Annotated[_Query, Query()]) -> Summary:
    """How many dead letters there are, by reason."""
    counts = dead_letters.summary(principal.tenant, query.filter(), state=query.state)
    return Summary(
        total=sum(entry.count for entry in counts), reasons=[ReasonInfo(**vars(entry)) for entry in counts]
    )


@searches.get("/groups", summary="Group dead letters", responses=documented(401, 403, 422, 429, 503))
def group_dead_letters(principal: Reader, query: Annotated[GroupQuery, Query()]) -> GroupList:
    """Dead letters by dataset, reason and place, with an example. A filter of all three selects a group."""
    as_of = datetime.now(UTC)
    grouped = dead_letters.groups(principal.tenant, query.filter(), state=query.state, limit=query.limit)
    infos = [GroupInfo(**vars(group), advice=Reason(group.reason).advice) for group in grouped]
    return GroupList(as_of=as_of, groups=infos)


@router.get(
    "/{letter_id}",
    summary="Get a dead letter",
    response_model=OpenedDeadLetter,
    responses=documented(401, 403, 404, 406, 422, 429, 503)
    | {200: {"content": {BYTES: {"schema": {"type": "string", "format": "binary"}}}}},
)
def get_dead_letter(principal: Reader, letter_id: str, request: Request) -> Response | OpenedDeadLetter:
    """One dead letter with its event: as JSON, or, by the header Accept, as its original bytes alone."""
    media_type = negotiation.chosen(request, ("application/json", BYTES))
    letter, payload = dead_letters.find_dead_letter(principal.tenant, letter_id)
    if media_type == BYTES:
        return Response(payload, media_type=BYTES)
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = None
    encoded = base64.b64encode(payload).decode()
    return OpenedDeadLetter(**_state(letter), payload=text, payload_base64=encoded)


@router.post(
    "/replay",
    summary="Replay dead letters",
    responses=documented(400, 401, 403, 404, 413, 422, 429, 503),
)
async def replay_dead_letters(request: Request, principal: Manager, body: Replayed) -> Resolved:
    """Publish open dead letters again if they can land in the datasets as they are now.

    They pass the same gate as every event, so nothing lands twice, however often this is repeated. Those that
    still cannot land stay open, each with a verdict that says why.
    """
    tenant = principal.tenant
    work = partial(dead_letters.replay, tenant, schema_version=body.schema_version, **body.choice())
    return _resolved(await app_state(request).change(tenant.tenant_id, work))


@router.post(
    "/discard",
    summary="Discard dead letters",
    responses=documented(400, 401, 403, 404, 413, 422, 429, 503),
)
def discard_dead_letters(principal: Manager, body: Chosen) -> Resolved:
    """Close open dead letters without replaying them; their bytes stay."""
    return _resolved(dead_letters.discard(principal.tenant, **body.choice()))
