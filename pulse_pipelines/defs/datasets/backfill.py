"""Assets of dataset slugs; materializing a partition rebuilds that tenant's day from the raw zone."""

from collections.abc import Mapping, Sequence
from datetime import date

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from pulse_pipelines import registry
from pulse_pipelines.backfill import Backfilled, backfill
from pulse_pipelines.defs.datasets.presentation import Presentation, present
from pulse_pipelines.defs.resources import Catalog, ObjectStore, Postgres
from pulse_pipelines.registry import Family
from pulse_resources.settings import load_settings


class BackfillConfig(dg.Config):
    schema_version: int | None = Field(
        default=None,
        description="Schema version for events that name none; by default the current one. A landed event "
        "that this version refuses keeps the version by which it landed.",
    )


def rebuilt_from_raw_zone(slug: str, presentation: Presentation) -> dg.AssetsDefinition:
    """Asset of a slug; a backfill materializes its partitions, one run each."""

    @dg.asset(**presentation)
    def dataset(
        context: dg.AssetExecutionContext,
        config: BackfillConfig,
        pyspark: LazyPySparkResource,
        object_store: ObjectStore,
        catalog: Catalog,
        postgres: Postgres,
    ) -> dg.MaterializeResult[None]:
        partition = context.partition_key
        assert isinstance(partition, dg.MultiPartitionKey)  # noqa: S101 - of `partitions`
        names = partition.keys_by_dimension
        done = backfill(
            pyspark.spark_session,
            registry.find_tenant(names["tenant"]),
            slug,
            date.fromisoformat(names["day"]),
            version=config.schema_version,
            parallelism=load_settings().spark.parallelism,
            run_id=context.run.run_id,
        )
        context.log.info("%s rows, %s of them dead letters until now", done.rows, done.dead_letters_landed)
        return dg.MaterializeResult(metadata=described(done))

    return dataset


def described(done: Backfilled) -> dict[str, dg.MetadataValue]:
    """Metadata of a backfill on the partition's page."""
    return {
        "dagster/partition_row_count": dg.MetadataValue.int(done.rows),
        "backfill": dg.MetadataValue.text(done.backfill_id),
        "schema_version": dg.MetadataValue.int(done.schema_version),
        "dead_letters_landed": dg.MetadataValue.int(done.dead_letters_landed),
        "rows_of_other_versions": dg.MetadataValue.int(done.other_versions),
        "files_before": dg.MetadataValue.int(done.files_before),
        "files": dg.MetadataValue.int(done.files_after),
        "bytes": dg.MetadataValue.int(done.bytes),
        "snapshot_id": dg.MetadataValue.text(str(done.snapshot_id)),
        "metadata_location": dg.MetadataValue.path(done.metadata_location or ""),
        "rows_per_second": dg.MetadataValue.float(round(done.rows / max(done.seconds, 0.001), 1)),
    }


def dataset_assets(families: Sequence[Family], placed: Mapping[str, str]) -> list[dg.AssetsDefinition]:
    """One asset per slug: `ingest` reports each day it touched, materializing a partition rebuilds it.

    Args:
        placed: group of each slug.
    """
    return [rebuilt_from_raw_zone(slug, how) for slug, how in present(families, placed).items()]
