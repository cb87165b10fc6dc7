"""Which snapshots expire: their age counts from when they ceased to be the current one."""

from datetime import UTC, datetime, timedelta

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from pulse_pipelines.maintenance.expire_snapshots import beyond
from pulse_resources.settings import UpkeepSettings

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
SETTINGS = UpkeepSettings(history_hours=24, history_minimum=1, history_snapshots=3)


def table(*hours_ago: float, tagged: int | None = None) -> TableMetadata:
    """A table with snapshots 1, 2, ... of these ages, each the parent of the next."""
    snapshots = [
        Snapshot(
            snapshot_id=number,
            parent_snapshot_id=number - 1 or None,
            timestamp_ms=int((NOW - timedelta(hours=hours)).timestamp() * 1000),
            manifest_list="s3://pulse/a.avro",
        )
        for number, hours in enumerate(hours_ago, 1)
    ]
    branch = SnapshotRef(snapshot_id=len(snapshots), snapshot_ref_type=SnapshotRefType.BRANCH)
    refs = {"main": branch} if snapshots else {}
    if tagged:
        refs["a"] = SnapshotRef(snapshot_id=tagged, snapshot_ref_type=SnapshotRefType.TAG)
    return TableMetadataV2(
        location="s3://pulse/a",
        last_column_id=0,
        schemas=[Schema()],
        partition_specs=[UNPARTITIONED_PARTITION_SPEC],
        snapshots=snapshots,
        current_snapshot_id=len(snapshots) or None,
        refs=refs,
    )


@pytest.mark.parametrize(
    ("metadata", "expired"),
    [
        pytest.param(table(), set(), id="an empty table"),
        pytest.param(table(1_000), set(), id="the current one has no age"),
        pytest.param(table(1_000, 1), set(), id="current until an hour ago, though it is old"),
        pytest.param(table(1_000, 25), {1}, id="not current for a day"),
        pytest.param(table(1_000, 500, 1), {1}, id="only the last of the old ones was current"),
        pytest.param(table(9, 3, 2, 1), {1}, id="too many"),
        pytest.param(table(1_000, 25, tagged=1), set(), id="a tag keeps it"),
    ],
)
def test_a_snapshot_is_kept_for_a_day_after_it_was_current(
    metadata: TableMetadata, expired: set[int]
) -> None:
    assert beyond(metadata, NOW, SETTINGS) == expired
