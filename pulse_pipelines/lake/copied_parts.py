"""Parts of a table's metadata that pyiceberg copies at every change, so that a commit may have few."""

from collections.abc import Mapping, Sequence

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemovePartitionStatisticsUpdate,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    RemoveStatisticsUpdate,
    SetPartitionStatisticsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    SetStatisticsUpdate,
    TableUpdate,
)

from pulse_pipelines.lake.errors import Malformed

MOST_COPIED = 1_000_000
"""Changes of a part in a commit, times its entries."""
_COPYING: Mapping[str, tuple[type[TableUpdate], ...]] = {
    "refs": (SetSnapshotRefUpdate, RemoveSnapshotRefUpdate),
    "properties": (SetPropertiesUpdate, RemovePropertiesUpdate),
    "snapshots": (AddSnapshotUpdate,),
    "statistics": (SetStatisticsUpdate, RemoveStatisticsUpdate),
    "partition_statistics": (SetPartitionStatisticsUpdate, RemovePartitionStatisticsUpdate),
}


def check(current: TableMetadata | None, updates: Sequence[TableUpdate]) -> None:
    """Raise Malformed if a commit's changes would copy too many entries.

    Args:
        current: None: the commit creates the table.
    """
    for part, kinds in _COPYING.items():
        changes = [update for update in updates if isinstance(update, kinds)]
        entries = len(getattr(current, part)) if current else 0
        entries += sum(
            len(update.updates) if isinstance(update, SetPropertiesUpdate) else 1 for update in changes
        )
        if len(changes) > 1 and len(changes) * entries > MOST_COPIED:
            noun = "branches and tags" if part == "refs" else part.replace("_", " ")
            raise Malformed(
                f"{len(changes):,} changes of {noun} are too many for a commit to this table",
                fix="Change fewer at a time",
            )
