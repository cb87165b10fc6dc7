"""Orphan files of a dataset's table: removed under the table's lease, so that no rewriter is active.

A table that is moving to another schema is skipped until the next run.
"""

from datetime import timedelta
from functools import partial

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.maintenance import ancestry
from pulse_pipelines.maintenance.history import Done
from pulse_pipelines.tables import leases, orphan_files
from pulse_resources import object_store, postgres

IN_FLIGHT = """
SELECT DISTINCT b.batch_id FROM ingest_batches b JOIN ingest_ranges r USING (batch_id)
WHERE b.state <> 'settled' AND r.tenant_id = %s AND r.settled_at IS NULL
"""


def remove_orphan_files(
    tenant: Tenant, dataset: Dataset, done: Done, *, min_age: timedelta, with_log: bool = True
) -> None:
    """Remove a table's orphans. The caller holds the table's lease.

    Args:
        min_age: younger orphans are kept, by the object store's clock.
        with_log: keep files that earlier metadata files reach, as far as the table's log names them.

    Raises:
        RolledBack: commits of other writers are missing; nothing is removed, so that they can be restored.
        OSError: the object store failed; only orphans were removed.
    """
    load_table = partial(ancestry.verified, tenant, dataset)
    location = load_table().location()
    with leases.nobody_moving(dataset.dataset_id):
        objects = object_store.aged(location, min_age)
    done.before = {"objects": len(objects), "bytes": sum(stored_object.bytes for stored_object in objects)}
    removed = orphan_files.remove(tenant, load_table, objects, partial(in_flight, tenant), with_log=with_log)
    done.after = {
        "objects": len(objects) - removed.objects,
        "bytes": done.before["bytes"] - removed.bytes,
        "removed": removed.objects,
    }
    done.snapshot_id = removed.table.metadata.current_snapshot_id


def in_flight(tenant: Tenant) -> frozenset[str]:
    """Batches that may still settle events of the tenant."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        return frozenset(batch for (batch,) in connection.execute(IN_FLIGHT, [tenant.tenant_id]))
