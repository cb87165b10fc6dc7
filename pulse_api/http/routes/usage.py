"""/v1/usage: the tenant's datasets, use per month, and limits."""

from datetime import date, datetime

from pydantic import BaseModel, Field

from pulse_api.http.auth import Reader
from pulse_api.http.problems import documented
from pulse_api.http.routing import resource
from pulse_pipelines.domain.quota import EVENTS, Limits, limited
from pulse_pipelines.registry import quotas

router = resource("usage", "/v1/usage")


class LimitInfo(BaseModel):
    """Positive: a maximum; -1: unlimited."""

    max_datasets: int = Field(alias="maxDatasets")
    max_records_per_month: int = Field(alias="maxRecordsPerMonth")
    max_datasets_per_month: int = Field(
        alias="maxDatasetsPerMonth", description="The same as `maxRecordsPerMonth`, by its older name."
    )
    requests_per_second: float = Field(alias="requestsPerSecond")
    events_per_second: float = Field(alias="eventsPerSecond")
    max_entity_datasets: int = Field(alias="maxEntityDatasets")
    max_lake_tables: int = Field(alias="maxLakeTables")
    max_lake_bytes: int = Field(alias="maxLakeBytes")


class Month(BaseModel):
    month: date = Field(description="Its first day, in UTC.")
    accepted: int | None = Field(
        description="Records that count in the month: accepted by the API, perhaps accepted (503), or "
        "written to the topic directly and landed; null: no quota counted them."
    )
    landed: int = Field(description="Rows that landed.")
    bytes: int = Field(description="Bytes of the files that they landed in.")
    landed_delta: int = Field(description="Rows more (or fewer) than in the tenant's month before it.")


class UsageInfo(BaseModel):
    kind: str = Field(examples=[EVENTS], description="Kind of dataset; each has quotas of its own.")
    limits: LimitInfo
    datasets: int
    remaining_datasets: int | None = Field(description="null: unlimited.")
    remaining_records: int | None = Field(description="Of this month; null: unlimited.")
    over_quota: int = Field(
        description="Events beyond the quota of their month: dead letters that can be replayed."
    )
    over_quota_since: datetime | None = Field(description="When the first of them became a dead letter.")
    months: list[Month] = Field(description="The latest first.")


def limit_info(limits: Limits) -> LimitInfo:
    return LimitInfo(
        maxDatasets=limits.max_datasets,
        maxRecordsPerMonth=limits.max_records_per_month,
        maxDatasetsPerMonth=limits.max_records_per_month,
        requestsPerSecond=limits.requests_per_second,
        eventsPerSecond=limits.events_per_second,
        maxEntityDatasets=limits.max_entity_datasets,
        maxLakeTables=limits.max_lake_tables,
        maxLakeBytes=limits.max_lake_bytes,
    )


@router.get("", summary="Usage and limits", responses=documented(401, 403, 429, 503))
def get_usage(principal: Reader) -> UsageInfo:
    """The tenant's datasets and use per month, its limits, and what remains of them."""
    usage = quotas.find_usage(principal.tenant)
    most, records = usage.limits.max_datasets, usage.limits.max_records_per_month
    return UsageInfo(
        kind=EVENTS,
        limits=limit_info(usage.limits),
        datasets=usage.datasets,
        remaining_datasets=max(0, most - usage.datasets) if limited(most) else None,
        remaining_records=max(0, records - usage.accepted_this_month) if limited(records) else None,
        over_quota=usage.over_quota,
        over_quota_since=usage.over_quota_since,
        months=[Month(**vars(month)) for month in usage.months],
    )
