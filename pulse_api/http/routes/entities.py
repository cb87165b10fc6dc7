"""/v1/datasets/{slug}/entities: push entities, and read their log from a reader's position."""

import re
from dataclasses import replace
from typing import Annotated

from fastapi import Query, Request, Response, Security

from pulse_api.http import process_metrics, telemetry
from pulse_api.http.app_state import AppState, Kind, app_state
from pulse_api.http.auth import KEY, Principal, Reader, authenticate
from pulse_api.http.collect import entities, parts
from pulse_api.http.collect.intake import Intake
from pulse_api.http.collect.split import JSON
from pulse_api.http.collect.verdicts import Verdicts
from pulse_api.http.models import DatasetSlug, SubsetOf
from pulse_api.http.openapi import NDJSON, one_or_more
from pulse_api.http.problems import documented
from pulse_api.http.routes.collect import Collected, answer
from pulse_api.http.routing import refuse_unknown_parameters, resource
from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.entities import CONTINUATION
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.quota import UNLIMITED
from pulse_pipelines.domain.requests import MAX_VERSIONS
from pulse_pipelines.entities import syncs
from pulse_pipelines.query import versions
from pulse_resources.errors import Conflict, NotFound, meant

router = resource("entities", "/v1/datasets/{slug}", Kind.PREVIEW)
PATH = "/v1/datasets/{slug}/entities"
NEXT = "Pulse-Since"
"""Header with the start of the next page."""
DEFAULT_LIMIT = 1_000
TAKES_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", re.IGNORECASE)

BODY = {
    "required": True,
    "description": "One entity, an array of them, or one per line (NDJSON); optionally compressed with gzip "
    "or zstd (Content-Encoding).",
    "content": {
        JSON: {"schema": one_or_more("Entity")},
        NDJSON: {"schema": {"type": "string", "description": "One entity per line."}},
    },
}


@router.post(
    "/entities",
    status_code=202,
    summary="Push entities",
    response_model=Collected,
    dependencies=[Security(KEY)],
    openapi_extra={"requestBody": BODY, "parameters": parts.PARAMETERS},
    responses={
        202: {"description": "Every entity was taken, and the broker has acknowledged all of them."},
        207: {"description": "Some entities were refused, as `verdicts` says; all others were taken.",
              "model": Collected},
        **documented(400, 401, 403, 404, 409, 413, 415, 429, 503),
        422: documented(422)[422] | {"description": "Every entity was refused, as `verdicts` says."},
    },
)  # fmt: skip
async def push_entities(request: Request, slug: DatasetSlug) -> Response:
    """Push entities: new, changed and deleted ones become versions of the log; unchanged ones are counted.

    In a verdict, `event_id` is the entity's `_id`. Pushing them again, as after 503, changes nothing.

    With `sequence_id` and `request_id` it is a part of a sync, which has to follow the previous part (else
    409). A part may be empty: a request without a body, or with `[]`. A part that was answered with 4xx or
    503 was not accepted.
    """
    principal = await authenticate(request, KeyScope.COLLECT)
    refuse_unknown_parameters(request, PATH)
    principal = await _of_entities(app_state(request), principal, slug)
    if (part := parts.part_of(request)) is None:
        return answer(await _verdicts(request, principal, slug), "entities")
    state, tenant = app_state(request), principal.tenant
    opened_part = await state.sync_part(tenant.tenant_id, syncs.begin, tenant, slug, part)
    verdicts = await _verdicts(request, principal, slug, opened_part)
    if verdicts.outgoing or not verdicts.refused:
        refused = [verdict["event_id"] for verdict in verdicts.notable if verdict["status"] == "refused"]
        await state.sync_part(tenant.tenant_id, syncs.finish, tenant, slug, opened_part, refused)
    return answer(verdicts, "entities")


async def _verdicts(
    request: Request, principal: Principal, slug: str, part: syncs.OpenedPart | None = None
) -> Verdicts:
    """Verdicts on the entities of a request, once the broker has acknowledged the accepted ones."""
    state = app_state(request)
    intake = Intake(
        state=state,
        request=request,
        principal=principal,
        kind=DatasetKind.ENTITIES,
        describing=entities.describing(request.headers, slug, of_sync=part is not None),
        records_per_month=UNLIMITED,
        carried=telemetry.carried(request, PATH) if state.traced else None,
        publishes=part is None or not part.repeated,
    )
    verdicts = await intake.verdicts()
    verdicts.notable = entities.translated(verdicts.notable)
    reasons = (entry["reason"] for entry in verdicts.notable)
    process_metrics.collected(principal.tenant.slug, verdicts.accepted, reasons)
    return verdicts


async def _of_entities(state: AppState, principal: Principal, slug: str) -> Principal:
    """The caller, who has this dataset of entities. Raises NotFound: no such one; Conflict: of events."""
    by_slug = {dataset.slug: dataset for dataset in principal.cached.view.datasets}
    if slug not in by_slug and (now := await state.views.changed(principal.cached)) is not None:
        principal = replace(principal, cached=now)
        by_slug = {dataset.slug: dataset for dataset in now.view.datasets}
    where = {"tenant": principal.tenant.slug, "dataset": slug}
    if (dataset := by_slug.get(slug)) is None:
        raise NotFound("no such dataset", fix=meant(slug, by_slug), **where)
    if not dataset.of_entities:
        fix = "Send events with POST /v1/collect, or create a dataset of the kind entities"
        raise Conflict("the dataset holds events, not entities", fix=fix, **where)
    return principal


@router.get(
    "/entities",
    summary="Read a log of entities",
    response_class=Response,
    responses={
        200: {
            "description": "Versions in the order of `_updated`, one a line; empty at the end of the log.",
            "content": {NDJSON: {"schema": {"type": "string"}}},
            "headers": {
                NEXT: {"description": "`since` of the next page.", "schema": {"type": "string"}},
            },
        },
        **documented(401, 403, 404, 409, 422, 429, 503),
    },
)
async def read_entities(
    request: Request,
    principal: Reader,
    slug: DatasetSlug,
    since: Annotated[
        str | None,
        Query(pattern=CONTINUATION, description=f"{NEXT} of the previous page; if omitted, the start."),
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=MAX_VERSIONS, description="Maximum number of versions.")
    ] = DEFAULT_LIMIT,
    subset: SubsetOf = None,
) -> Response:
    """Read every version once, however often a reader stops and continues.

    A log that was rebuilt has another generation: the answer is 409, with the `since` to start from. Pages
    are compressed with gzip if Accept-Encoding allows it. The log of a `subset` has the versions that are
    in it, and a deletion for each entity that leaves it.
    """
    packed = bool(TAKES_GZIP.search(request.headers.get("accept-encoding", "")))
    page = await app_state(request).previews.run(
        versions.page,
        principal.tenant,
        slug,
        since,
        limit,
        packed,
        subset,
        principal.key_id if subset is not None else None,
    )
    headers = {NEXT: page.following, "Vary": "Accept-Encoding"}
    if packed:
        headers["Content-Encoding"] = "gzip"
    return Response(page.lines, media_type=NDJSON, headers=headers)
