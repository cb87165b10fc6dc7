"""Costs: tenants whose batches take minutes, however few their events, and so have batches of their own.

A batch settles as a whole at its end. Each file that it writes takes some milliseconds, and more for each
column: 3,092 events for 142 tables of 1,700 columns took 220 seconds, and every other tenant in the batch
waited. Both are a tenant's choice, by its schemas and by the days of its events.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from pulse_pipelines.domain.batch import Backlog, BatchKind
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.registry.schema_bytes import schema_bytes
from pulse_resources import postgres
from pulse_resources.settings import load_settings

MOST_SCHEMA_BYTES = 2 * 1024 * 1024
"""A tenant's schemas together (`registry.schema_bytes`): 300 tables of 50 columns."""
MOST_BATCH_SCHEMA_BYTES = 8 * 1024 * 1024
"""The schemas of all tenants of a batch, which are in Spark's memory together: as many as one tenant may have
by default. Any number of tenants can be just below `MOST_SCHEMA_BYTES`; without a bound, the batch of all of
them ends Spark for want of memory, at each attempt."""
MOST_FILE_BYTES = 4 * 1024 * 1024
"""The files of one batch, each as `FILE_BYTES` and the bytes of its table's schema: 400 usual files."""
FILE_BYTES = 10_000
REMEMBERED_S = 7_200.0
"""Seconds for which a batch of many files counts."""

OF_FILES = """
SELECT DISTINCT l.tenant_id FROM landings l LEFT JOIN pdm_datasets d USING (dataset_id)
WHERE l.tenant_id = ANY(%(tenants)s) AND l.landed_at > now() - make_interval(secs => %(remembered)s)
GROUP BY l.tenant_id, l.batch_id
HAVING sum(l.files * (%(file_bytes)s + coalesce(octet_length(d.table_schema), 0))) > %(batch_bytes)s
"""


@dataclass(frozen=True)
class TenantCosts:
    """What batches of some tenants cost."""

    costly: frozenset[UUID] = frozenset()
    """Those that have large schemas, or had a batch of many files lately."""
    schema_bytes: Mapping[UUID, int] = field(default_factory=dict)
    """By tenant (see `registry.schema_bytes`); a tenant without datasets is missing."""


def tenant_costs(tenant_ids: Collection[UUID]) -> TenantCosts:
    """Compute the costs of these tenants' batches, in two queries."""
    values = {
        "tenants": list(tenant_ids),
        "batch_bytes": MOST_FILE_BYTES,
        "file_bytes": FILE_BYTES,
        "remembered": REMEMBERED_S,
    }
    if not tenant_ids:
        return TenantCosts()
    with postgres.transaction("pulse_pipeline") as connection:
        of_files = {tenant_id for (tenant_id,) in connection.execute(OF_FILES, values)}
        sizes = schema_bytes(connection, tenant_ids)
    wide = {tenant_id for tenant_id, size in sizes.items() if size > MOST_SCHEMA_BYTES}
    return TenantCosts(frozenset(of_files | wide), sizes)


def file_bytes(dataset: Dataset) -> int:
    """What a data file of a dataset costs, as the bytes of schemas that take as long."""
    return FILE_BYTES + len(dataset.table_schema)


def batch_kind(backlogs: Collection[Backlog], costs: TenantCosts) -> BatchKind:
    """The kind of a batch that takes from these backlogs, whose tenants have these costs."""
    if any(backlog.tenant_id in costs.costly for backlog in backlogs):
        return BatchKind.COSTLY
    flush_rows = load_settings().ingest.flush_rows
    return BatchKind.BULK if any(b.is_bulk(flush_rows) for b in backlogs) else BatchKind.QUICK
