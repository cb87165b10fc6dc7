"""Snapshot expiry: a table forgets snapshots that time travel no longer promises.

It changes metadata only. The files that nothing reaches then are removed by the sweep of the table's folder,
by the same exact rules as any other orphan.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.maintenance import remove_orphan_files, state
from pulse_pipelines.maintenance.history import Done, nobody_abandoned, recorded
from pulse_pipelines.query.file_pruning import EPOCH
from pulse_pipelines.query.snapshots import history
from pulse_pipelines.tables import commit, live_table
from pulse_resources import iceberg, table_metadata
from pulse_resources.errors import Transient
from pulse_resources.iceberg import Staged
from pulse_resources.settings import UpkeepSettings, load_settings


def expire(tenant: Tenant, dataset: Dataset, done: Done) -> None:
    """Forget what is beyond the promise: `upkeep.history_hours`, `.history_snapshots`, `.history_minimum`.

    Raises:
        Transient: other writers kept committing first, or the object store failed.
    """
    settings = load_settings().upkeep
    now = state.database_time()
    _forget(tenant, dataset, lambda metadata: beyond(metadata, now, settings), done)


def forget_history(tenant: Tenant, dataset: Dataset, run_id: str | None = None) -> Done:
    """Forget every snapshot but the current one, and remove at once what only they reached.

    The current one names removed files no more, either. Data files, manifests and metadata files are gone
    from the store when it returns; files of batches in flight, which hold newer events, are not touched. The
    caller holds the table's lease.

    Raises:
        RolledBack: the table misses commits of other writers; nothing was removed.
        Transient: other writers kept committing first, or Spark may be at work for a process that died:
            run it again.
        OSError: the object store failed: run it again.
    """

    def older(metadata: TableMetadata) -> set[int]:
        return {snapshot.snapshot_id for snapshot in metadata.snapshots} - {metadata.current_snapshot_id or 0}

    done = Done(
        tenant.slug, dataset.slug, None, "forget", "only the current snapshot may stay", run_id=run_id
    )
    with recorded(tenant, dataset.dataset_id, done):
        nobody_abandoned(tenant, dataset)
        # Entries of removed files have the bounds of what was in them.
        live_only = commit.commit_dataset(tenant, dataset, iceberg.stage_live_only)
        _forget(tenant, dataset, older, done, with_log=False)
        snapshots = done.before["snapshots"] - (live_only is not None)
        remove_orphan_files.remove_orphan_files(tenant, dataset, done, min_age=timedelta(0), with_log=False)
        done.before["snapshots"] = snapshots
        left = state.save_table(tenant, dataset, swept=True)
        done.after["snapshots"] = len(left.metadata.snapshots)
    return done


def beyond(metadata: TableMetadata, now: datetime, settings: UpkeepSettings) -> set[int]:
    """Snapshots that need not be kept: too old, or too many came after them; and all without descendants.

    Branches and tags, which other engines may have made, keep what they point at.
    """
    oldest = now - timedelta(hours=settings.history_hours)
    kept: set[int] = {ref.snapshot_id for ref in metadata.refs.values()}
    for number, snapshot in enumerate(history(metadata)):
        young = EPOCH + timedelta(milliseconds=snapshot.timestamp_ms) >= oldest
        if number >= settings.history_minimum and not (young and number < settings.history_snapshots):
            break
        kept.add(snapshot.snapshot_id)
    return {snapshot.snapshot_id for snapshot in metadata.snapshots} - kept


def _forget(
    tenant: Tenant,
    dataset: Dataset,
    choose: Callable[[TableMetadata], set[int]],
    done: Done,
    *,
    with_log: bool = True,
) -> None:
    gone: set[int] = set()

    def stage(table: Table) -> Staged | None:
        nonlocal gone
        current, gone = table.metadata.current_snapshot_id, choose(table.metadata)
        done.before = {"snapshots": len(table.metadata.snapshots)}
        done.after = {"snapshots": len(table.metadata.snapshots) - len(gone)}
        done.snapshot_id = current
        if current is None or (with_log and not gone):
            return None
        document = table_metadata.read(table.metadata_location)
        following = table_metadata.without_snapshots(document, gone)
        new = table_metadata.write_next(following, table.metadata_location, with_log=with_log)
        return Staged(table.metadata_location, new, current)

    commit.commit_dataset(tenant, dataset, stage)
    left = {snapshot.snapshot_id for snapshot in live_table.current(tenant, dataset).metadata.snapshots}
    if left & gone:  # the answer to the commit got lost, and it was no
        raise Transient("the snapshots were not expired", fix="Run it again", dataset=dataset.slug)
