"""Retention: raw objects and claims that are older than a tenant's events are remembered for.

An event whose claim is gone lands again when it is sent again: `upkeep.claim_days` is how long sending twice
is harmless. Ledgers (batches, ranges, landings, rows of raw objects) are kept.
"""

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake.upkeep import raw
from pulse_pipelines.lake.upkeep.history import Done
from pulse_resources import postgres
from pulse_resources.settings import load_settings

PAGE = 20_000
"""Claims of one transaction."""

# Never those of a batch in flight: its retry must find its own.
EXPIRE_CLAIMS = """
DELETE FROM processed_event_ids WHERE ctid = ANY(ARRAY(
    SELECT c.ctid FROM processed_event_ids c JOIN ingest_positions p USING (tenant_id, partition)
    WHERE c.tenant_id = %(tenant)s AND c.claimed_on < current_date - %(days)s
      AND c.event_offset < p.settled_offset
    LIMIT %(page)s))
"""


def retain(tenant: Tenant, done: Done) -> None:
    """Remove what is older than `upkeep.raw_days` and `upkeep.claim_days` say, where they say anything.

    Raises:
        OSError: the object store failed; the next time goes on.
    """
    settings = load_settings().upkeep
    if settings.raw_days >= 0:
        done.after["raw_objects_removed"] = raw.expire(tenant, settings.raw_days)
    if settings.claim_days >= 0:
        done.after["claims_removed"] = expire_claims(tenant, settings.claim_days)


def expire_claims(tenant: Tenant, days: int) -> int:
    """Delete claims that are older than so many days; returns how many."""
    values, count = {"tenant": tenant.tenant_id, "days": days, "page": PAGE}, 0
    while True:
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
            deleted = connection.execute(EXPIRE_CLAIMS, values).rowcount
        if not deleted:
            return count
        count += deleted
