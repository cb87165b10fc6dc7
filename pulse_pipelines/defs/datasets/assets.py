"""One asset per dataset slug; its partitions are the days and the tenants that own the slug."""

from collections.abc import Mapping, Sequence

import dagster as dg

from pulse_pipelines.defs.datasets.backfill import rebuilt_from_raw_zone
from pulse_pipelines.defs.datasets.partitions import asset_key, partitions, tenant_partitions
from pulse_pipelines.defs.datasets.presentation import present
from pulse_pipelines.registry import Family

__all__ = ["asset_key", "dataset_assets", "partitions", "tenant_partitions"]


def dataset_assets(families: Sequence[Family], placed: Mapping[str, str]) -> list[dg.AssetsDefinition]:
    """One asset per slug: `ingest` reports each day it touched, materializing a partition rebuilds it.

    Args:
        placed: group of each slug.
    """
    return [rebuilt_from_raw_zone(slug, how) for slug, how in present(families, placed).items()]
