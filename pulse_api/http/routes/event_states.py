"""/v1/datasets/{slug}/state: the newest event of each key of a dataset of events, and its windows."""

from dataclasses import asdict
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

import orjson
from fastapi import Path, Query, Request, Response
from pydantic import BaseModel, Field

from pulse_api.http.app_state import app_state
from pulse_api.http.auth import Manager, Reader
from pulse_api.http.models import Body, DatasetSlug, Moment
from pulse_api.http.problems import documented
from pulse_api.http.routing import resource
from pulse_pipelines.domain.quota import STATE_BUCKETS, STATE_KEYS
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.domain.windows import MAX_GAP_S, MAX_SUMS, MIN_GAP_S, Windows, plain
from pulse_pipelines.states import declared_states, state_build
from pulse_pipelines.states.declared_states import DeclaredState, Newest
from pulse_pipelines.states.declared_windows import KeyWindows

router = resource("state", "/v1/datasets/{slug}")
BUILD_S = 20.0
"""How long a request builds."""
MAX_LIMIT = 1_000
StateKey = Annotated[str, Path(max_length=512, description="A value of the key; an integer in decimal.")]


class WindowOfKey(BaseModel):
    """Counts and sums of the events of a key from one minute up to `to`."""

    start: datetime = Field(alias="from")
    events: int
    sums: dict[str, Decimal] = Field(description="Exact, by column: a number with all its digits.")


class SessionOfKey(BaseModel):
    """The latest session of a key: events without a longer gap between them than declared."""

    first: datetime
    last: datetime
    events: int
    open: bool = Field(description="Whether an event at the requested moment would belong to it.")
    complete: bool = Field(description="False: more events may belong to it than are kept.")


class WindowsOfKey(BaseModel):
    """The windows of a key; each is null where it begins before the minutes that are kept."""

    to: datetime = Field(description="The end of the requested minute, and of all windows.")
    complete: bool = Field(description="False: they are being built, and may lack events.")
    five_minutes: WindowOfKey | None = Field(alias="5m")
    hour: WindowOfKey | None = Field(alias="1h")
    day: WindowOfKey | None = Field(alias="24h")
    session: SessionOfKey | None = Field(description="Null: none is declared, or there was no event.")


class NewestEvent(BaseModel):
    """The newest event of a key."""

    key: str
    timestamp: datetime
    event_id: str
    data: dict[str, Any] | None = Field(description="As it was sent; null: more than 4,096 bytes of JSON.")


class KeyState(NewestEvent):
    """The newest event of a key, and its windows."""

    windows: WindowsOfKey | None = Field(default=None, description="Absent if the state has no windows.")


class NewWindows(Body):
    """Counts and sums of the last 5 minutes, hour and 24 hours of each key, and sessions."""

    sums: list[str] = Field(
        default_factory=list,
        max_length=MAX_SUMS,
        description="Properties that are numbers.",
        examples=[["fare"]],
    )
    session_gap_s: int | None = Field(
        default=None,
        ge=MIN_GAP_S,
        le=MAX_GAP_S,
        description="A session ends where no event follows for longer than this; null: no sessions.",
    )
    max_buckets: int = Field(
        default=STATE_BUCKETS,
        ge=1,
        le=STATE_BUCKETS,
        description="Maximum number of minutes of keys to keep.",
    )


class WindowsInfo(BaseModel):
    """The windows of a state, and how full they are."""

    sums: list[str]
    session_gap_s: int | None
    max_buckets: int
    buckets: int = Field(description="Minutes of keys with events that are kept.")
    kept_from: datetime | None = Field(
        description="What begins before is null: 25 hours before the newest event, or less if they are full."
    )
    full: bool = Field(description="Whether less than these 25 hours is kept, for want of room.")
    complete: bool = Field(description="Whether they are complete; if not, send the PUT again.")


class StateInfo(BaseModel):
    """A dataset's state, and how full it is."""

    latest_by: str = Field(description="The column that is the key.")
    keys: int
    max_keys: int
    left_out: int = Field(description="How often a batch had a key for which there was no room.")
    complete: bool = Field(description="Whether it has every key of the table; if not, send the PUT again.")
    created_at: datetime
    windows: WindowsInfo | None


class StatePage(StateInfo):
    state: list[NewestEvent] = Field(description="By key, in the order of code points.")


class NewState(Body):
    latest_by: str = Field(min_length=1, max_length=256, examples=["tail_number"])
    max_keys: int = Field(default=STATE_KEYS, ge=1, le=STATE_KEYS, description="Maximum number of keys.")
    windows: NewWindows | None = Field(default=None, description="Windows to keep; null removes them.")


class StateDropped(BaseModel):
    dropped: str = Field(description="The column that was the key.")


def described(state: DeclaredState) -> StateInfo:
    """A state as the API shows it."""
    return StateInfo.model_validate(asdict(state))


@router.get(
    "/state",
    response_model=StatePage,
    summary="Read the state",
    responses=documented(401, 403, 404, 409, 422, 429, 503),
)
def list_states(
    principal: Reader,
    slug: DatasetSlug,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 100,
    after: Annotated[str | None, Query(max_length=512, description="The last key that was read.")] = None,
) -> Response:
    """The newest event of each key, `limit` keys at a time. A page with fewer keys is the last one."""
    state, newest = declared_states.page(principal.tenant, slug, after, limit)
    about = described(state).model_dump() | {"state": [_shown(event) for event in newest]}
    return Response(orjson.dumps(about, option=orjson.OPT_UTC_Z), media_type="application/json")


@router.get(
    "/state/{key:text}",
    response_model=KeyState,
    summary="Read one key's state",
    responses=documented(401, 403, 404, 409, 422, 429, 503),
)
def get_state(
    principal: Reader,
    slug: DatasetSlug,
    key: StateKey,
    as_of: Annotated[
        Moment | None,
        Query(description="Windows end with the minute of this time; by default now."),
    ] = None,
) -> Response:
    """The newest event of a key, and its windows, as of the latest batch that has settled."""
    event = declared_states.newest(principal.tenant, slug, key, as_of)
    about = _shown(event)
    if event.windows is not None:
        about["windows"] = _shown_windows(event.windows)
    return Response(orjson.dumps(about), media_type="application/json")


@router.put(
    "/state",
    summary="Declare the state",
    responses=documented(400, 401, 403, 404, 409, 413, 422, 429, 503),
)
async def declare_state(request: Request, principal: Manager, slug: DatasetSlug, new: NewState) -> StateInfo:
    """Declare the state. It is built from the table; batches then keep it up to date.

    Where `complete` is false, the table is large: `pulse state declare` builds to the end.
    """
    tenant, windows = principal.tenant, None
    if new.windows is not None:
        windows = Windows(tuple(new.windows.sums), new.windows.session_gap_s, new.windows.max_buckets)
    state = await app_state(request).change_long(
        tenant.tenant_id, built, tenant, slug, new.latest_by, new.max_keys, windows
    )
    return described(state)


def built(tenant: Tenant, slug: str, latest_by: str, max_keys: int, windows: Windows | None) -> DeclaredState:
    """Declare a state, and build it for a while."""
    declared_states.declare(tenant, slug, latest_by, max_keys, windows)
    state_build.build(tenant, slug, seconds=BUILD_S)
    return declared_states.find(tenant, slug)


@router.delete("/state", summary="Drop the state", responses=documented(401, 403, 404, 409, 422, 429, 503))
async def drop_state(request: Request, principal: Manager, slug: DatasetSlug) -> StateDropped:
    """Drop the state. The events stay in the table, and the state can be declared again."""
    tenant = principal.tenant
    return StateDropped(
        dropped=await app_state(request).change(tenant.tenant_id, declared_states.drop, tenant, slug)
    )


def _shown(newest: Newest) -> dict[str, object]:
    data = None if newest.data is None else orjson.Fragment(newest.data)
    about = {"key": newest.key, "timestamp": newest.timestamp, "event_id": newest.event_id}
    return about | {"data": data}


def _shown_windows(windows: KeyWindows) -> dict[str, object]:
    about: dict[str, object] = {"to": windows.to, "complete": windows.complete}
    for name, window in windows.windows.items():
        about[name] = window and {
            "from": window.start,
            "events": window.events,
            "sums": {column: orjson.Fragment(plain(total)) for column, total in window.sums.items()},
        }
    return about | {"session": windows.session and asdict(windows.session)}
