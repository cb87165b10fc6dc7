"""Retention: raw objects and claims are removed when they are older than the tenant's settings keep them.

An event whose claim was removed lands again if it is sent again: `upkeep.claim_days` is how long a resend
is harmless. Claims of datasets that a pipe brings, or once brought, stay: it sends all of them again, when it
reads all rows. Ledgers (batches, ranges, landings, rows of raw objects) are kept.
"""

from pulse_pipelines.claims import claim_runs
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.maintenance import raw_retention
from pulse_pipelines.maintenance.history import Done
from pulse_pipelines.tables import ledger
from pulse_resources import postgres
from pulse_resources.settings import load_settings


def retain(tenant: Tenant, done: Done) -> None:
    """Remove raw objects beyond `upkeep.raw_days` and claims beyond `upkeep.claim_days`; None keeps them.

    Raises:
        OSError: the object store failed; the next run continues.
    """
    settings = load_settings().upkeep
    if settings.raw_days >= 0:
        done.after["raw_objects_removed"] = raw_retention.expire(tenant, settings.raw_days)
    if settings.claim_days >= 0:
        done.after["claims_removed"] = expire_claims(tenant, settings.claim_days)


def expire_claims(tenant: Tenant, days: int) -> int:
    """Delete claims that are older than `days`; returns how many."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        count, ends = claim_runs.expire(connection, tenant.tenant_id, days)
        for partition, end in ends.items():  # in the order of settle, which prevents deadlocks
            ledger.claims_expired(connection, tenant.tenant_id, partition, end)
    return count
