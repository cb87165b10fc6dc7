"""POST /v1/collect: send events; the answer comes after the broker's acknowledgement."""

from typing import Literal

from fastapi import Request, Response, Security
from pydantic import BaseModel, Field

from pulse_api.http import process_metrics, telemetry
from pulse_api.http.app_state import app_state
from pulse_api.http.auth import KEY, authenticate
from pulse_api.http.collect.intake import Intake
from pulse_api.http.collect.split import CLOUDEVENT, CLOUDEVENTS, JSON, describing
from pulse_api.http.collect.verdicts import Verdicts
from pulse_api.http.openapi import CLOUD_EVENT, NDJSON, one_or_more
from pulse_api.http.origins import refuse_pages_of_others
from pulse_api.http.problems import ProblemError, documented
from pulse_api.http.routing import refuse_unknown_parameters, resource
from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.reasons import Reason

router = resource("collect")
PATH = "/v1/collect"


class Verdict(BaseModel):
    """What became of an event that was not simply accepted."""

    index: int = Field(ge=0, description="Position of the event in the request, from 0.")
    event_id: str | None
    status: Literal["refused", "dead_lettered"]
    reason: Reason
    pointer: str | None = Field(description="JSON pointer (RFC 6901) into the event, where there is one.")
    detail: str


class Ignored(BaseModel):
    """An unknown member of accepted events: no column has it, only the raw zone."""

    member: str
    events: int = Field(ge=1, description="Events of the request that have it.")
    detail: str
    fix: str


class Collected(BaseModel):
    accepted: int = Field(ge=0, description="Events that will land, once each however often they are sent.")
    dead_lettered: int = Field(ge=0, description="Invalid events that their dataset takes as dead letters.")
    refused: int = Field(ge=0, description="Invalid events that were not taken; the others were.")
    verdicts: list[Verdict] = Field(description="One for each event that was dead-lettered or refused.")
    ignored: list[Ignored] = Field(
        default=[], description="Members of accepted events that no column has, if there are any: up to 20."
    )


BODY = {
    "required": True,
    "description": "One event, an array of them, or one per line (NDJSON); optionally compressed with gzip "
    "or zstd (Content-Encoding). CloudEvents 1.0 are taken structured, batched, and binary (ce- headers): "
    "`CloudEvent` describes one.",
    "content": {
        JSON: {"schema": one_or_more("Event")},
        NDJSON: {"schema": {"type": "string", "description": "One event per line."}},
        # No schema: a Python generator makes code that fails if bodies have several types and one is a list.
        CLOUDEVENT: {"example": CLOUD_EVENT["example"]},
        CLOUDEVENTS: {"example": [CLOUD_EVENT["example"]]},
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
async def collect_events(request: Request) -> Response:
    """Events are validated, published to the tenant's topic and answered once the broker has them.

    An event that breaks its dataset's schema is refused, or taken as a dead letter where the dataset says
    `on_invalid: dead_letter`. After 503 send all events of the request again: an event id lands once, and
    counts once against the month's quota.
    """
    principal = await authenticate(request, KeyScope.COLLECT)
    refuse_pages_of_others(request, principal.tenant)
    refuse_unknown_parameters(request, PATH)
    state = app_state(request)
    intake = Intake(
        state=state,
        request=request,
        principal=principal,
        kind=DatasetKind.EVENTS,
        describing=describing(request.headers),
        records_per_month=principal.cached.view.limits.max_records_per_month,
        carried=telemetry.carried(request, PATH) if state.traced else None,
    )
    verdicts = await intake.verdicts()
    reasons = (entry["reason"] for entry in verdicts.notable)
    process_metrics.collected(principal.tenant.slug, verdicts.accepted, reasons)
    return answer(verdicts, "events")


def answer(verdicts: Verdicts, records: str) -> Response:
    """Response for a request's events or entities. Raises ProblemError: 422, all of them were refused."""
    if verdicts.refused and not verdicts.outgoing:
        detail = f"all {records} of the request were refused"
        fix = f"Correct the {records}: `verdicts` says what is wrong with each, and where"
        raise ProblemError(422, f"{records}-refused", detail, fix=fix, verdicts=verdicts.notable)
    status = 207 if verdicts.refused else 202
    return Response(verdicts.document(), status, media_type=JSON)
