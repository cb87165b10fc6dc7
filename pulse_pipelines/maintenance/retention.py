"""Retention: raw objects and claims are removed once they are older than the tenant's settings keep them.

The transaction that settles a batch registers its objects in `raw_objects`. An unregistered object of a batch
that settled for its tenant was left by a failed attempt: it is an orphan.

An event whose claim was removed lands again if it is sent again: `upkeep.claim_days` is how long a resend
is harmless. Claims of datasets that a pipe fills, or once filled, stay: it sends all of them again when it
reads all rows. Ledgers (batches, ranges, landings, rows of raw objects) are kept.
"""

import contextlib
from collections import defaultdict
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from uuid import UUID

from pulse_pipelines.claims import claim_runs
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.maintenance.history import Done
from pulse_pipelines.tables import leases, ledger
from pulse_resources import object_store, postgres
from pulse_resources.errors import Transient
from pulse_resources.object_store import Object
from pulse_resources.process.faults import fail_point
from pulse_resources.settings import load_settings

PAGE = 1_000

TOUCHED = """
SELECT DISTINCT r.slug, regexp_replace(r.path, '[^/]+$', '') FROM ingest_batches b
JOIN raw_objects r USING (batch_id)
WHERE r.tenant_id = %(tenant)s AND (%(since)s::timestamptz IS NULL OR b.settled_at > %(since)s)
"""
DATASETS = "SELECT slug, dataset_id FROM pdm_datasets WHERE tenant_id = %s"
REGISTERED = """
SELECT DISTINCT path FROM raw_objects WHERE tenant_id = %s AND slug = %s AND starts_with(path, %s)
"""
SETTLED = """
SELECT b.batch_id FROM ingest_batches b
WHERE b.batch_id = ANY(%(batches)s) AND NOT EXISTS (
    SELECT 1 FROM ingest_ranges r
    WHERE r.batch_id = b.batch_id AND r.tenant_id = %(tenant)s AND r.settled_at IS NULL)
"""
EXPIRED_SLUGS = """
SELECT DISTINCT r.slug FROM raw_objects r JOIN ingest_batches b USING (batch_id)
WHERE r.tenant_id = %s AND r.removed_at IS NULL AND b.settled_at < now() - make_interval(days => %s)
"""
# The row is marked before the object is deleted: readers of the raw zone never look for a deleted object.
REMOVE = """
UPDATE raw_objects SET removed_at = now() WHERE tenant_id = %(tenant)s AND path IN (
    SELECT r.path FROM raw_objects r JOIN ingest_batches b USING (batch_id)
    WHERE r.tenant_id = %(tenant)s AND r.slug = %(slug)s AND r.removed_at IS NULL
      AND b.settled_at < now() - make_interval(days => %(days)s)
    LIMIT %(page)s)
"""
REMOVED = """
SELECT DISTINCT path FROM raw_objects
WHERE tenant_id = %s AND removed_at IS NOT NULL AND deleted_at IS NULL LIMIT %s
"""
DELETED = "UPDATE raw_objects SET deleted_at = now() WHERE tenant_id = %s AND path = ANY(%s)"


def retain(tenant: Tenant, done: Done) -> None:
    """Remove raw objects beyond `upkeep.raw_days` and claims beyond `upkeep.claim_days`; None keeps them.

    Raises:
        OSError: the object store failed; the next run continues.
    """
    settings = load_settings().upkeep
    if settings.raw_days >= 0:
        done.after["raw_objects_removed"] = expire(tenant, settings.raw_days)
    if settings.claim_days >= 0:
        done.after["claims_removed"] = expire_claims(tenant, settings.claim_days)


def expire_claims(tenant: Tenant, days: int) -> int:
    """Delete claims that are older than `days`; returns how many."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        count, ends = claim_runs.expire(connection, tenant.tenant_id, days)
        for partition, end in ends.items():  # in the order of settle, which prevents deadlocks
            ledger.claims_expired(connection, tenant.tenant_id, partition, end)
    return count


def remove_orphans(tenant: Tenant, since: datetime | None, done: Done) -> None:
    """Remove orphans from the folders that batches settled since `since` wrote to.

    Args:
        since: by Postgres' clock; None: all folders that any batch wrote to.

    Raises:
        OSError: the object store failed; only orphans were removed.
    """
    hours = load_settings().upkeep.orphan_hours
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        values = {"tenant": tenant.tenant_id, "since": since}
        touched: dict[str, list[str]] = defaultdict(list)
        for slug, folder in connection.execute(TOUCHED, values):
            touched[slug].append(folder)
        owned = dict(connection.execute(DATASETS, [tenant.tenant_id]).fetchall())
    removed = 0
    for slug, folders in sorted(touched.items()):
        with contextlib.suppress(Transient), _exclude_rewrites(owned.get(slug, tenant.tenant_id)):
            for folder in folders:
                orphans = _orphans(tenant, slug, folder, object_store.aged(folder, timedelta(hours=hours)))
                for start in range(0, len(orphans), PAGE):
                    victims = _orphans(tenant, slug, folder, orphans[start : start + PAGE])
                    object_store.delete(victim.path for victim in victims)
                    removed += len(victims)
    finished = delete_removed(tenant)
    done.before = {"folders": sum(map(len, touched.values()))}
    done.after = {"orphans_removed": removed, "removals_finished": finished}


def _orphans(tenant: Tenant, slug: str, folder: str, objects: list[Object]) -> list[Object]:
    """Objects that are not registered although their batch settled. The order of the queries matters: what
    settles in between is registered by then."""
    names = {stored_object.name.partition("-")[0] for stored_object in objects}
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        values = {"batches": list(names), "tenant": tenant.tenant_id}
        settled = {batch for (batch,) in connection.execute(SETTLED, values)}
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        rows = connection.execute(REGISTERED, [tenant.tenant_id, slug, folder])
        registered = {path for (path,) in rows}
    return [
        stored_object
        for stored_object in objects
        if stored_object.path not in registered and stored_object.name.partition("-")[0] in settled
    ]


def expire(tenant: Tenant, days: int) -> int:
    """Remove raw objects whose batch settled more than `days` ago; returns how many were deleted.

    Objects of a dataset that is being rewritten are kept until the next run.

    Raises:
        OSError: the object store failed; the rows are marked as removed, and the next run continues.
    """
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        slugs = [slug for (slug,) in connection.execute(EXPIRED_SLUGS, [tenant.tenant_id, days])]
        owned = dict(connection.execute(DATASETS, [tenant.tenant_id]).fetchall())
    for slug in slugs:
        values = {"tenant": tenant.tenant_id, "slug": slug, "days": days, "page": PAGE}
        with contextlib.suppress(Transient), _exclude_rewrites(owned.get(slug, tenant.tenant_id)):
            while True:
                with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
                    if not connection.execute(REMOVE, values).rowcount:
                        break
    fail_point("upkeep.removed")
    return delete_removed(tenant)


def delete_removed(tenant: Tenant) -> int:
    """Delete the objects of rows marked as removed; returns how many."""
    count = 0
    while True:
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
            rows = connection.execute(REMOVED, [tenant.tenant_id, PAGE])
            paths = [path for (path,) in rows]
        if not paths:
            return count
        object_store.delete(paths)
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
            connection.execute(DELETED, [tenant.tenant_id, paths])
        count += len(paths)


def _exclude_rewrites(owner_id: UUID) -> AbstractContextManager[None]:
    """Exclude backfills, which read the raw objects of a dataset, and erasures, which replace them.

    Args:
        owner_id: the dataset; for folders without a dataset the tenant, by which its erasures lock them.

    Raises:
        Transient: a backfill or an erasure is running.
    """
    return leases.rewriting(owner_id)
