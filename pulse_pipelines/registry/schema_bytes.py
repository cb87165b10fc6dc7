"""Bytes of a tenant's schemas: all that a request, a batch or a process reads of them is bounded by these.

They are in the memory of the API, of Spark and of each task that has events of the tenant: 57 MB of them, 150
tables of 1,700 columns, ended Spark for want of memory, with the batches of everybody.
"""

from collections.abc import Collection
from uuid import UUID

from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres
from pulse_resources.errors import QuotaExceeded
from pulse_resources.settings import load_settings

# Lengths are read without the texts.
SCHEMA_BYTES = """
SELECT d.tenant_id, sum(octet_length(d.table_schema) + coalesce((
    SELECT sum(octet_length(o.document)) FROM dataset_versions v JOIN pdm_schemas o USING (schema_uri)
    WHERE v.dataset_id = d.dataset_id), 0))::int8
FROM pdm_datasets d WHERE d.tenant_id = ANY(%s) GROUP BY d.tenant_id
"""
LEAST_BYTES = 4096
"""A published document counts as this many bytes at least: its row and its place in lists cost, too."""
PUBLISHED_BYTES = """
SELECT coalesce(sum(greatest(octet_length(document), %s)), 0)::int8 FROM pdm_schemas
WHERE tenant_id = app_tenant()
"""


def schema_bytes(connection: postgres.Connection, tenant_ids: Collection[UUID]) -> dict[UUID, int]:
    """Bytes of the schemas of datasets, by tenant: of each version's document, and of the tables' schemas."""
    return dict(connection.execute(SCHEMA_BYTES, [list(tenant_ids)]).fetchall())


def check_schema_bytes(connection: postgres.Connection, tenant: Tenant) -> None:
    """Check the bytes of the tenant's schemas, in the transaction that has added one.

    Raises:
        QuotaExceeded: they are too many.
    """
    most = load_settings().ingest.max_tenant_schema_bytes
    used = schema_bytes(connection, [tenant.tenant_id]).get(tenant.tenant_id, 0)
    if used > most:
        raise QuotaExceeded(
            f"the schemas of the tenant's datasets would have {used:,} bytes together, and may have {most:,}",
            fix="Shorten descriptions and enums, delete a dataset, or ask the operator to raise"
            " ingest.max_tenant_schema_bytes",
            tenant=tenant.slug,
        )


def check_published_bytes(connection: postgres.Connection, tenant: Tenant) -> None:
    """Check the bytes of all versions that the tenant has published, in the transaction that has added one.

    Versions are never deleted, and a publication is compared with all versions of its name.

    Raises:
        QuotaExceeded: they are too many.
    """
    most = load_settings().api.max_published_schema_bytes
    ((used,),) = connection.execute(PUBLISHED_BYTES, [LEAST_BYTES]).fetchall()
    if used > most:
        raise QuotaExceeded(
            f"all schema versions of the tenant would have {used:,} bytes together, and may have {most:,}",
            fix="Use a version that exists, or ask the operator to raise api.max_published_schema_bytes",
            tenant=tenant.slug,
        )
