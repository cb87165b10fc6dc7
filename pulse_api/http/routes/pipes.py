"""/v1/pipes: pipes from the tenant's sources to datasets, and from datasets of entities to sinks."""

from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Annotated, Literal

from fastapi import Path, Query, Request
from pydantic import BaseModel, Field, StringConstraints

from pulse_api.http.app_state import app_state
from pulse_api.http.auth import Manager, Reader
from pulse_api.http.models import Body, Slug
from pulse_api.http.problems import documented
from pulse_api.http.routes.syncs import SyncInfo, described
from pulse_api.http.routing import resource
from pulse_pipelines import pipes
from pulse_pipelines.domain.pipes import Mode, definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import syncs
from pulse_pipelines.pipes import Pipe

router = resource("pipes", "/v1/pipes")
PipeName = Annotated[
    str, Path(pattern=r"^[a-z][a-z0-9_]{0,62}$", description="Name of one of the tenant's pipes.")
]
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,200}$")]
Address = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]{0,62}$")]
RUNS = 10
"""Syncs of a pipe that are shown, at most."""


class NewPipe(Body):
    """A pipe's definition, as in its YAML. It holds no address and no credentials."""

    pipe: Slug = Field(examples=["planes"])
    source: Address | None = Field(default=None, description="Name of one of the tenant's sources.")
    table: Text | None = Field(
        default=None, description="Table of the source, or of a sink that is a database."
    )
    path: str | None = Field(
        default=None, max_length=500, description="Files below the source's address, with `*` for any text."
    )
    format: Literal["ndjson", "csv", "parquet"] | None = Field(
        default=None, description="Format of the files; if omitted, their names decide."
    )
    feed: str | None = Field(
        default=None, max_length=500, description="Path of a feed of entities below the source's address."
    )
    timestamp: Text | None = Field(
        default=None,
        description="Column of a table or of files whose rows are only appended: each row becomes an event "
        "of this time, once. Without it rows are entities.",
    )
    dataset: Slug | None = Field(
        default=None,
        description="Dataset of entities, or with `timestamp` of events; created if it does not exist.",
    )
    read: Slug | None = Field(
        default=None, alias="from", description="With `to`: the dataset of entities to read."
    )
    to: Address | None = Field(
        default=None, description="The sink: name of one of the tenant's addresses, a database or http(s)."
    )
    create: bool | None = Field(
        default=None, description="For a sink: create its table if it does not exist."
    )
    subset: str | None = Field(
        default=None, min_length=1, max_length=2000, description="With `from`: `<expression>=<value>`."
    )
    mode: Literal["full", "incremental", "changes"] | None = Field(
        default=None, description="How a table is read; if omitted, full."
    )
    cursor: Text | None = Field(
        default=None, description="For mode incremental: a column that increases with each change."
    )
    overlap: Text | None = Field(default=None, description="How far before the last cursor a run starts.")
    key: list[Text] | None = Field(
        default=None, max_length=32, description="Columns of the key; by default the table's primary key."
    )
    every: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="Seconds between runs; if omitted, the pipe runs only on request.",
    )


class Wish(Body):
    """A request for a run."""

    full: bool = Field(default=False, description="Read all rows, and delete entities that are missing.")


class Counts(BaseModel):
    """Entities, or events, of the runs of the last 24 hours, by outcome."""

    created: int
    changed: int
    unchanged: int
    deleted: int
    refused: int


class PipeInfo(BaseModel):
    """A pipe and its progress."""

    pipe: str
    direction: Literal["in", "out"] = Field(
        description="in: from a source to a dataset; out: from a dataset to a sink."
    )
    other_end: str = Field(description="Its source or sink, as a text for people.")
    source: str | None = Field(description="Name of the source or sink; null for a transform.")
    table: str | None = Field(description="null if its source or sink is not a table.")
    path: str | None = Field(description="null if it does not read files.")
    format: str | None = Field(description="Format of the files.")
    feed: str | None = Field(description="null if it does not read a feed.")
    transform: str | None = Field(description="null if it is not a transform.")
    timestamp: str | None = Field(description="Column with the time of events; null for entities.")
    dataset: str
    mode: Mode | None = Field(description="null if it does not read a table.")
    computes: str | None = Field(description="What the last run of a transform computed, and why.")
    every_seconds: int | None = Field(description="null: it runs only on request.")
    state: Literal["active", "paused"]
    position: str | None = Field(
        description="Where in the source its rows have settled, or where in the log its sink has "
        "confirmed; null: the next run copies everything."
    )
    begun_at: datetime | None = Field(description="When its last run began.")
    settled_at: datetime | None = Field(description="When the rows of its last run had settled.")
    lag_seconds: float | None = Field(
        description="Age of the moment up to which everything in the source has settled."
    )
    behind: int | None = Field(
        description="Versions of the log that its sink does not have; null: it has none."
    )
    wal_bytes: int | None = Field(description="Bytes of its log that the source keeps for the pipe.")
    wal_status: str | None = Field(description="State of this log as the source reports it.")
    error: str | None = Field(description="Why its last run failed.")


class DeliveryInfo(BaseModel):
    """A run of a pipe with a sink."""

    delivery_id: int
    state: Literal["running", "done", "failed"]
    is_full: bool = Field(description="It copied all entities, and deleted missing ones.")
    versions: int = Field(description="Versions that were read.")
    upserted: int
    deleted: int
    refused: int
    begun_at: datetime
    ended_at: datetime | None
    reason: str | None = Field(description="Why it failed.")


class PipeDetails(PipeInfo):
    """A pipe and the results of its last runs."""

    last_day: Counts
    syncs: list[SyncInfo] = Field(description="Syncs of its dataset, the latest first.")
    deliveries: list[DeliveryInfo] = Field(description="Runs to its sink, the latest first.")


class PipeList(BaseModel):
    pipes: list[PipeInfo]


class PipeDeleted(BaseModel):
    """The pipe is deleted; its dataset stays."""

    pipe: str
    dataset: str


@router.post(
    "",
    status_code=201,
    summary="Create a pipe",
    responses=documented(400, 401, 403, 404, 409, 413, 422, 429, 503),
)
async def create_pipe(request: Request, principal: Manager, body: NewPipe) -> PipeInfo:
    """Create a pipe. If its dataset does not exist, create it with a schema derived from the source.

    With `from` and `to` it copies a dataset of entities to a sink: a table of Postgres, or a service by HTTP.

    An operator configures where a source is, and how to get in; 404 if that has not been done. Pipes with a
    transform are created by operators, on the command line.
    """
    tenant, requested = principal.tenant, definition(body.model_dump(exclude_none=True, by_alias=True))
    return _info(await app_state(request).change_long(tenant.tenant_id, pipes.create, tenant, requested))


@router.get("", summary="List pipes", responses=documented(401, 403, 429, 503))
def list_pipes(principal: Reader) -> PipeList:
    """The tenant's pipes by name."""
    return PipeList(pipes=[_info(pipe) for pipe in pipes.list_pipes(principal.tenant)])


@router.get("/{pipe}", summary="Get a pipe", responses=documented(401, 403, 404, 422, 429, 503))
def get_pipe(principal: Reader, pipe: PipeName) -> PipeDetails:
    """One pipe, with its lag and the results of its last runs."""
    tenant = principal.tenant
    details = pipes.find(tenant, pipe)
    counts = pipes.last_day(tenant).get((tenant.tenant_id, pipe), pipes.LastDay())
    out = details.definition.delivers
    recent_syncs = [] if out else syncs.list_syncs(tenant, details.dataset, RUNS)
    delivered = pipes.list_deliveries(tenant, pipe, RUNS) if out else []
    return PipeDetails(
        **_info(details).model_dump(),
        last_day=Counts(**counts._asdict()),
        syncs=[described(sync) for sync in recent_syncs],
        deliveries=[DeliveryInfo(**asdict(delivery)) for delivery in delivered],
    )


@router.post(
    "/{pipe}/run",
    status_code=202,
    summary="Run a pipe",
    responses=documented(400, 401, 403, 404, 413, 422, 429, 503),
)
def run_pipe(principal: Manager, pipe: PipeName, body: Wish) -> PipeInfo:
    """Request a run, paused or not: it starts as soon as a place is free."""
    pipes.ask(principal.tenant, pipe, full=body.full)
    return _described(principal.tenant, pipe)


@router.post("/{pipe}/pause", summary="Pause a pipe", responses=documented(401, 403, 404, 422, 429, 503))
def pause_pipe(principal: Manager, pipe: PipeName) -> PipeInfo:
    """Pause the schedule; requested runs still start."""
    pipes.pause(principal.tenant, pipe, paused=True)
    return _described(principal.tenant, pipe)


@router.post("/{pipe}/resume", summary="Resume a pipe", responses=documented(401, 403, 404, 422, 429, 503))
def resume_pipe(principal: Manager, pipe: PipeName) -> PipeInfo:
    """Resume the schedule of a paused pipe."""
    pipes.pause(principal.tenant, pipe, paused=False)
    return _described(principal.tenant, pipe)


@router.post("/{pipe}/reset", summary="Reset a pipe", responses=documented(401, 403, 404, 422, 429, 503))
def reset_pipe(principal: Manager, pipe: PipeName) -> PipeInfo:
    """Make the next run read all rows, and delete missing entities; events stay."""
    pipes.reset(principal.tenant, pipe)
    return _described(principal.tenant, pipe)


@router.delete("/{pipe}", summary="Delete a pipe", responses=documented(401, 403, 404, 409, 422, 429, 503))
async def delete_pipe(
    request: Request,
    principal: Manager,
    pipe: PipeName,
    leave_slot: Annotated[
        bool, Query(description="Do not contact the source, which no longer exists; its slot stays.")
    ] = False,
) -> PipeDeleted:
    """Delete a pipe, and its slot in the source if it captures changes. Its dataset stays.

    What it has brought to a sink stays there.
    """
    tenant = principal.tenant
    delete = partial(pipes.delete, tenant, pipe, leave_slot=leave_slot)
    dataset = await app_state(request).change_long(tenant.tenant_id, delete)
    return PipeDeleted(pipe=pipe, dataset=dataset)


def _described(tenant: Tenant, name: str) -> PipeInfo:
    return _info(pipes.find(tenant, name))


def _info(pipe: Pipe) -> PipeInfo:
    return PipeInfo(**pipe.document)
