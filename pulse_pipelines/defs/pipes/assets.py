"""Assets per pipe name, partitioned by tenant: a materialization is a run of that tenant's pipe."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from pulse_pipelines import pipes, registry
from pulse_pipelines.defs.datasets.partitions import asset_key
from pulse_pipelines.defs.datasets.presentation import groups_of_names
from pulse_pipelines.defs.pipes.places import waiting_others, way_of
from pulse_pipelines.defs.resources import Kafka, Postgres
from pulse_pipelines.domain.tenant import Tenant
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
    """Build the assets of pipe names: one definition of them all, of which runs select; empty without names.

    With an op per name, each reload of the code location took 2.7 ms per pipe (benchmarks/README.md).

    Args:
        owners: the tenant of each, by name; None: several tenants have a pipe of that name.
        read: slugs of the datasets that transforms read and that there are, by the pipes' names.
    """
    placed = groups_of_names(owners)
    about = load_settings().dagster.owners
    specs = [_spec(name, placed[name], sorted(read.get(name, ())), about) for name in owners]
    return [_definition(specs)] if specs else []


def pipe_jobs(names: Iterable[str]) -> list[Any]:
    """Build the job that runs pipes; empty without pipes."""
    keys = [pipe_key(name) for name in names]
    about = "A run of a tenant's pipe. Launched by the sensor `pipes_due`."
    return [dg.define_asset_job(JOB, keys, description=about, tags={"pulse/job": JOB})] if keys else []


def _spec(name: str, group: str, read: Iterable[str], owners: Sequence[str]) -> dg.AssetSpec:
    return dg.AssetSpec(
        pipe_key(name),
        deps=[dg.AssetDep(asset_key(slug), partition_mapping=dg.AllPartitionMapping()) for slug in read],
        description="Rows that a tenant's pipe reads, sent to its dataset as one sync, which settles with "
        "the following batches; or, for a pipe with a sink, versions of its dataset that are copied "
        "there. `pulse pipe status` shows the outcome.",
        group_name=group,
        owners=owners,
        kinds={"spark", "kafka"},
    )


def _definition(specs: Sequence[dg.AssetSpec]) -> dg.AssetsDefinition:
    @dg.multi_asset(specs=specs, can_subset=True, partitions_def=TENANTS)
    def run_pipes(
        context: dg.AssetExecutionContext, pyspark: LazyPySparkResource, kafka: Kafka, postgres: Postgres
    ) -> Iterator[dg.MaterializeResult[None]]:
        tenant = registry.find_tenant(context.partition_key)
        errors: list[Exception] = []
        for key in sorted(context.selected_asset_keys):
            try:
                with spans.exported():
                    metadata = _run(context.instance, pyspark, tenant, key.path[-1])
            except Exception as error:  # of one pipe, which keeps no other from its run
                errors.append(error)
            else:
                yield dg.MaterializeResult(asset_key=key, metadata=metadata)
        if errors:
            raise errors[0] if len(errors) == 1 else ExceptionGroup("several pipes failed", errors)

    return run_pipes


def _run(
    instance: dg.DagsterInstance, pyspark: LazyPySparkResource, tenant: Tenant, name: str
) -> dict[str, Any]:
    """Run a pipe; returns the metadata of its materialization."""
    definition = pipes.find(tenant, name).definition
    places = waiting_others(instance, tenant.slug, way_of(definition))
    if definition.delivers:
        done = deliver(tenant, name, places)
        return asdict(done.counts) | {"full": done.is_full}
    parallelism = load_settings().spark.parallelism
    sent = run(pyspark.spark_session, tenant, name, parallelism, others_wait=places)
    metadata = {"sync": sent.sync_id, "full": sent.is_full, "rows": sent.rows, "bytes": sent.bytes}
    return metadata | {"position": sent.position or ""}
