"""/v1/events/{event_id}: what became of an event."""

from datetime import date, datetime
from functools import partial
from typing import Annotated

from fastapi import Path, Query, Request
from pydantic import BaseModel, Field
from starlette.convertors import PathConvertor, register_url_convertor

from pulse_api.http.app_state import Kind, app_state
from pulse_api.http.auth import Reader
from pulse_api.http.letter_choice import DatasetName
from pulse_api.http.models import INT64_MAX, Day, SnapshotId
from pulse_api.http.problems import documented
from pulse_api.http.routes.dead_letters import DeadLetterInfo, described
from pulse_api.http.routing import resource
from pulse_pipelines.domain.event import MAX_ID_BYTES
from pulse_pipelines.monitoring import trace
from pulse_pipelines.monitoring.trace import Fate, FateState, Trace


class _AnyText(PathConvertor):
    """The rest of a path, with slashes and, unlike `path`, line breaks: an id may have them."""

    regex = r"[\s\S]*"


register_url_convertor("text", _AnyText())
router = resource("events", "/v1/events", Kind.PREVIEW)
places = resource("events", "/v1/offsets", Kind.PREVIEW)

EventId = Annotated[
    str,
    Path(
        min_length=1,
        max_length=MAX_ID_BYTES,
        pattern=r"^[^\x00]*$",
        description="The event's id; what has a meaning in a URL is percent-encoded: a/b is a%2Fb.",
        examples=["o-1"],
    ),
]


class RebuildInfo(BaseModel):
    backfill_id: str
    settled_at: datetime


class RowInfo(BaseModel):
    day: date = Field(description="Of its timestamp, in UTC: the partition of the table.")
    timestamp: datetime
    schema_version: int
    file: str = Field(description="The data file that has it now.")
    snapshot_id: SnapshotId | None = Field(description="The snapshot with which it landed.")
    landed_at: datetime | None
    trace_id: str | None = Field(description="Trace id that its sender gave.")
    rebuilds: list[RebuildInfo] = Field(description="Backfills that have replaced its day since.")


class FateInfo(BaseModel):
    """What became of one event with this id; unknown values are null."""

    state: FateState
    detail: str = Field(examples=["it landed: a row of orders, day 2026-11-19"])
    dataset: str | None
    partition: int | None
    offset: int | None = Field(description="In the tenant's topic, as the row's `_offset`.")
    received_at: datetime | None = Field(description="When the broker appended it.")
    batch_id: str | None
    settled_at: datetime | None
    row: RowInfo | None
    copy_of: str | None = Field(
        description="Of a duplicate: `<partition>-<offset>` of the event that landed."
    )
    dead_letter: DeadLetterInfo | None
    erasure_id: str | None


class EventInfo(BaseModel):
    event_id: str | None = Field(description="null: it is not known, as for an offset that waits.")
    state: FateState = Field(description="State of the first of the fates.")
    settled: bool = Field(description="Whether everything is settled; ask again while it is false.")
    fates: list[FateInfo] = Field(description="The landed row first, then waiting events, then the others.")
    looked_at: list[str] = Field(description="What was searched, if not everything was.")


@router.get(
    "/{event_id:text}",
    summary="Trace an event",
    responses=documented(401, 403, 404, 422, 429, 503),
)
async def get_event(
    request: Request,
    principal: Reader,
    event_id: EventId,
    dataset: Annotated[
        DatasetName | None, Query(description="The dataset, if several have an event with this id.")
    ] = None,
    day: Annotated[
        Day | None,
        Query(description="Day of the event's timestamp, in UTC; only rows of that day are searched."),
    ] = None,
) -> EventInfo:
    """Whether the event waits, is in a batch, landed (where), is a dead letter (why), or was erased.

    Of an event that was sent several times it is the one that landed; the copies are counted, not kept. An id
    that only another tenant has is not found.
    """
    find_event = partial(trace.by_id, principal.tenant, event_id, dataset=dataset, day=day)
    return _event(event_id, await app_state(request).previews.run(find_event))


@places.get(
    "/{partition}/{offset}",
    summary="Trace an offset",
    responses=documented(401, 403, 404, 422, 429, 503),
)
async def get_event_by_offset(
    request: Request,
    principal: Reader,
    partition: Annotated[int, Path(ge=0, lt=2**31, description="Partition of the tenant's topic.")],
    offset: Annotated[int, Path(ge=0, le=INT64_MAX, description="As the row's `_offset`.")],
) -> EventInfo:
    """What became of the event at an offset of the tenant's topic; as GET /v1/events/{event_id}."""
    trace_place = partial(trace.by_place, principal.tenant, partition, offset)
    trace_result = await app_state(request).previews.run(trace_place)
    return _event(trace_result.fates[0].event_id, trace_result)


def _event(event_id: str | None, trace_result: Trace) -> EventInfo:
    return EventInfo(
        event_id=event_id,
        state=trace_result.state,
        settled=trace_result.settled,
        fates=[_fate(fate) for fate in trace_result.fates],
        looked_at=list(trace_result.looked_at),
    )


def _fate(fate: Fate) -> FateInfo:
    letter = None if fate.dead_letter is None else described(fate.dead_letter)
    return FateInfo.model_validate(vars(fate) | {"dead_letter": letter}, from_attributes=True)
