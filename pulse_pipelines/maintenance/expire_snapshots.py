"""Snapshot expiry: removes snapshots that are beyond the guaranteed time travel.

It changes metadata only. Files that become unreachable are removed by `remove_orphan_files`, under the same
rules as any other orphan.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.moments import EPOCH
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.maintenance import remove_orphan_files, state
from pulse_pipelines.maintenance.history import Done, check_none_abandoned, recorded
from pulse_pipelines.query.snapshots import history
from pulse_pipelines.tables import live_table
from pulse_pipelines.tables.commit import DatasetChange, commit
from pulse_resources import iceberg
from pulse_resources.errors import Transient
from pulse_resources.iceberg import Staged, table_metadata
from pulse_resources.settings import UpkeepSettings, load_settings


def expire(tenant: Tenant, dataset: Dataset, done: Done) -> None:
    """Expire snapshots beyond `upkeep.history_hours`, `.history_snapshots` and `.history_minimum`.

    Raises:
        Transient: other writers kept committing first, or the object store failed.
    """
    settings = load_settings().upkeep
    now = state.database_time()
    _forget(tenant, dataset, lambda metadata: beyond(metadata, now, settings), done)


def forget_history(tenant: Tenant, dataset: Dataset) -> Done:
    """Drop every snapshot but the current one, and delete at once the files that only those reached.

    The current snapshot's manifests no longer name removed files either. Data files, manifests and metadata
    files are deleted from the store on return; files of batches in flight, which hold newer events, are kept.
    The caller holds the table's lease.

    Raises:
        RolledBack: the table misses commits of other writers; nothing was removed.
        Transient: other writers kept committing first, or Spark may be at work for a process that died:
            run it again.
        OSError: the object store failed: run it again.
    """

    def older(metadata: TableMetadata) -> set[int]:
        return {snapshot.snapshot_id for snapshot in metadata.snapshots} - {metadata.current_snapshot_id or 0}

    done = Done(tenant.slug, dataset.slug, None, "forget", "only the current snapshot may stay")
    with recorded(tenant, dataset.dataset_id, done):
        check_none_abandoned(tenant, dataset)
        # Manifest entries of removed files carry the column bounds of their rows.
        live_only = commit(_LiveOnly(tenant, dataset))
        _forget(tenant, dataset, older, done, with_log=False)
        snapshots = done.before["snapshots"] - (live_only is not None)
        remove_orphan_files.remove_orphan_files(tenant, dataset, done, min_age=timedelta(0), with_log=False)
        done.before["snapshots"] = snapshots
        table = state.save_table(tenant, dataset, orphans_removed=True)
        done.after["snapshots"] = len(table.metadata.snapshots)
    return done


def beyond(metadata: TableMetadata, now: datetime, settings: UpkeepSettings) -> set[int]:
    """Snapshots to expire: too old, too many, or not an ancestor of the current one.

    The age of a snapshot counts from when it ceased to be the current one: until then time travel leads to
    it, and somebody may have begun to read it. Snapshots that branches and tags point at, which other engines
    may have made, are kept.
    """
    oldest = now - timedelta(hours=settings.history_hours)
    needed: set[int] = {ref.snapshot_id for ref in metadata.refs.values()}
    current_until = now
    for number, snapshot in enumerate(history(metadata)):
        young = current_until >= oldest
        if number >= settings.history_minimum and not (young and number < settings.history_snapshots):
            break
        needed.add(snapshot.snapshot_id)
        current_until = EPOCH + timedelta(milliseconds=snapshot.timestamp_ms)
    return {snapshot.snapshot_id for snapshot in metadata.snapshots} - needed


def _forget(
    tenant: Tenant,
    dataset: Dataset,
    choose: Callable[[TableMetadata], set[int]],
    done: Done,
    *,
    with_log: bool = True,
) -> None:
    expiry = _Expiry(tenant, dataset, choose, done, with_log)
    commit(expiry)
    current = {snapshot.snapshot_id for snapshot in live_table.current(tenant, dataset).metadata.snapshots}
    if current & expiry.expired:  # the answer to the commit was lost, and it had failed
        raise Transient("the snapshots were not expired", fix="Run it again", dataset=dataset.slug)


@dataclass
class _LiveOnly(DatasetChange):
    """Rewrites the current snapshot's manifests without entries of removed files."""

    def stage_on(self, table: Table) -> Staged | None:
        return iceberg.stage_live_only(table)


@dataclass
class _Expiry(DatasetChange):
    """Drops the chosen snapshots from a table's metadata."""

    choose: Callable[[TableMetadata], set[int]]
    done: Done
    with_log: bool
    expired: set[int] = field(default_factory=set)

    def stage_on(self, table: Table) -> Staged | None:
        metadata = table.metadata
        current, self.expired = metadata.current_snapshot_id, self.choose(metadata)
        self.done.before = {"snapshots": len(metadata.snapshots)}
        self.done.after = {"snapshots": len(metadata.snapshots) - len(self.expired)}
        self.done.snapshot_id = current
        if current is None or (self.with_log and not self.expired):
            return None
        old = table.metadata_location
        following = table_metadata.without_snapshots(table_metadata.read(old), self.expired)
        return Staged(old, table_metadata.write_next(following, old, with_log=self.with_log), current)
