"""One asset per dataset slug; its partitions are the days and the tenants that own the slug."""

from collections.abc import Sequence

import dagster as dg

from pulse_pipelines.defs.datasets.partitions import asset_key, partitions, tenant_partitions
from pulse_pipelines.defs.datasets.presentation import present
from pulse_pipelines.registry import Family

__all__ = ["asset_key", "dataset_assets", "partitions", "tenant_partitions"]


def dataset_assets(families: Sequence[Family]) -> list[dg.AssetSpec]:
    """An asset per slug. Rows arrive by the job `ingest`, which reports each day that it touched."""
    return [dg.AssetSpec(**presentation) for presentation in present(families).values()]
