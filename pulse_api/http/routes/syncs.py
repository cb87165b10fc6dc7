"""/v1/datasets/{slug}/syncs: a dataset's syncs and their outcomes, and the decision on a held sync."""

from datetime import datetime
from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, Field

from pulse_api.http.auth import Manager, Reader
from pulse_api.http.models import Body, DatasetSlug
from pulse_api.http.problems import documented
from pulse_api.http.routing import resource
from pulse_pipelines.domain.syncs import SyncState
from pulse_pipelines.entities import syncs
from pulse_pipelines.entities.syncs import Sync

router = resource("entities", "/v1/datasets/{slug}")
SyncNumber = Annotated[int, Path(ge=1, le=2**63 - 1, description="From `GET .../syncs`.")]


class SyncInfo(BaseModel):
    """A sync and its outcome so far."""

    sync_id: int
    sequence_id: str
    is_full: bool
    state: SyncState
    parts: int = Field(description="Number of parts that were accepted.")
    created: int = Field(description="Entities that were created; events that are new.")
    changed: int
    unchanged: int = Field(description="Entities without a change; events that had landed before.")
    deleted: int
    refused: int = Field(description="Entities or events that were refused or became dead letters.")
    entities: int | None = Field(description="Entities in the dataset when the deletions were decided.")
    absent: int | None = Field(description="Entities of these that the sync did not contain.")
    reason: str | None = Field(description="Why the sync is held, or has failed.")
    begun_at: datetime
    settled_at: datetime | None = Field(description="When all that was sent was in the log.")
    ended_at: datetime | None


class SyncList(BaseModel):
    syncs: list[SyncInfo]


class Allowed(Body):
    """The share of entities that a full sync may delete without confirmation."""

    deletes_most: float = Field(ge=0, le=1, description="Share of the dataset's entities.")


def described(sync: Sync) -> SyncInfo:
    """A sync as the API shows it."""
    return SyncInfo(**{name: getattr(sync, name) for name in SyncInfo.model_fields})


@router.get("/syncs", summary="List syncs", responses=documented(401, 403, 404, 422, 429, 503))
def list_syncs(principal: Reader, slug: DatasetSlug) -> SyncList:
    """The syncs of a dataset, the latest first, at most 100; for a dataset of events, runs of its pipe."""
    return SyncList(syncs=[described(sync) for sync in syncs.list_syncs(principal.tenant, slug)])


@router.put(
    "/syncs/limit",
    summary="Limit what a full sync deletes",
    responses=documented(400, 401, 403, 404, 413, 422, 429, 503),
)
def limit_deletions(principal: Manager, slug: DatasetSlug, allowed: Allowed) -> Allowed:
    """Set the share of entities that a full sync may delete without confirmation; by default 0.2."""
    syncs.allow(principal.tenant, slug, allowed.deletes_most)
    return allowed


@router.post(
    "/syncs/{sync_id}/commit",
    status_code=202,
    summary="Let a held sync delete",
    responses=documented(401, 403, 404, 409, 422, 429, 503),
)
def commit_sync(principal: Manager, slug: DatasetSlug, sync_id: SyncNumber) -> SyncInfo:
    """Let a held sync delete the entities missing from it, except those sent since it started."""
    return described(syncs.decide(principal.tenant, slug, sync_id, commit=True))


@router.post(
    "/syncs/{sync_id}/rollback",
    summary="Let a held sync delete nothing",
    responses=documented(401, 403, 404, 409, 422, 429, 503),
)
def rollback_sync(principal: Manager, slug: DatasetSlug, sync_id: SyncNumber) -> SyncInfo:
    """Let a held sync delete nothing; the entities that it contained stay."""
    return described(syncs.decide(principal.tenant, slug, sync_id, commit=False))
