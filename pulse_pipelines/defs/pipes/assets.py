"""Assets per pipe name, partitioned by tenant: a materialization is a run of that tenant's pipe."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from pulse_pipelines import pipes, registry
from pulse_pipelines.defs.datasets.partitions import asset_key
from pulse_pipelines.defs.datasets.presentation import groups_of_names
from pulse_pipelines.defs.pipes.places import waiting_others, way_of
from pulse_pipelines.defs.resources import Kafka, Postgres
from pulse_pipelines.ingest import spans
from pulse_pipelines.pipes.run import run
from pulse_pipelines.pipes.sinks.run import deliver
from pulse_resources.settings import load_settings

TENANTS = dg.DynamicPartitionsDefinition(name="tenants-of-pipes")
JOB = "pipes"


def pipe_key(name: str) -> dg.AssetKey:
    return dg.AssetKey(["pipes", name])


def pipe_assets(
    owners: Mapping[str, str | None], read: Mapping[str, Collection[str]]
) -> list[dg.AssetsDefinition]:
    """Build the assets of pipe names.

    Args:
        owners: the tenant of each, by name; None: several tenants have a pipe of that name.
        read: slugs of the datasets that transforms read and that there are, by the pipes' names.
    """
    placed = groups_of_names(owners)
    return [_asset(name, placed[name], sorted(read.get(name, ()))) for name in owners]


def pipe_jobs(names: Iterable[str]) -> list[Any]:
    """Build the job that runs pipes; empty without pipes."""
    keys = [pipe_key(name) for name in names]
    about = "A run of a tenant's pipe. Launched by the sensor `pipes_due`."
    return [dg.define_asset_job(JOB, keys, description=about, tags={"pulse/job": JOB})] if keys else []


def _asset(name: str, group: str, read: Iterable[str]) -> dg.AssetsDefinition:
    @dg.asset(
        key=pipe_key(name),
        deps=[dg.AssetDep(asset_key(slug), partition_mapping=dg.AllPartitionMapping()) for slug in read],
        description="Rows that a tenant's pipe reads, sent to its dataset as one sync, which settles with "
        "the following batches; or, for a pipe with a sink, versions of its dataset that are copied "
        "there. `pulse pipe status` shows the outcome.",
        group_name=group,
        owners=load_settings().dagster.owners,
        kinds={"spark", "kafka"},
        partitions_def=TENANTS,
    )
    def pipe(
        context: dg.AssetExecutionContext, pyspark: LazyPySparkResource, kafka: Kafka, postgres: Postgres
    ) -> dg.MaterializeResult[None]:
        tenant = registry.find_tenant(context.partition_key)
        with spans.exported():
            definition = pipes.find(tenant, name).definition
            places = waiting_others(context.instance, tenant.slug, way_of(definition))
            if definition.delivers:
                done = deliver(tenant, name, places)
                return dg.MaterializeResult(metadata=asdict(done.counts) | {"full": done.is_full})
            parallelism = load_settings().spark.parallelism
            sent = run(pyspark.spark_session, tenant, name, parallelism, others_wait=places)
        metadata = {"sync": sent.sync_id, "full": sent.is_full, "rows": sent.rows, "bytes": sent.bytes}
        return dg.MaterializeResult(metadata=metadata | {"position": sent.position or ""})

    return pipe
