"""/v1/schemas: publish and read the tenant's schemas."""

import asyncio
from datetime import date, datetime
from typing import Annotated, Any

import orjson
from fastapi import Path, Query, Request, Response
from pydantic import BaseModel, Discriminator, Field, Tag

from pulse_api.http.app_state import app_state
from pulse_api.http.auth import Manager, Reader
from pulse_api.http.models import Body, Day, Slug
from pulse_api.http.problems import documented
from pulse_api.http.routing import resource
from pulse_pipelines import backfill, registry
from pulse_pipelines.domain import json_values
from pulse_pipelines.domain.event import nesting
from pulse_pipelines.domain.roles import ACTOR, EVENT_TYPE
from pulse_pipelines.domain.schemas.columns import MAX_FIELDS
from pulse_pipelines.domain.schemas.exact_numbers import check_numbers
from pulse_pipelines.domain.schemas.schema import MAX_DEPTH, SchemaUri
from pulse_pipelines.domain.schemas.shorthand import expand
from pulse_pipelines.registry import PublishedSchema
from pulse_pipelines.registry.examination import examine_schema
from pulse_resources import postgres

router = resource("schemas", "/v1/schemas", takes_schemas=True)
TRIAL_EVENTS, MAX_TRIAL_EVENTS = 10_000, 100_000
TRIAL_S = 15.0
"""How long a request validates events."""


class FromSchema(Body):
    """A JSON Schema to publish as the next version of `name`."""

    name: Slug
    schema_: dict[str, Any] = Field(
        alias="schema",
        description="JSON Schema of an event's `data`: 2020-12, or 2019-09, draft-07, -06, -04 by `$schema`.",
        examples=[{"type": "object", "properties": {"country": {"type": "string"}}}],
    )

    def document(self) -> str:
        return orjson.dumps(self.schema_).decode()


class FromFields(Body):
    """The shorthand: fields and their types."""

    name: Slug
    fields_: dict[str, str] = Field(
        alias="fields",
        min_length=1,
        max_length=MAX_FIELDS,
        description="Name to string, number, integer, boolean, timestamp or date.",
        examples=[{"country": "string", "amount": "number"}],
    )
    required: list[str] = Field(default=[], max_length=MAX_FIELDS, description="The required fields.")
    actor: str | None = Field(
        default=None,
        alias="x-pulse-actor",
        description="The field that names the actor: behaviour is summarised by it.",
    )
    event_type: str | None = Field(
        default=None,
        alias="x-pulse-type",
        description="The field that names the type of event: events are counted by it.",
    )

    def document(self) -> str:
        roles = {ACTOR: self.actor, EVENT_TYPE: self.event_type}
        named = {keyword: field for keyword, field in roles.items() if field is not None}
        return orjson.dumps(expand({"fields": self.fields_, "required": self.required} | named)).decode()


def _form(body: Any) -> str:
    """Discriminator of the two forms of a body, so that errors are reported once, for the intended form."""
    shorthand = isinstance(body, FromFields) or (
        isinstance(body, dict) and "fields" in body and "schema" not in body
    )
    return FromFields.__name__ if shorthand else FromSchema.__name__


Published = Annotated[
    Annotated[FromSchema, Tag(FromSchema.__name__)] | Annotated[FromFields, Tag(FromFields.__name__)],
    Discriminator(_form),
]


class SchemaVersion(BaseModel):
    schema_uri: str = Field(description="Its address: `pulse://<tenant>/<name>/<version>`.")
    name: str
    version: int = Field(ge=1)
    published_at: datetime


class Schema(SchemaVersion):
    schema_: dict[str, Any] = Field(
        alias="schema", description="The document of this version; it never changes."
    )


class SchemaList(BaseModel):
    schemas: list[SchemaVersion]


class ColumnInfo(BaseModel):
    field: str = Field(description="Property of the event's `data`.")
    name: str = Field(description="Column of the table.")
    type: str
    description: str


class Obstacle(BaseModel):
    """A change that keeps a dataset from moving to a schema."""

    pointer: str = Field(description="JSON pointer into the schema.")
    change: str
    reason: str


class CheckedSchema(BaseModel):
    columns: list[ColumnInfo]
    largest_event_bytes: int
    largest_event_seconds: float = Field(
        description="The most that validating an event of these bytes can take, whatever it contains."
    )
    limit_seconds: float
    incompatibilities: list[Obstacle] | None = Field(
        description="What keeps the dataset from moving to it; null: the request names no dataset."
    )


class RefusedEvent(BaseModel):
    event_id: str | None
    reason: str
    pointer: str | None = Field(description="JSON pointer into the event.")
    detail: str


class TriedSchema(BaseModel):
    """Outcomes of a day's events under a schema, re-deliveries included."""

    day: date
    events: int = Field(description="Events that were validated.")
    refused: int = Field(description="Events that the dataset's schema accepts, and this one does not.")
    refused_already: int = Field(description="Events that neither accepts.")
    examples: list[RefusedEvent] = Field(description="Three of the `refused` at most.")
    complete: bool = Field(description="False: the day has more events than were validated.")
    incompatibilities: list[Obstacle] = Field(description="What keeps the dataset from moving to it.")


async def _document(request: Request, body: Published) -> str:
    """The document to publish. Raises UserError: decoding the body has rounded a number of it."""
    content = await request.body()
    if isinstance(body, FromSchema) and nesting(content) <= MAX_DEPTH + 1:
        await asyncio.to_thread(lambda: check_numbers(json_values.exact(content)["schema"]))
    return body.document()


def _whole(version: PublishedSchema) -> Schema:
    return Schema.model_validate(version.version_entry | {"schema": orjson.loads(version.document)})


@router.post(
    "",
    status_code=201,
    summary="Publish a schema version",
    response_model=Schema,
    responses={
        200: {"model": Schema, "description": "The same document was published before; this is it."},
        201: {"description": "Published as the next version of its name."},
        **documented(400, 401, 403, 413, 422, 429, 503),
    },
)
async def publish_schema(request: Request, principal: Manager, body: Published, response: Response) -> Schema:
    """Publish a JSON Schema, or its shorthand, as the next version of `name`.

    Versions are immutable. References outside the document are refused, and so are patterns that need
    backtracking, and a schema by which judging an event could take too long; the message says what to change.
    """
    tenant = principal.tenant
    schema = await app_state(request).change(
        tenant.tenant_id, registry.publish_schema, tenant, body.name, await _document(request, body)
    )
    response.status_code = 201 if schema.created else 200
    return _whole(schema)


@router.post(
    "/check",
    summary="Check a schema",
    responses=documented(400, 401, 403, 404, 413, 422, 429, 503),
)
async def check_schema(
    request: Request,
    principal: Reader,
    body: Published,
    dataset: Annotated[Slug | None, Query(description="A dataset that is to follow the schema.")] = None,
) -> CheckedSchema:
    """Columns of a schema and the most that an event can cost, as publishing finds them; nothing is stored.

    With a dataset also what keeps it from moving to the schema. 422 says why a schema cannot be published.
    """
    tenant = principal.tenant
    examined = await app_state(request).change(
        tenant.tenant_id, examine_schema, tenant, await _document(request, body), dataset
    )
    obstacles = examined.incompatibilities
    return CheckedSchema(
        columns=[
            ColumnInfo(field=c.field, name=c.name, type=c.type.kind.value, description=c.description)
            for c in examined.examination.columns
        ],
        largest_event_bytes=examined.bound.max_bytes,
        largest_event_seconds=round(examined.examination.largest_event_seconds, 4),
        limit_seconds=examined.bound.seconds,
        incompatibilities=None if obstacles is None else [Obstacle(**vars(item)) for item in obstacles],
    )


@router.post(
    "/try",
    summary="Try a schema on a day's events",
    responses=documented(400, 401, 403, 404, 413, 422, 429, 503),
)
async def try_schema(
    request: Request,
    principal: Reader,
    body: Published,
    dataset: Annotated[Slug, Query(description="The dataset whose events to validate.")],
    day: Annotated[Day, Query(description="The day of the events' timestamps (UTC).")],
    limit: Annotated[
        int, Query(ge=1, le=MAX_TRIAL_EVENTS, description="Maximum number of events to validate.")
    ] = TRIAL_EVENTS,
) -> TriedSchema:
    """How many of a day's events an unpublished schema would refuse, with three of them; nothing is stored.

    The events are those of the raw zone. A request validates for 15 seconds at most; `pulse schema try`
    validates whole days.
    """
    tenant = principal.tenant
    trial = await app_state(request).change_long(
        tenant.tenant_id,
        backfill.try_schema,
        tenant,
        dataset,
        await _document(request, body),
        day,
        limit,
        TRIAL_S,
    )
    return TriedSchema.model_validate(trial, from_attributes=True)


@router.get("", summary="List schema versions", responses=documented(401, 403, 429, 503))
def list_schemas(principal: Reader) -> SchemaList:
    """Every version of every schema of the tenant, by name and version."""
    schemas = registry.list_schemas(principal.tenant)
    return SchemaList(schemas=[SchemaVersion.model_validate(schema.version_entry) for schema in schemas])


@router.get(
    "/{name}/{version}", summary="Get a schema version", responses=documented(401, 403, 404, 422, 429, 503)
)
def get_schema(
    principal: Reader,
    name: Annotated[str, Path(pattern=r"^[a-z][a-z0-9_]{0,62}$")],
    version: Annotated[int, Path(ge=1, le=999_999_999)],
) -> Schema:
    """One version with its document."""
    tenant = principal.tenant
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return _whole(registry.find_schema(connection, tenant, str(SchemaUri(tenant.slug, name, version))))
