"""/v1/datasets: create, read, change and delete the tenant's datasets."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

import orjson
from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from pulse_api.http.app_state import app_state
from pulse_api.http.auth import Manager, Reader
from pulse_api.http.models import Body, DatasetSlug, Name, SchemaAddress, Slug
from pulse_api.http.problems import documented
from pulse_api.http.routes import moves as of_moves
from pulse_api.http.routes.freshness import page_of_slugs
from pulse_api.http.routes.moves import MoveInfo
from pulse_api.http.routing import resource
from pulse_pipelines import moves, registry
from pulse_pipelines.domain.dataset import Dataset, DatasetKind, OnInvalid
from pulse_pipelines.domain.tenant import Tenant

router = resource("datasets", "/v1/datasets")
MAX_LISTED = 10_000
"""Datasets of one answer; most tenants get all of theirs."""


class NewDataset(Body):
    slug: Slug = Field(description="Names the dataset and its table.", examples=["orders"])
    name: Name | None = Field(default=None, description="Display name; the slug by default.")
    schema_uri: SchemaAddress = Field(examples=["pulse://acme/orders/1"])
    on_invalid: OnInvalid = Field(
        default=OnInvalid.REFUSE,
        strict=False,
        description="What POST /v1/collect does with events that break the schema.",
    )
    kind: DatasetKind = Field(
        default=DatasetKind.EVENTS,
        strict=False,
        description="entities: its table is a log of versions, see POST /v1/datasets/{slug}/entities.",
    )


class Move(Body):
    schema_uri: SchemaAddress = Field(description="A newer version of the dataset's schema.")


class Column(BaseModel):
    field: str = Field(description="Property of the event's `data`.")
    name: str = Field(description="Column of the table.")
    type: str


class DatasetInfo(BaseModel):
    dataset_id: UUID
    slug: str
    name: str
    schema_uri: str
    schema_version: int
    schema_versions: list[int] = Field(description="Versions that an event may name.")
    on_invalid: OnInvalid
    kind: DatasetKind
    table: str = Field(description="Its Iceberg table: namespace and name.")
    columns: list[Column]
    created_at: datetime


class DatasetList(BaseModel):
    datasets: list[DatasetInfo] = Field(description="By slug.")
    next_after: str | None = Field(description="`after` of the next page; null on the last.")


class Deleted(BaseModel):
    """The dataset is gone; its files are not."""

    dataset_id: UUID
    slug: str
    files: str = Field(examples=["kept"], description="Data and metadata files stay where they are.")
    metadata_location: str | None = Field(
        description="Last metadata of its table: with it an engine can still read the files."
    )


def _info(tenant: Tenant, dataset: Dataset) -> DatasetInfo:
    return DatasetInfo(
        dataset_id=dataset.dataset_id,
        slug=dataset.slug,
        name=dataset.name,
        schema_uri=dataset.schema_uri,
        schema_version=dataset.schema_version,
        schema_versions=sorted(dataset.documents),
        on_invalid=OnInvalid(dataset.on_invalid),
        kind=DatasetKind(dataset.kind),
        table=f"{tenant.namespace}.{dataset.slug}",
        columns=[Column(field=c.field, name=c.name, type=c.type.kind.value) for c in dataset.columns],
        created_at=dataset.created_at,
    )


@router.post(
    "",
    status_code=201,
    summary="Create a dataset",
    responses=documented(400, 401, 403, 404, 409, 413, 422, 429, 503),
)
async def create_dataset(request: Request, principal: Manager, body: NewDataset) -> DatasetInfo:
    """Create a dataset with its Iceberg table, partitioned by the day of the events' timestamp."""
    tenant = principal.tenant
    arguments = (body.slug, body.schema_uri, body.name, body.on_invalid, body.kind)
    created = await app_state(request).change(tenant.tenant_id, registry.create_dataset, tenant, *arguments)
    return _info(tenant, created)


@router.get(
    "", summary="List datasets", response_model=DatasetList, responses=documented(401, 403, 422, 429, 503)
)
def list_datasets(
    principal: Reader,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED, description="Maximum number of datasets.")] = MAX_LISTED,
    after: Annotated[Slug | None, Query(description="Only datasets whose slug comes after this one.")] = None,
    schema: Annotated[
        Slug | None, Query(description="Only datasets that follow a version of the schema with this name.")
    ] = None,
) -> Response:
    """The tenant's datasets by slug."""
    # Columns of thousands of datasets are megabytes: FastAPI would write them in the event loop, at once.
    tenant = principal.tenant
    slugs, next_after = page_of_slugs(tenant, after, limit, schema)
    infos = (_info(tenant, dataset).model_dump_json() for dataset in registry.list_datasets(tenant, slugs))
    ending = orjson.dumps({"next_after": next_after}).decode()[1:]
    return Response(f'{{"datasets":[{",".join(infos)}],{ending}', media_type="application/json")


@router.get("/{slug}", summary="Get a dataset", responses=documented(401, 403, 404, 422, 429, 503))
def get_dataset(principal: Reader, slug: DatasetSlug) -> DatasetInfo:
    """One dataset; a slug that only another tenant has is not found."""
    return _info(principal.tenant, registry.find_dataset(principal.tenant, slug))


@router.delete("/{slug}", summary="Delete a dataset", responses=documented(401, 403, 404, 409, 422, 429, 503))
async def delete_dataset(request: Request, principal: Manager, slug: DatasetSlug) -> Deleted:
    """Delete a dataset and its table from the catalog; every file stays.

    Events in flight to it become dead letters.
    """
    tenant = principal.tenant
    deleted = await app_state(request).change(tenant.tenant_id, registry.delete_dataset, tenant, slug)
    return Deleted(
        dataset_id=deleted.dataset_id,
        slug=slug,
        files="kept",
        metadata_location=deleted.metadata_location,
    )


@router.post(
    "/{slug}/schema",
    summary="Move a dataset to a newer schema version",
    response_model=DatasetInfo,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 429, 503)
    | {
        202: {
            "description": "Data files have to be written again: a run does that, at the address in "
            "`Location`. The dataset is as it was until then.",
            "model": MoveInfo,
            "headers": {"Location": {"schema": {"type": "string"}, "description": "Of the move."}},
        }
    },
)
async def move_dataset(
    request: Request, principal: Manager, slug: DatasetSlug, body: Move
) -> DatasetInfo | JSONResponse:
    """Move a dataset to a newer version of its schema, and its table with it, in one transaction.

    Possible when the change is compatible: optional fields added, integer to number, required to optional,
    bounds relaxed. Otherwise 409 with every incompatibility in `incompatibilities`. A column of another
    type needs a run that rewrites the data files: 202. Meanwhile, another move is a 409 that names it.
    """
    tenant = principal.tenant
    result = await app_state(request).change(tenant.tenant_id, moves.ask, tenant, slug, body.schema_uri)
    if isinstance(result, Dataset):
        return _info(tenant, result)
    document = of_moves.described(result).model_dump(mode="json")
    return JSONResponse(document, 202, {"Location": of_moves.location(result)})
