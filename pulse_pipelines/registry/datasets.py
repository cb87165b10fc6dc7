"""Datasets: created and deleted with their namespace and catalog row in one transaction, and looked up."""

import uuid
from collections.abc import Collection
from dataclasses import dataclass

import psycopg

from pulse_pipelines.domain import entities
from pulse_pipelines.domain.dataset import Dataset, DatasetKind, OnInvalid
from pulse_pipelines.domain.naming import check_name
from pulse_pipelines.domain.schemas.columns import columns
from pulse_pipelines.domain.schemas.schema import check_document
from pulse_pipelines.domain.tenant import Tenant, check_slug
from pulse_pipelines.registry import quotas
from pulse_pipelines.registry.schema_bytes import check_schema_bytes
from pulse_pipelines.registry.schemas import find_schema
from pulse_pipelines.tables import dataset_rows, live_table
from pulse_pipelines.tables.iceberg_schema import table_schema
from pulse_resources import iceberg, postgres
from pulse_resources.errors import AlreadyExists, Conflict, NotFound, Transient, meant
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock

SLUGS = """
SELECT slug FROM pdm_datasets WHERE tenant_id = app_tenant() AND slug COLLATE "C" > %s
    AND (%s::text IS NULL OR split_part(schema_uri, '/', 4) = %s)
ORDER BY slug COLLATE "C" LIMIT %s
"""
INSERT_DATASET = """
INSERT INTO pdm_datasets (dataset_id, tenant_id, slug, name, schema_uri, table_schema, on_invalid, kind)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
"""
INSERT_VERSION = """
INSERT INTO dataset_versions (tenant_id, dataset_id, version, schema_uri) VALUES (%s, %s, %s, %s)
ON CONFLICT DO NOTHING
"""
INSERT_LOG = "INSERT INTO entity_logs (tenant_id, dataset_id) VALUES (%s, %s)"
INSERT_NAMESPACE = """
INSERT INTO iceberg_catalog.iceberg_namespace_properties
    (catalog_name, namespace, property_key, property_value)
VALUES (%s, %s, 'exists', 'true') ON CONFLICT DO NOTHING
"""
INSERT_TABLE = """
INSERT INTO iceberg_catalog.iceberg_tables
    (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)
VALUES (%s, %s, %s, %s, 'TABLE')
"""
# For the lock that serializes writers and deleters of a dataset's summaries.
DATASET_ID = "SELECT dataset_id FROM pdm_datasets WHERE slug = %s AND tenant_id = app_tenant()"
DELETE_DATASET = """
DELETE FROM pdm_datasets WHERE slug = %s AND tenant_id = app_tenant() RETURNING dataset_id, kind
"""
DELETE_TABLE = """
DELETE FROM iceberg_catalog.iceberg_tables
WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s RETURNING metadata_location
"""
# Curated tables are called <slug>__<rollup>; a dataset of such a name is older than that rule.
DELETE_CURATED = """
DELETE FROM iceberg_catalog.iceberg_tables t
WHERE catalog_name = %s AND table_namespace = %s AND starts_with(table_name, %s)
    AND NOT EXISTS (SELECT FROM pdm_datasets d WHERE d.slug = t.table_name)
"""
REMEMBER_DELETED = """
INSERT INTO deleted_datasets (tenant_id, dataset_id, slug, metadata_location, kind)
VALUES (%s, %s, %s, %s, %s)
"""


def create_dataset(
    tenant: Tenant,
    slug: str,
    schema_uri: str,
    name: str | None = None,
    on_invalid: OnInvalid = OnInvalid.REFUSE,
    kind: DatasetKind = DatasetKind.EVENTS,
) -> Dataset:
    """Create a dataset: its row, its Iceberg namespace and its table, or nothing at all.

    Raises:
        UserError: the slug, the name or the schema address is not valid, or the schema cannot be one of
            entities.
        NotFound: the tenant has not published this schema.
        AlreadyExists: the tenant has a dataset with this slug.
        QuotaExceeded: the tenant's quota of datasets of the kind is used up, or the schemas of its datasets
            would have too many bytes.
        Transient: the object store failed; nothing was created.
    """
    check_slug("dataset", slug)
    shown = check_name("dataset", name or slug)
    try:
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
            schema = find_schema(connection, tenant, schema_uri)
            declared = columns(check_document(schema.document))
            if kind == DatasetKind.ENTITIES:
                entities.check_schema(check_document(schema.document))
            quotas.admit_dataset(connection, tenant, kind)
            dataset_id = uuid.uuid4()
            fields = table_schema(declared, kind)
            metadata, written = live_table.write_first(tenant, slug, dataset_id, fields, kind)
            values = [dataset_id, tenant.tenant_id, slug, shown, schema_uri, written.model_dump_json()]
            connection.execute(INSERT_DATASET, [*values, on_invalid.value, kind.value])
            connection.execute(INSERT_VERSION, [tenant.tenant_id, dataset_id, schema.version, schema_uri])
            check_schema_bytes(connection, tenant)
            if kind == DatasetKind.ENTITIES:
                connection.execute(INSERT_LOG, [tenant.tenant_id, dataset_id])
            connection.execute(INSERT_NAMESPACE, [iceberg.CATALOG, tenant.namespace])
            connection.execute(INSERT_TABLE, [iceberg.CATALOG, tenant.namespace, slug, metadata])
            (dataset,) = dataset_rows.read(connection, "d.dataset_id = %s", [dataset_id])
    except psycopg.errors.UniqueViolation as error:
        raise AlreadyExists(
            "the tenant has a dataset with this slug",
            fix=f"Use it (pulse dataset show {tenant.slug} {slug}), or choose another slug",
            tenant=tenant.slug,
            dataset=slug,
        ) from error
    except OSError as error:
        raise Transient(
            f"the object store did not take the table: {error}",
            fix="Nothing was created: try again",
            tenant=tenant.slug,
            dataset=slug,
        ) from error
    return dataset


def list_datasets(tenant: Tenant, slugs: Collection[str] | None = None) -> list[Dataset]:
    """The tenant's datasets by slug, as its own RLS session sees them: those with given slugs, or all."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        if slugs is None:
            return list(dataset_rows.read(connection, dataset_rows.OF_TENANT))
        return list(dataset_rows.read(connection, dataset_rows.OF_SLUGS, [list(slugs)]))


def list_slugs(tenant: Tenant, after: str | None, limit: int, schema: str | None = None) -> list[str]:
    """Slugs of the tenant's datasets, in order.

    Args:
        after: the slugs after this one; None: from the first.
        limit: maximum number of slugs.
        schema: only datasets that follow a version of the schema with this name; None: all.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return _slugs(connection, after, limit, schema)


def _slugs(
    connection: postgres.Connection, after: str | None, limit: int | None, schema: str | None
) -> list[str]:
    return [slug for (slug,) in connection.execute(SLUGS, [after or "", schema, schema, limit])]


def find_dataset(tenant: Tenant, slug: str) -> Dataset:
    """Find one of the tenant's datasets. Raises NotFound, also for the slug of another tenant's dataset."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return find_in(connection, tenant, slug)


def find_in(connection: postgres.Connection, tenant: Tenant, slug: str) -> Dataset:
    """As `find_dataset`, in a session of the tenant's."""
    for dataset in dataset_rows.read(connection, dataset_rows.OF_SLUG, [slug]):
        return dataset
    slugs = _slugs(connection, None, None, None)
    raise NotFound("no such dataset", fix=meant(slug, slugs), tenant=tenant.slug, dataset=slug)


@dataclass(frozen=True)
class DeletedDataset:
    dataset_id: uuid.UUID
    slug: str
    metadata_location: str | None
    """Location of its table's last metadata, by which any engine can still read or register the files."""


def delete_dataset(tenant: Tenant, slug: str) -> DeletedDataset:
    """Delete a dataset's row and its table's catalog row; every file stays where it is.

    Its curated tables leave the catalog, too, and its summaries are deleted. Events on their way to it become
    dead letters. The slug is free again: a new dataset under it gets a new table, folder and claims.

    Raises:
        NotFound: the tenant has no such dataset.
        Conflict: a pipe brings it, or reads it.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        if existing := connection.execute(DATASET_ID, [slug]).fetchone():
            locks.wait(connection, Lock.SUMMARIES, existing[0])
        try:
            row = connection.execute(DELETE_DATASET, [slug]).fetchone()
        except psycopg.errors.ForeignKeyViolation:
            raise Conflict(
                "a pipe writes this dataset, or copies it to a sink",
                fix="Delete the pipe first (`pulse pipe list`): it may have a slot in its source",
                tenant=tenant.slug,
                dataset=slug,
            ) from None
        if row is None:
            raise NotFound("no such dataset", tenant=tenant.slug, dataset=slug)
        table = connection.execute(DELETE_TABLE, [iceberg.CATALOG, tenant.namespace, slug]).fetchone()
        connection.execute(DELETE_CURATED, [iceberg.CATALOG, *tenant.curated_table(slug, "")])
        deleted = DeletedDataset(row[0], slug, table[0] if table else None)
        connection.execute(
            REMEMBER_DELETED,
            [tenant.tenant_id, deleted.dataset_id, slug, deleted.metadata_location, row[1]],
        )
    return deleted
