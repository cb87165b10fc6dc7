"""/v1/datasets/{slug}/summary: precomputed summaries of a dataset's days."""

from datetime import date, datetime
from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import BaseModel, Field

from pulse_api.http.auth import Reader
from pulse_api.http.models import DatasetSlug, Day, SnapshotId
from pulse_api.http.problems import documented
from pulse_api.http.routing import resource
from pulse_pipelines.curated.summary import MAX_DAYS, SHOWN_DAYS, summary as read_summary
from pulse_pipelines.domain import json_values

router = resource("summary", "/v1/datasets/{slug}")


class DayInfo(BaseModel):
    day: date
    computed_at: datetime | None = Field(description="null: it has not been computed yet.")
    snapshot_id: SnapshotId | None = Field(
        description="Snapshot of the dataset's table that the rows are from."
    )
    changed_since: bool = Field(
        description="Events of the day landed, or were removed, since; it will be computed again by itself."
    )
    error: str | None = Field(description="Why a team's rollup could not be computed; else null.")
    rows: list[dict[str, Any]] = Field(
        description="Grain and measures, with all digits. `daily` and `behaviour` have one row per day."
    )


class SummaryInfo(BaseModel):
    dataset: str
    rollup: str
    first: date = Field(alias="from")
    last: date = Field(alias="to", description="Included.")
    grain: list[str] = Field(description="Columns that distinguish the rows of a day.")
    days: list[DayInfo] = Field(description="Days that have events, the earliest first.")


@router.get(
    "/summary",
    summary="Get daily summaries of a dataset",
    response_model=SummaryInfo,
    responses=documented(401, 403, 404, 422, 429, 503),
)
def get_summary(
    principal: Reader,
    slug: DatasetSlug,
    rollup: Annotated[
        str,
        Query(
            pattern=r"^[a-z][a-z0-9_]{0,62}$",
            description="`daily`: counts and numbers, of every dataset. `behaviour`: actors and sessions, "
            "where the schema has `x-pulse-actor`. Or one of the rollups that your platform team added.",
        ),
    ] = "daily",
    first: Annotated[
        Day | None,
        Query(alias="from", description=f"First day (UTC); by default {SHOWN_DAYS} days up to `to`."),
    ] = None,
    last: Annotated[
        Day | None, Query(alias="to", description=f"Last day; by default today. {MAX_DAYS} days at most.")
    ] = None,
) -> Response:
    """Precomputed rows per day. Days that change, for example by late events, are recomputed by themselves.

    Each day says which snapshot of the dataset's table it was computed from, when, and whether it has changed
    since. A slug that only another tenant has is not found.
    """
    result = read_summary(principal.tenant, slug, rollup, first, last)
    content = {
        "from": result.first,
        "to": result.last,
        "dataset": slug,
        "rollup": rollup,
        "grain": result.grain,
    }
    info = SummaryInfo(**content, days=[DayInfo(**vars(day)) for day in result.days])  # type: ignore[arg-type]
    document = info.model_dump(mode="json", by_alias=True)
    for shown, day in zip(document["days"], result.days, strict=True):
        shown["rows"] = day.rows  # with all digits
    return Response(json_values.written(document), media_type="application/json")
