"""Sensor that reports backfills made by `pulse backfill` to Dagster."""

import json
from datetime import UTC, datetime

import dagster as dg

from pulse_pipelines.backfill import history
from pulse_pipelines.backfill.history import Made
from pulse_pipelines.defs.datasets.partitions import asset_key

PAGE = 200
"""Events per tick: Dagster writes them one by one."""


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Reports days that `pulse backfill` rebuilt as materializations of their partitions, so "
    "that the grid shows them like backfills that were launched here.",
)
def cli_backfill_events(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    cursor = json.loads(context.cursor) if context.cursor else {}
    since = datetime.fromisoformat(cursor["since"]) if cursor else datetime(2000, 1, 1, tzinfo=UTC)
    reported: dict[str, str] = cursor.get("seen", {})
    backfills = history.by_hand(since, reported, PAGE)
    if not backfills:
        return dg.SkipReason("no backfill was made by hand since the last look")
    since = max(since, backfills[-1].settled_at)
    reported |= {backfill.backfill_id: backfill.settled_at.isoformat() for backfill in backfills}
    recent = {
        name: at for name, at in reported.items() if datetime.fromisoformat(at) > since - history.OVERLAP
    }
    return dg.SensorResult(
        asset_events=[_materialization(backfill) for backfill in backfills],
        cursor=json.dumps({"since": since.isoformat(), "seen": recent}),
    )


def _materialization(backfill: Made) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(
        asset_key(backfill.dataset),
        partition=dg.MultiPartitionKey({"day": str(backfill.day), "tenant": backfill.tenant}),
        metadata={
            "dagster/partition_row_count": backfill.rows,
            "backfill": backfill.backfill_id,
            "schema_version": backfill.schema_version,
            "dead_letters_landed": backfill.dead_letters_landed,
            "files": backfill.files,
            "bytes": backfill.bytes,
            "snapshot_id": str(backfill.snapshot_id),
        },
        tags={"pulse/tenant": backfill.tenant},
    )
