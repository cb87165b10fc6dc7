"""Sweep: remove from a table's folder what nothing reaches and nobody can still make part of the table.

The order is what makes it exact. The folder is listed first, so whatever is in the list was written before
everything that follows. Then the batches in flight are read: their files are spared by name, and a batch
that settled meanwhile has its files in the table. Then the table's pointer is moved by one. That is a fence:
metadata that a paused writer staged on the old one can never become current, it has to be staged anew. Only
then is it read what the table reaches. A listed file that is in none of these can never come back. Before
each page of deletions all of it is looked at again. Ages count only in addition, by the store's own clock.

The sweep holds the table's lease, so no rewriter is at work; and it waits for no move to another schema, but
leaves the table to the next time when one is under way.
"""

from datetime import timedelta

from pyiceberg.table import Table

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake.upkeep import ancestry, objects
from pulse_pipelines.lake.upkeep.history import Done
from pulse_pipelines.lake.upkeep.reach import Reach
from pulse_pipelines.stages import rewrite
from pulse_resources import postgres, table_metadata
from pulse_resources.faults import fail_point
from pulse_resources.iceberg import Staged

PAGE = 1_000
"""Deletions between two looks at the catalog."""

IN_FLIGHT = """
SELECT DISTINCT b.batch_id FROM ingest_batches b JOIN ingest_ranges r USING (batch_id)
WHERE b.state <> 'settled' AND r.tenant_id = %s AND r.settled_at IS NULL
"""


def sweep(tenant: Tenant, dataset: Dataset, done: Done, *, min_age: timedelta, with_log: bool = True) -> None:
    """Remove the orphans of a table. The caller holds the table's lease.

    Args:
        min_age: orphans that are younger stay, by the object store's clock.
        with_log: what earlier metadata files reach stays, as far as the table's log names them.

    Raises:
        RolledBack: commits of other writers are missing; nothing is removed, so that they can be found.
        OSError: the object store failed; what was removed were orphans.
    """
    location = ancestry.verified(tenant, dataset).location()
    with rewrite.nobody_moving(dataset.dataset_id):
        found = objects.aged(location, min_age)
    spared = in_flight(tenant)
    fence(tenant, dataset, with_log=with_log)
    reach = Reach()
    table = ancestry.verified(tenant, dataset)
    reached = reach.of(table)
    orphans = [each for each in found if _is_orphan(each, reached, spared)]
    done.before = {"objects": len(found), "bytes": sum(each.bytes for each in found)}
    fail_point("upkeep.before_delete")
    removed = size = 0
    for start in range(0, len(orphans), PAGE):
        table = ancestry.verified(tenant, dataset)
        spared, reached = spared | in_flight(tenant), reach.of(table)
        victims = [each for each in orphans[start : start + PAGE] if _is_orphan(each, reached, spared)]
        objects.delete(each.path for each in victims)
        removed += len(victims)
        size += sum(each.bytes for each in victims)
    done.after = {"objects": len(found) - removed, "bytes": done.before["bytes"] - size, "removed": removed}
    done.snapshot_id = table.metadata.current_snapshot_id


def in_flight(tenant: Tenant) -> frozenset[str]:
    """Batches that may still settle something of the tenant, whoever works on them."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        return frozenset(batch for (batch,) in connection.execute(IN_FLIGHT, [tenant.tenant_id]))


def _is_orphan(each: objects.Object, reached: frozenset[str], spared: frozenset[str]) -> bool:
    return each.path not in reached and each.name.partition("-")[0] not in spared


def fence(tenant: Tenant, dataset: Dataset, *, with_log: bool) -> None:
    """Move the table to metadata that says the same: what was staged before can never be committed."""

    def stage(table: Table) -> Staged:
        document = table_metadata.read(table.metadata_location)
        new = table_metadata.write_next(document, table.metadata_location, with_log=with_log)
        return Staged(table.metadata_location, new, table.metadata.current_snapshot_id or 0)

    rewrite.commit(tenant, dataset, stage, lambda connection, staged: None)
