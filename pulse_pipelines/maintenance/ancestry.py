"""Ancestry check: the snapshot before a commit must be an ancestor of the snapshot after it.

When the answer to a commit is lost, Spark's catalog client may reset a table to metadata that another writer
has already replaced. So two things are compared after each of its commits: the snapshot that was current
before must be an ancestor of the current one, and the table must have all rows that the ledger landed.
"""

from dataclasses import dataclass
from datetime import date, datetime

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.maintenance.history import RolledBack
from pulse_pipelines.query.snapshots import history
from pulse_resources import iceberg, postgres
from pulse_resources.errors import Terminal

SHOWN = 50
"""Lost commits that are named, at most."""

ROWS = """
SELECT coalesce(sum(rows), 0)::bigint FROM landings WHERE tenant_id = %s AND dataset_id = %s
"""
LANDINGS = """
SELECT batch_id, day, rows, snapshot_id, metadata_location, landed_at FROM landings
WHERE tenant_id = %s AND dataset_id = %s AND snapshot_id <> ALL(%s) ORDER BY landed_at DESC LIMIT %s
"""


@dataclass(frozen=True)
class Landing:
    """Rows of a day committed by a batch, a backfill or an erasure, from the ledger."""

    batch_id: str
    day: date
    rows: int
    snapshot_id: int
    metadata_location: str
    landed_at: datetime


def verified(tenant: Tenant, dataset: Dataset, ancestor: int | None = None) -> Table:
    """Load the table and check that no commit of another writer was lost.

    Args:
        ancestor: snapshot that was current before; None: compare only with the ledger.

    Raises:
        RolledBack: a commit was lost; names the missing rows and the command that restores them.
        Terminal: the table is gone, or belongs to another dataset.
    """
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id, one_snapshot=True) as connection:
        location = iceberg.current_location(connection, (tenant.namespace, dataset.slug))
        (landed,) = connection.execute(ROWS, [tenant.tenant_id, dataset.dataset_id]).fetchone() or (0,)
    table = iceberg.load_table((tenant.namespace, dataset.slug), location)
    if table.properties.get(iceberg.DATASET_PROPERTY) != str(dataset.dataset_id):
        raise Terminal("the table is not this dataset's", tenant=tenant.slug, dataset=dataset.slug)
    rows_now = rows(table)
    if rows_now < landed or not descends(table.metadata, ancestor):
        raise _rolled_back(tenant, dataset, table, landed - rows_now, ancestor)
    return table


def rows(table: Table) -> int:
    """Row count of the current snapshot, from its manifest list."""
    snapshot = table.current_snapshot()
    return sum(
        (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
        for manifest in (snapshot.manifests(table.io) if snapshot else ())
        if manifest.content is ManifestContent.DATA
    )


def descends(metadata: TableMetadata, ancestor: int | None) -> bool:
    """Whether a snapshot is the current one or one of its ancestors."""
    return ancestor is None or any(snapshot.snapshot_id == ancestor for snapshot in history(metadata))


def _rolled_back(
    tenant: Tenant, dataset: Dataset, table: Table, missing: int, ancestor: int | None
) -> RolledBack:
    history_ids = [snapshot.snapshot_id for snapshot in history(table.metadata)]
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        values = [tenant.tenant_id, dataset.dataset_id, history_ids, SHOWN]
        candidates = postgres.select(connection, Landing, LANDINGS, values)
    if missing <= 0:  # the lost commit changed no rows, such as a compaction
        change = f"snapshot {ancestor} is no longer part of its history; no rows are missing"
        return RolledBack(f"the table was rolled back: {change}", tenant=tenant.slug, dataset=dataset.slug)
    lost: list[Landing] = []  # newest first: earlier landings may have expired from the history
    for landing in candidates:
        if sum(landing.rows for landing in lost) < missing:
            lost.append(landing)
    batches = ", ".join(f"{landing.batch_id} ({landing.rows} rows of {landing.day})" for landing in lost)
    days = [landing.day for landing in lost] or [date.min]
    return RolledBack(
        f"the table was rolled back past other writers' commits: {missing} rows of the ledger are not in it. "
        f"The latest commits that are not part of its history: {batches}",
        fix=f"pulse backfill {tenant.slug} {dataset.slug} --from {min(days)} --to {max(days)} brings them "
        "back from the raw zone. Upkeep leaves the table alone until then",
        tenant=tenant.slug,
        dataset=dataset.slug,
        snapshot=table.metadata.current_snapshot_id,
        location_before=lost[0].metadata_location if lost else None,
    )
