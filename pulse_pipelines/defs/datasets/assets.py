"""One asset per dataset slug; its partitions are the days and the tenants that own the slug."""

from collections.abc import Sequence

import dagster as dg

from pulse_resources.settings import load_settings


def asset_key(slug: str) -> dg.AssetKey:
    return dg.AssetKey(["lake", slug])


def tenant_partitions(slug: str) -> dg.DynamicPartitionsDefinition:
    """The tenants that own a dataset with this slug."""
    return dg.DynamicPartitionsDefinition(name=f"tenants/{slug}")


def partitions(slug: str) -> dg.MultiPartitionsDefinition:
    """Day × tenant; always address a partition by `dg.MultiPartitionKey`, never by its text."""
    start = load_settings().dagster.partitions_start.isoformat()
    return dg.MultiPartitionsDefinition(
        {
            "day": dg.DailyPartitionsDefinition(start_date=start, end_offset=1),
            "tenant": tenant_partitions(slug),
        }
    )


def dataset_assets(slugs: Sequence[str]) -> list[dg.AssetSpec]:
    """An asset per slug. Rows arrive by the job `ingest`, which reports each day that it touched."""
    return [
        dg.AssetSpec(
            asset_key(slug),
            description=f"Iceberg tables `pulse_<tenant>.{slug}`, one per tenant that has the dataset "
            f"`{slug}`, partitioned by day(timestamp). Rows land exactly once, by the job `ingest`.",
            group_name="lake",
            kinds={"iceberg", "kafka"},
            partitions_def=partitions(slug),
        )
        for slug in slugs
    ]
