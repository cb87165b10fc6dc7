"""/v1/datasets/{slug}/indexes: indexes over the entities of a dataset."""

from datetime import datetime
from typing import Annotated

from fastapi import Path, Request
from pydantic import BaseModel, Field

from pulse_api.http.app_state import app_state
from pulse_api.http.auth import Manager, Reader
from pulse_api.http.models import Body, DatasetSlug
from pulse_api.http.problems import documented
from pulse_api.http.routing import resource
from pulse_pipelines.domain.expressions.grammar import MAX_LENGTH
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import index_build, indexes
from pulse_pipelines.entities.indexes import DeclaredIndex

router = resource("entities", "/v1/datasets/{slug}")
IndexNumber = Annotated[int, Path(ge=1, le=2**63 - 1, description="From `GET .../indexes`.")]
BUILD_S = 20.0
"""Seconds that a request builds; the next one continues."""


class IndexInfo(BaseModel):
    """An index, its progress, and the readers of its subsets."""

    index_id: int
    expression: str
    behind: int = Field(description="Versions of the log that it does not have yet; 0: it is complete.")
    entries: int = Field(description="Versions with a value, and versions whose entity had another before.")
    bytes: int = Field(description="Its size in Postgres.")
    created_at: datetime
    readers: list[str] = Field(
        description="Ids of the keys that have read a subset by it; `pipe <name>` is a transform that joins."
    )
    read_at: datetime | None = Field(description="When a subset was last read by it, to the hour.")
    orphaned: bool = Field(description="No one has read by it for 30 days: it can be dropped.")


class IndexList(BaseModel):
    indexes: list[IndexInfo]


class NewIndex(Body):
    expression: str = Field(min_length=1, max_length=MAX_LENGTH, examples=["lower(continent)"])


class IndexDropped(BaseModel):
    dropped: str = Field(description="The index's expression.")


def described(index: DeclaredIndex) -> IndexInfo:
    """An index as the API shows it."""
    return IndexInfo(**{name: getattr(index, name) for name in IndexInfo.model_fields})


@router.get("/indexes", summary="List indexes", responses=documented(401, 403, 404, 409, 422, 429, 503))
def list_indexes(principal: Reader, slug: DatasetSlug) -> IndexList:
    """The indexes of a dataset of entities, by expression."""
    return IndexList(indexes=[described(index) for index in indexes.list_indexes(principal.tenant, slug)])


@router.post(
    "/indexes",
    status_code=201,
    summary="Declare an index",
    responses=documented(400, 401, 403, 404, 409, 413, 422, 429, 503),
)
async def declare_index(request: Request, principal: Manager, slug: DatasetSlug, new: NewIndex) -> IndexInfo:
    """Declare an index. It is built from the log; batches then keep it up to date.

    If `behind` is not 0, repeat the request to continue the build.
    """
    tenant = principal.tenant
    return described(
        await app_state(request).change_long(tenant.tenant_id, built, tenant, slug, new.expression)
    )


def built(tenant: Tenant, slug: str, expression: str) -> DeclaredIndex:
    """Declare an index, and build it for a while."""
    index_id = indexes.declare(tenant, slug, expression).index_id
    index_build.build(tenant, slug, index_id, seconds=BUILD_S)
    return indexes.declare(tenant, slug, expression)


@router.delete(
    "/indexes/{index_id}", summary="Drop an index", responses=documented(401, 403, 404, 409, 422, 429, 503)
)
async def drop_index(
    request: Request, principal: Manager, slug: DatasetSlug, index_id: IndexNumber
) -> IndexDropped:
    """Drop an index. Its subsets cannot be read until it is declared again.

    A reader's `since` stays valid.
    """
    tenant = principal.tenant
    return IndexDropped(
        dropped=await app_state(request).change(tenant.tenant_id, indexes.drop, tenant, slug, index_id)
    )
