"""/v1/datasets/{slug}/state: the newest event of each key of a dataset of events."""

from datetime import datetime
from typing import Annotated, Any

import orjson
from fastapi import Path, Query, Request, Response
from pydantic import BaseModel, Field

from pulse_api.http.app_state import app_state
from pulse_api.http.auth import Manager, Reader
from pulse_api.http.models import Body, DatasetSlug
from pulse_api.http.problems import documented
from pulse_api.http.routing import resource
from pulse_pipelines.domain.quota import STATE_KEYS
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import event_state_build, event_states
from pulse_pipelines.registry.event_states import DeclaredState, Newest

router = resource("state", "/v1/datasets/{slug}")
BUILD_S = 20.0
"""How long a request builds."""
MAX_LIMIT = 1_000
Key = Annotated[str, Path(max_length=512, description="A value of the key; an integer in decimal.")]


class NewestEvent(BaseModel):
    """The newest event of a key."""

    key: str
    timestamp: datetime
    event_id: str
    data: dict[str, Any] | None = Field(description="As it was sent; null: more than 4,096 bytes of JSON.")


class StateInfo(BaseModel):
    """A dataset's state, and how full it is."""

    latest_by: str = Field(description="The column that is the key.")
    keys: int
    max_keys: int
    left_out: int = Field(description="How often a batch brought a key for which there was no room.")
    complete: bool = Field(description="Whether it has all that the table has; else send the PUT again.")
    created_at: datetime


class StatePage(StateInfo):
    state: list[NewestEvent] = Field(description="By key, in the order of code points.")


class NewState(Body):
    latest_by: str = Field(min_length=1, max_length=256, examples=["tail_number"])
    max_keys: int = Field(default=STATE_KEYS, ge=1, le=STATE_KEYS, description="Keys that it has, at most.")


class Dropped(BaseModel):
    dropped: str = Field(description="The column that was the key.")


def described(found: DeclaredState) -> StateInfo:
    """A state as the API shows it."""
    return StateInfo(**{name: getattr(found, name) for name in StateInfo.model_fields})


@router.get(
    "/state",
    response_model=StatePage,
    summary="Read the state",
    responses=documented(401, 403, 404, 409, 422, 429, 503),
)
def page(
    principal: Reader,
    slug: DatasetSlug,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 100,
    after: Annotated[str | None, Query(max_length=512, description="The last key that was read.")] = None,
) -> Response:
    """The newest event of each key, `limit` keys at a time; fewer are the end."""
    found, newest = event_states.page(principal.tenant, slug, after, limit)
    about = described(found).model_dump() | {"state": [_shown(each) for each in newest]}
    return Response(orjson.dumps(about), media_type="application/json")


@router.get(
    "/state/{key:path}",
    response_model=NewestEvent,
    summary="Read one key's state",
    responses=documented(401, 403, 404, 409, 422, 429, 503),
)
def one(principal: Reader, slug: DatasetSlug, key: Key) -> Response:
    """The newest event of a key, as of the latest batch that has settled."""
    return Response(
        orjson.dumps(_shown(event_states.newest(principal.tenant, slug, key))), media_type="application/json"
    )


@router.put(
    "/state",
    summary="Declare the state",
    responses=documented(401, 403, 404, 409, 413, 422, 429, 503),
)
async def declare(request: Request, principal: Manager, slug: DatasetSlug, new: NewState) -> StateInfo:
    """It is built from the table as it is; batches then keep it.

    Where `complete` is false, the table is large: `pulse state declare` builds to the end.
    """
    tenant = principal.tenant
    found = await app_state(request).change_long(
        tenant.tenant_id, built, tenant, slug, new.latest_by, new.max_keys
    )
    return described(found)


def built(tenant: Tenant, slug: str, latest_by: str, max_keys: int) -> DeclaredState:
    """Declare a state, and build it for a while."""
    event_states.declare(tenant, slug, latest_by, max_keys)
    event_state_build.build(tenant, slug, seconds=BUILD_S)
    return event_states.find(tenant, slug)


@router.delete("/state", summary="Drop the state", responses=documented(401, 403, 404, 409, 422, 429, 503))
async def drop(request: Request, principal: Manager, slug: DatasetSlug) -> Dropped:
    """The events stay in the table; the state can be declared again."""
    tenant = principal.tenant
    return Dropped(dropped=await app_state(request).change(tenant.tenant_id, event_states.drop, tenant, slug))


def _shown(newest: Newest) -> dict[str, object]:
    data = None if newest.data is None else orjson.Fragment(newest.data)
    about = {"key": newest.key, "timestamp": newest.timestamp, "event_id": newest.event_id}
    return about | {"data": data}
