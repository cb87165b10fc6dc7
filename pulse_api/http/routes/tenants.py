"""/v1/tenants: tenants, their keys and limits, for operators."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import Path
from pydantic import AfterValidator, AliasChoices, BaseModel, Field, WithJsonSchema, model_validator

from pulse_api.http.auth import Operator
from pulse_api.http.models import Body, Name, Slug
from pulse_api.http.problems import documented
from pulse_api.http.routes.keys import NewKey, NewKeyInfo, expiry, issued
from pulse_api.http.routes.usage import LimitInfo, limit_info
from pulse_api.http.routing import resource
from pulse_pipelines import registry
from pulse_pipelines.domain.quota import (
    FASTEST,
    MOST,
    NOT_CONFIGURED,
    SLOWEST,
    UNLIMITED,
    checked_rate,
)
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import keys, quotas

router = resource("operators", "/v1/tenants")
TenantSlug = Annotated[str, Path(pattern=r"^[a-z][a-z0-9_]{0,62}$", description="The tenant's slug.")]
_RECORDS = ("maxRecordsPerMonth", "maxDatasetsPerMonth")
"""Names of one limit, the newer one first."""
Rate = Annotated[
    float,
    AfterValidator(checked_rate),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": SLOWEST, "maximum": FASTEST},
                {"enum": [UNLIMITED, NOT_CONFIGURED]},
            ]
        }
    ),
]


class NewTenant(Body):
    slug: Slug = Field(examples=["acme"])
    name: Name | None = Field(default=None, description="Display name; the slug by default.")


class TenantInfo(BaseModel):
    tenant_id: UUID
    slug: str
    namespace: str = Field(description="Iceberg namespace of its tables.")


class TenantList(BaseModel):
    tenants: list[TenantInfo]


class NewLimits(Body):
    """Positive: a maximum; -1: unlimited; 0: none configured, so the installation's default holds.

    What is not given stays as it is.
    """

    max_datasets: int | None = Field(default=None, ge=-1, le=MOST, alias="maxDatasets")
    max_records_per_month: int | None = Field(
        default=None,
        ge=-1,
        le=MOST,
        validation_alias=AliasChoices(*_RECORDS),
        description="Records per month; `maxDatasetsPerMonth` is the same.",
    )

    requests_per_second: Rate | None = Field(default=None, alias="requestsPerSecond")
    events_per_second: Rate | None = Field(default=None, alias="eventsPerSecond")
    max_entity_datasets: int | None = Field(default=None, ge=-1, le=MOST, alias="maxEntityDatasets")
    max_lake_tables: int | None = Field(default=None, ge=-1, le=MOST, alias="maxLakeTables")
    max_lake_bytes: int | None = Field(default=None, ge=-1, le=MOST, alias="maxLakeBytes")

    @model_validator(mode="before")
    @classmethod
    def _one_quota(cls, body: Any) -> Any:
        """Accept both names of the quota where they say the same, as the answer of GET has them."""
        newer, older = _RECORDS
        if not isinstance(body, dict) or not {newer, older} <= body.keys():
            return body
        if body[newer] != body[older]:
            raise ValueError(f"{newer} and {older} are the same limit: name only one of them")
        return {name: value for name, value in body.items() if name != older}


def _info(tenant: Tenant) -> TenantInfo:
    return TenantInfo(tenant_id=tenant.tenant_id, slug=tenant.slug, namespace=tenant.namespace)


@router.post(
    "", status_code=201, summary="Create a tenant", responses=documented(400, 401, 409, 413, 422, 429, 503)
)
def create_tenant(operator: Operator, body: NewTenant) -> TenantInfo:
    """Register a tenant and create its topics."""
    return _info(registry.create_tenant(body.slug, body.name))


@router.get("", summary="List tenants", responses=documented(401, 429, 503))
def list_tenants(operator: Operator) -> TenantList:
    """All tenants by slug."""
    return TenantList(tenants=[_info(tenant) for tenant in registry.list_tenants()])


@router.post(
    "/{tenant}/keys",
    status_code=201,
    summary="Issue a key of a tenant",
    responses=documented(400, 401, 404, 413, 422, 429, 503),
)
def create_tenant_key(operator: Operator, tenant: TenantSlug, body: NewKey) -> NewKeyInfo:
    """Issue a key of the tenant. Only this answer shows it."""
    owner = registry.find_tenant(tenant)
    return issued(keys.issue_key(owner, body.name, body.scopes, expiry(body.expires_in_days)))


@router.get("/{tenant}/limits", summary="Limits in force", responses=documented(401, 404, 422, 429, 503))
def get_limits(operator: Operator, tenant: TenantSlug) -> LimitInfo:
    """The tenant's own limits, or the installation's defaults where it has none."""
    return limit_info(quotas.find_limits(registry.find_tenant(tenant)))


@router.put("/{tenant}/limits", summary="Set limits", responses=documented(400, 401, 404, 413, 422, 429, 503))
def set_limits(operator: Operator, tenant: TenantSlug, body: NewLimits) -> LimitInfo:
    """Set the limits that the body names; they apply from the next request on."""
    return limit_info(quotas.set_limits(registry.find_tenant(tenant), **body.model_dump(exclude_none=True)))
