"""Retention: raw objects and claims that are older than a tenant's events are remembered for.

An event whose claim is gone lands again when it is sent again: `upkeep.claim_days` is how long sending twice
is harmless. Ledgers (batches, ranges, landings, rows of raw objects) are kept.
"""

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.maintenance import raw_retention
from pulse_pipelines.maintenance.history import Done
from pulse_pipelines.tables import claims, ledger
from pulse_resources import postgres
from pulse_resources.settings import load_settings


def retain(tenant: Tenant, done: Done) -> None:
    """Remove what is older than `upkeep.raw_days` and `upkeep.claim_days` say, where they say anything.

    Raises:
        OSError: the object store failed; the next time goes on.
    """
    settings = load_settings().upkeep
    if settings.raw_days >= 0:
        done.after["raw_objects_removed"] = raw_retention.expire(tenant, settings.raw_days)
    if settings.claim_days >= 0:
        done.after["claims_removed"] = expire_claims(tenant, settings.claim_days)


def expire_claims(tenant: Tenant, days: int) -> int:
    """Delete claims that are older than so many days; returns how many."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        count, ends = claims.expire(connection, tenant.tenant_id, days)
        for partition, end in ends.items():  # in the order of settle, so no two deadlock
            ledger.claims_expired(connection, tenant.tenant_id, partition, end)
    return count
