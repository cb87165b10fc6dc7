"""One asset per dataset slug and rollup, downstream of the dataset, with the same partitions."""

from collections.abc import Collection, Mapping, Sequence
from datetime import date

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from pulse_pipelines import registry
from pulse_pipelines.curated import rollups
from pulse_pipelines.curated.behaviour import behaviour
from pulse_pipelines.curated.commit import Curated
from pulse_pipelines.curated.daily import DAILY
from pulse_pipelines.curated.due import of_day
from pulse_pipelines.curated.rollup import Rollup
from pulse_pipelines.curated.run import curate
from pulse_pipelines.curated.sqlfile import TeamRollup
from pulse_pipelines.defs.datasets.partitions import asset_key, partitions
from pulse_pipelines.defs.resources import Catalog, Postgres
from pulse_pipelines.domain.tenant import CURATED
from pulse_pipelines.registry import Family
from pulse_resources import iceberg
from pulse_resources.errors import NotFound, Terminal, Transient
from pulse_resources.settings import load_settings

POOL = "curated"
"""Concurrency pool of one run: a second run would only compete for the same cores."""
COMPUTED = "computed"

FAILS = (
    "Every day that was looked at could be computed. When it fails: the problems name the SQL file, the "
    "tenant and the day; correct the file, and the days are computed again by themselves."
)


def curated_key(slug: str, rollup: str) -> dg.AssetKey:
    return dg.AssetKey(["curated", slug, rollup])


def curated_assets(
    families: Sequence[Family],
    team: Sequence[TeamRollup],
    placed: Mapping[str, str],
    acting: Collection[str] | None = None,
) -> list[dg.AssetsDefinition]:
    """Assets of families: `daily`, `behaviour` if some tenant's schema names an actor, teams' rollups.

    Args:
        placed: group of each slug's dataset, which shows what is derived from it, too.
        acting: slugs with a schema that names an actor; None: as the registry has it.
    """
    if acting is None:
        acting = rollups.slugs_with_actor([family.slug for family in families]) if families else ()
    acts = behaviour(load_settings().curated.session_gap_minutes)
    assets: list[dg.AssetsDefinition] = []
    for family in families:
        of_team = [rollup for rollup in team if rollup.dataset == family.slug]
        for rollup in (DAILY, *([acts] if family.slug in acting else []), *of_team):
            assets.append(_asset(family, rollup, placed[family.slug]))
    return assets


def _asset(family: Family, rollup: Rollup, group: str) -> dg.AssetsDefinition:
    slug = family.slug

    @dg.asset(
        key=curated_key(slug, rollup.name),
        deps=[asset_key(slug)],
        description=_description(slug, rollup),
        group_name=group,
        owners=load_settings().dagster.owners,
        kinds={"iceberg", "spark", "postgres"},
        tags={"pulse/zone": "curated", "pulse/rollup": rollup.name},
        metadata=_metadata(slug, rollup),
        partitions_def=partitions(slug, family.first_day),
        check_specs=[dg.AssetCheckSpec(COMPUTED, asset=curated_key(slug, rollup.name), description=FAILS)],
        pool=POOL,
    )
    def curated(  # Dagster takes no MaterializeResult[None] beside checks
        context: dg.AssetExecutionContext, pyspark: LazyPySparkResource, catalog: Catalog, postgres: Postgres
    ) -> dg.MaterializeResult:  # type: ignore[type-arg]
        partition = context.partition_key
        assert isinstance(partition, dg.MultiPartitionKey)  # noqa: S101 - of `partitions`
        names = partition.keys_by_dimension
        tenant = registry.find_tenant(names["tenant"])
        dataset, day = registry.find_dataset(tenant, slug), date.fromisoformat(names["day"])
        # Files are read at run time: a corrected one needs no reload of the code.
        selected = [r for r in rollups.of_dataset(dataset, rollups.team_rollups()) if r.name == rollup.name]
        if not selected:
            raise NotFound(
                "the dataset has no such rollup", tenant=tenant.slug, dataset=slug, rollup=rollup.name
            )
        done = curate(pyspark.spark_session, [of_day(tenant, dataset, day, selected[0])])
        if done.failures:
            raise Transient(str(done.failures[0]))
        for computed in done.days:
            if computed.error:
                raise Terminal(computed.error, fix="Correct the file")
            return dg.MaterializeResult(
                metadata=described(computed),
                check_results=[dg.AssetCheckResult(passed=True, check_name=COMPUTED)],
            )
        raise Transient("the day was computed from later rows meanwhile, or the dataset deleted")

    return curated


def described(done: Curated) -> dict[str, dg.MetadataValue]:
    """Metadata of a computed day on its partition's page."""
    return {
        "dagster/partition_row_count": dg.MetadataValue.int(done.rows),
        "computed_from_snapshot": dg.MetadataValue.text(str(done.snapshot_id)),
        "metadata_location": dg.MetadataValue.path(done.metadata_location or ""),
    }


def _description(slug: str, rollup: Rollup) -> str:
    broken = f"**This rollup is broken**: {rollup.problem}\n\n" if rollup.problem else ""
    grain = f"A row per {', '.join(rollup.grain)} and day." if rollup.grain else "A row per day."
    source = f" From `{rollup.source}`." if rollup.source else ""
    return (
        f"{broken}{rollup.description}\n\n{grain}{source} Computed from `{slug}` by itself when a day "
        "changes, also by late events; materialize a partition to compute it now. Served at "
        f"`/v1/datasets/{slug}/summary?rollup={rollup.name}` and as an Iceberg table."
    )


def _metadata(slug: str, rollup: Rollup) -> dict[str, object]:
    name = f"{iceberg.CATALOG}.pulse_<tenant>.{slug}{CURATED}{rollup.name}"
    metadata: dict[str, object] = {"dagster/table_name": name, "dagster/storage_kind": "iceberg"}
    if rollup.schema is not None:
        columns = [
            dg.TableColumn(field.name, str(field.field_type), description=rollup.columns.get(field.name))
            for field in rollup.schema.fields
        ]
    else:
        about = f"There is a row for each {', '.join(rollup.grain)} of a day"
        grain = [dg.TableColumn(name, "by the query", description=about) for name in rollup.grain]
        columns = [dg.TableColumn("day", "date", description="The day that was computed, in UTC"), *grain]
    return metadata | {"dagster/column_schema": dg.TableSchema(columns), "source": rollup.source or "Pulse"}
