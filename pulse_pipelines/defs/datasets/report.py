"""Report of a settled batch to Dagster: materializations, and checks of the touched datasets."""

import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence

import dagster as dg

from pulse_pipelines.defs.datasets.checks import after_batch
from pulse_pipelines.defs.datasets.partitions import asset_key, tenant_partitions
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest.stages import Settled, StagedTable
from pulse_pipelines.monitoring.batches import Effect, effect
from pulse_pipelines.runtime.dagster_internals import DagsterEventBatchMetadata


def report_batch(context: dg.OpExecutionContext, settled: Settled) -> list[str]:
    """Log a materialization per (dataset, tenant, day) and one evaluation per check and dataset.

    Returns:
        What could not be reported, with tenant and dataset; everything else was.
    """
    failed: list[str] = []
    touched: dict[str, list[StagedTable]] = defaultdict(list)
    owners: dict[str, list[Tenant]] = {}
    became = effect(settled.plan.batch_id)
    for table in settled.tables:
        touched[table.slug].append(table)
    for slug, tables in touched.items():
        owners[slug] = tenants = [settled.plan.scopes[table.tenant_id].tenant for table in tables]
        _add_partitions(context.instance, slug, tenants)
        materializations: list[dg.AssetMaterialization] = []
        for table, tenant in zip(tables, tenants, strict=True):
            try:
                materializations += _materializations(settled.plan.batch_id, became, table, tenant)
            except Exception as error:  # a problem of one tenant's table must not affect the others
                failed.append(f"tenant {tenant.slug}, dataset {slug}: {type(error).__name__}: {error}")
        log_together(context, materializations)
    for result in after_batch(context.instance, settled.plan.batch_id, owners):
        context.log_event(result)  # type: ignore[arg-type] # any user event is taken
    return failed


def _add_partitions(instance: dg.DagsterInstance, slug: str, tenants: Sequence[Tenant]) -> None:
    name = tenant_partitions(slug).name or ""
    existing = set(instance.get_dynamic_partitions(name))
    if missing := [tenant.slug for tenant in tenants if tenant.slug not in existing]:
        instance.add_dynamic_partitions(name, missing)


def _materializations(
    batch_id: str, became: Effect, table: StagedTable, tenant: Tenant
) -> Iterator[dg.AssetMaterialization]:
    for day in table.days:
        yield dg.AssetMaterialization(
            asset_key(table.slug),
            partition=dg.MultiPartitionKey({"day": str(day.day), "tenant": tenant.slug}),
            metadata={
                "dagster/partition_row_count": became.rows.get((table.dataset_id, day.day), day.rows),
                "freshness_seconds": round(became.freshness_seconds.get(tenant.tenant_id, 0.0), 1),
                "rows": day.rows,
                "duplicates": day.duplicates,
                "files": day.files,
                "bytes": day.bytes,
                "snapshot_id": str(table.snapshot_id),
                "metadata_location": dg.MetadataValue.path(table.new_location),
                "batch": batch_id,
            },
            tags={"pulse/tenant": tenant.slug},
        )


def log_together(context: dg.OpExecutionContext, materializations: Sequence[dg.AssetMaterialization]) -> None:
    """Log materializations of one asset in few inserts: one by one, Dagster logs only dozens per second.

    Dagster logs the partitions of a backfill in the same way; it writes event by event when
    DAGSTER_EVENT_BATCH_SIZE is not set.
    """
    step = context.get_step_execution_context()
    batch = str(uuid.uuid4())
    for index, materialization in enumerate(materializations, 1):
        last = index == len(materializations)
        dg.DagsterEvent.asset_materialization(step, materialization, DagsterEventBatchMetadata(batch, last))
