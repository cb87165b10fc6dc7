"""/v1/freshness: rows, snapshot and last landing of the tenant's datasets."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, Field

from pulse_api.http.app_state import Kind
from pulse_api.http.auth import Reader
from pulse_api.http.models import Slug, SnapshotId
from pulse_api.http.problems import documented
from pulse_api.http.routing import resource
from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.monitoring.dataset_states import dataset_states

router = resource("datasets", "/v1/freshness", Kind.PREVIEW)
MAX_DATASETS = 100


class FreshnessInfo(BaseModel):
    dataset: str
    events_landed_last: datetime | None = Field(description="null: none has landed yet.")
    snapshot_id: SnapshotId | None = Field(description="Newest snapshot of its table; null: it has none.")
    committed_at: datetime | None
    rows: int = Field(description="Rows in that snapshot; for a dataset of entities, versions.")
    problem: str | None = Field(description="Why its table cannot be read; else null.")


class FreshnessPage(BaseModel):
    as_of: datetime = Field(description="When all of this was read.")
    datasets: list[FreshnessInfo] = Field(description="By slug.")
    next_after: str | None = Field(description="`after` of the next page; null on the last.")


@router.get("", summary="Get the freshness of datasets", responses=documented(401, 403, 422, 429, 503))
def get_freshness(
    principal: Reader,
    limit: Annotated[int, Query(ge=1, le=MAX_DATASETS, description="Maximum number of datasets.")] = 50,
    after: Annotated[Slug | None, Query(description="Only datasets whose slug comes after this one.")] = None,
) -> FreshnessPage:
    """How many rows each dataset has, in which snapshot, and when events landed last."""
    as_of = datetime.now(UTC)
    slugs, next_after = page_of_slugs(principal.tenant, after, limit)
    states = dataset_states(principal.tenant, slugs)
    return FreshnessPage(
        as_of=as_of,
        datasets=[FreshnessInfo(**vars(state)) for state in states],
        next_after=next_after,
    )


def page_of_slugs(
    tenant: Tenant, after: str | None, limit: int, schema: str | None = None
) -> tuple[list[str], str | None]:
    """Slugs of at most `limit` datasets after one (None: of the first), and `after` of the next page.

    Args:
        schema: only datasets that follow a version of the schema with this name; None: all.
    """
    slugs = registry.list_slugs(tenant, after, limit + 1, schema)
    return slugs[:limit], slugs[limit - 1] if len(slugs) > limit else None
