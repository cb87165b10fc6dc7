"""Tenant views: keys, datasets and limits of a tenant, read in one transaction to serve its requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.key import ApiKey
from pulse_pipelines.domain.quota import Limits
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import keys, quotas
from pulse_pipelines.tables import dataset_rows
from pulse_resources import postgres

CHANGES = "pulse_changes"
"""Postgres channel of notifications that a view is outdated; the payload is the tenant's id, or OPERATOR."""
OPERATOR = "operator"

SELF = "SELECT tenant_id, slug FROM pdm_tenants WHERE tenant_id = %s"
NEWEST = "SELECT count(*), max(created_at) FROM pdm_datasets WHERE tenant_id = %s"


@dataclass(frozen=True)
class TenantView:
    tenant: Tenant
    keys: Mapping[str, ApiKey]
    """Those in force, by key id."""
    datasets: tuple[Dataset, ...]
    limits: Limits


def load_view(tenant_id: UUID) -> TenantView | None:
    """Load a tenant's view in its own RLS session; None if the tenant does not exist."""
    with postgres.tenant_transaction("pulse_api", tenant_id, one_snapshot=True) as connection:
        tenants = postgres.select(connection, Tenant, SELF, [tenant_id])
        if not tenants:
            return None
        return TenantView(
            tenants[0],
            {key.key_id: key for key in keys.load_keys_in_force(connection)},
            tuple(dataset_rows.read(connection, dataset_rows.OF_TENANT)),
            quotas.load_limits(connection),
        )


def is_outdated(view: TenantView) -> bool:
    """Whether the tenant has created or deleted datasets since the view was loaded, by one short query."""
    with postgres.tenant_transaction("pulse_api", view.tenant.tenant_id) as connection:
        newest = connection.execute(NEWEST, [view.tenant.tenant_id]).fetchone()
    created = [dataset.created_at for dataset in view.datasets]
    return newest != (len(created), max(created, default=None))


def load_lake_view(tenant_id: UUID) -> TenantView | None:
    """Load the view for the REST catalog: keys and limits, without datasets."""
    with postgres.tenant_transaction("pulse_lake", tenant_id, one_snapshot=True) as connection:
        tenants = postgres.select(connection, Tenant, SELF, [tenant_id])
        if not tenants:
            return None
        by_id = {key.key_id: key for key in keys.load_keys_in_force(connection)}
        return TenantView(tenants[0], by_id, (), quotas.load_limits(connection))
