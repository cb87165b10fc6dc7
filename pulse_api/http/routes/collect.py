"""POST /v1/collect: events in, acknowledged by the broker before the answer."""

from functools import partial
from typing import Any, Literal
from uuid import UUID

from fastapi import Request, Response, Security
from pydantic import BaseModel, Field
from starlette.datastructures import Headers

from pulse_api.http import measures, telemetry
from pulse_api.http.app_state import AppState, app_state
from pulse_api.http.auth import KEY, Principal, authenticate, take
from pulse_api.http.collect import body as bodies
from pulse_api.http.collect import large
from pulse_api.http.collect.held import Holding
from pulse_api.http.collect.large import items_of
from pulse_api.http.collect.publisher import Unacknowledged
from pulse_api.http.collect.split import CLOUDEVENT, CLOUDEVENTS, JSON, describing
from pulse_api.http.collect.verdicts import Judging, Verdicts
from pulse_api.http.problems import ProblemError, documented
from pulse_api.http.routing import refuse_unknown_parameters, resource
from pulse_api.http.telemetry import Carried
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.quota import COUNTED
from pulse_pipelines.domain.reasons import Reason
from pulse_resources.settings import load_settings

router = resource("collect")
PATH = "/v1/collect"
USUAL_COMPRESSION = 8
"""How many times as large an honest body becomes, about."""


class Verdict(BaseModel):
    """What became of an event that was not simply accepted."""

    index: int = Field(ge=0, description="Its place in the request, from 0.")
    event_id: str | None
    status: Literal["refused", "dead_lettered"]
    reason: Reason
    pointer: str | None = Field(description="JSON pointer (RFC 6901) into the event, where there is one.")
    detail: str


class Collected(BaseModel):
    accepted: int = Field(ge=0, description="Events that will land, once each however often they are sent.")
    dead_lettered: int = Field(ge=0, description="Invalid events that their dataset takes as dead letters.")
    refused: int = Field(ge=0, description="Invalid events that were not taken; the others were.")
    verdicts: list[Verdict] = Field(description="One for each event that was dead-lettered or refused.")


EVENT: dict[str, Any] = {
    "type": "object",
    "required": ["event_id", "dataset", "timestamp", "data"],
    "properties": {
        "event_id": {
            "type": "string",
            "minLength": 1,
            "maxLength": 512,
            "description": "Unique in the dataset: sent again, it is a re-delivery and lands no second row.",
        },
        "dataset": {"type": "string", "description": "Slug of one of the tenant's datasets."},
        "timestamp": {"type": "string", "format": "date-time", "description": "When it happened."},
        "data": {"type": "object", "description": "Follows the dataset's schema."},
        "schema_version": {
            "type": ["integer", "null"],
            "description": "Version of the dataset's schema that it follows; the current one if not given.",
        },
        "context": {"description": "Kept as JSON text."},
        "trace_id": {"type": ["string", "null"]},
    },
    "example": {
        "event_id": "o-1",
        "dataset": "orders",
        "timestamp": "2026-11-19T10:00:00Z",
        "data": {"country": "DE", "amount": 12.5},
    },
}
CLOUD: dict[str, Any] = {
    "type": "object",
    "required": ["specversion", "id", "source", "type", "data"],
    "properties": {
        "specversion": {"const": "1.0"},
        "id": {"type": "string", "minLength": 1},
        "source": {"type": "string", "minLength": 1, "format": "uri-reference"},
        "type": {"type": "string", "minLength": 1, "description": "Its last part is the dataset ..."},
        "dataset": {"type": "string", "description": "... unless this extension names it."},
        "time": {"type": "string", "format": "date-time"},
        "data": {"type": "object"},
    },
}
BODY = {
    "required": True,
    "description": "One event, an array of them, or one per line (NDJSON); optionally compressed with gzip "
    "or zstd (Content-Encoding). CloudEvents 1.0 are taken structured, batched, and binary (ce- headers).",
    "content": {
        JSON: {"schema": {"anyOf": [EVENT, {"type": "array", "items": EVENT, "minItems": 1}]}},
        "application/x-ndjson": {"schema": {"type": "string", "description": "One event per line."}},
        CLOUDEVENT: {"schema": CLOUD},
        CLOUDEVENTS: {"schema": {"type": "array", "items": CLOUD, "minItems": 1}},
    },
}


@router.post(
    PATH,
    status_code=202,
    summary="Send events",
    response_model=Collected,
    dependencies=[Security(KEY)],
    openapi_extra={"requestBody": BODY},
    responses={
        202: {"description": "Every event was taken, and the broker has acknowledged all of them."},
        207: {"description": "Some events were refused, as `verdicts` says; all others were taken.",
              "model": Collected},
        **documented(400, 401, 403, 413, 415, 429, 503),
        422: documented(422)[422] | {"description": "Every event was refused, as `verdicts` says."},
    },
)  # fmt: skip
async def collect(request: Request) -> Response:
    """Events are validated, published to the tenant's topic and answered once the broker has them.

    An event that breaks its dataset's schema is refused, or taken as a dead letter where the dataset says
    `on_invalid: dead_letter`. After 503 send all events of the request again: an event id lands once, and
    counts once against the month's quota.
    """
    principal = await authenticate(request, KeyScope.COLLECT)
    refuse_unknown_parameters(request, PATH)
    here = app_state(request)
    carried = telemetry.carried(request, PATH) if here.traced else None
    tenant_id = principal.tenant.tenant_id
    with here.held.of(tenant_id) as holding:
        verdicts = await _judged(request, here, principal, holding)
        if verdicts.outgoing:
            await _publish(here, principal, verdicts, carried)
    reasons = (entry["reason"] for entry in verdicts.notable)
    measures.collected(principal.tenant.slug, verdicts.accepted, reasons)
    if verdicts.refused and not verdicts.outgoing:
        raise ProblemError(
            422, "events-refused", "every event of the request was refused", verdicts=verdicts.notable
        )
    status = 207 if verdicts.refused else 202
    return Response(verdicts.document(), status, media_type=JSON)


async def _judged(request: Request, here: AppState, principal: Principal, holding: Holding) -> Verdicts:
    """What becomes of each event; the tenant's requests take turns at it."""
    content, encoding = await _received(request, here, principal.tenant.tenant_id, holding)
    if encoding is None and here.running.short(principal.tenant.tenant_id, len(content)):
        judging = await _judged_here(here, principal, content, request.headers)
    else:
        judging = await _judged_aside(here, principal, content, encoding, request.headers)
        holding.add(0 if encoding is None else judging.size)
    while not judging.done:
        await judging.aside(principal.cached.judge)
    return judging.verdicts()


async def _received(
    request: Request, here: AppState, tenant_id: UUID, holding: Holding
) -> tuple[bytes, str | None]:
    """The body, and how it is compressed still: what is short is decompressed at once."""
    limits, encoding = load_settings().api, bodies.encoding_of(request.headers)
    content = await bodies.received(request, limits.max_body_bytes, holding)
    if encoding is None or not here.running.short(tenant_id, USUAL_COMPRESSION * len(content)):
        return content, encoding
    content = await here.running.here(tenant_id, partial(bodies.decompress, content, encoding, limits))
    holding.add(len(content))
    return content, None


async def _judged_here(here: AppState, principal: Principal, content: bytes, headers: Headers) -> Judging:
    """All events but those that are dear, in the event loop."""
    run, judge = partial(here.running.here, principal.tenant.tenant_id), principal.cached.judge

    def begin() -> Judging:
        items = items_of(content, headers)
        _count(here, principal, len(items))
        judging = Judging(items)
        judging.go_on(judge)
        return judging

    judging = await run(begin)
    while not judging.at_end:
        await run(partial(judging.go_on, judge))
    return judging


async def _judged_aside(
    here: AppState, principal: Principal, content: bytes, encoding: str | None, headers: Headers
) -> Judging:
    """The same in a worker process."""
    run, scope = partial(here.running.aside, principal.tenant.tenant_id), principal.cached.packed_scope
    judging = await run(large.begin, scope, content, encoding, describing(headers))
    _count(here, principal, judging.count)
    while not judging.at_end:
        judging = await run(large.go_on, scope, judging)
    return judging


def _count(here: AppState, principal: Principal, events: int) -> None:
    """Count a request's events against the tenant's rate. Raises ProblemError: 429 beyond it."""
    take(here, principal.tenant, "events", events, principal.cached.view.limits.events_per_second)


async def _publish(here: AppState, principal: Principal, verdicts: Verdicts, carried: Carried | None) -> None:
    tenant, limits, count = principal.tenant, principal.cached.view.limits, len(verdicts.outgoing)
    maximum = limits.max_records_per_month
    reserved = await here.reservations.reserve(tenant, verdicts.outgoing, maximum)
    if reserved is None:
        raise ProblemError(
            429,
            "quota-exceeded",
            f"the month has no room for {count} more records of {maximum:,}",
            fix="See GET /v1/usage; ask the operator for more, or wait for the next month",
        )
    headers: Carried | None = {**(carried or {}), COUNTED: b""} if reserved else carried
    try:
        await here.publisher.publish(tenant.topic, verdicts.outgoing, headers)
    except Unacknowledged as error:
        await here.reservations.release(tenant, reserved, error.sent)
        raise
