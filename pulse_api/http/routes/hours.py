"""/v1/hours: events of the last 24 hours by hour, of the tenant's datasets."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, Field

from pulse_api.http.auth import Reader
from pulse_api.http.models import Slug
from pulse_api.http.problems import documented
from pulse_api.http.routes.freshness import MAX_DATASETS, page_of_slugs
from pulse_api.http.routing import resource
from pulse_pipelines.curated.hours import last_hours

router = resource("datasets", "/v1/hours")


class HourInfo(BaseModel):
    start: datetime = Field(alias="from")
    events: int | None = Field(
        description="Events with a timestamp in this hour; null: its day is not computed."
    )


class HoursInfo(BaseModel):
    dataset: str
    hours: list[HourInfo] = Field(description="24, the earliest first; the last is the present hour (UTC).")
    computed_at: datetime | None = Field(
        description="When the older of the days was computed; null: none is."
    )
    changed_since: bool = Field(description="Events of these days landed, or were removed, since.")


class HoursPage(BaseModel):
    as_of: datetime = Field(description="When all of this was read.")
    datasets: list[HoursInfo] = Field(description="Datasets of events, by slug.")
    next_after: str | None = Field(description="`after` of the next page; null on the last.")


@router.get("", summary="Get events by hour", responses=documented(401, 403, 422, 429, 503))
def get_hours(
    principal: Reader,
    limit: Annotated[int, Query(ge=1, le=MAX_DATASETS, description="Maximum number of datasets.")] = 50,
    after: Annotated[Slug | None, Query(description="Only datasets whose slug comes after this one.")] = None,
) -> HoursPage:
    """Events of each dataset by hour for the last 24 hours, from its summary `daily`.

    The same counts, of any day, are in `by_hour` of GET /v1/datasets/{slug}/summary.
    """
    as_of = datetime.now(UTC)
    slugs, next_after = page_of_slugs(principal.tenant, after, limit)
    pages = last_hours(principal.tenant, slugs, as_of)
    return HoursPage(
        as_of=as_of,
        datasets=[
            HoursInfo(
                dataset=page.dataset,
                hours=[
                    HourInfo.model_validate({"from": hour.start, "events": hour.events})
                    for hour in page.hours
                ],
                computed_at=page.computed_at,
                changed_since=page.changed_since,
            )
            for page in pages
        ],
        next_after=next_after,
    )
