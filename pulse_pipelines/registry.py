"""The registry: tenants, their published schemas and their datasets.

Everything that belongs to a tenant is written in its own RLS session. A dataset is its row, its
namespace and its table's catalog row in one transaction: all of it, or nothing.
"""

import uuid
from dataclasses import dataclass

import psycopg

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.schema import SchemaUri, check_document, columns
from pulse_pipelines.domain.tenant import Tenant, check_slug
from pulse_pipelines.stages.table import PARTITIONED_BY_DAY, PROPERTIES, table_schema
from pulse_resources import iceberg, kafka, postgres
from pulse_resources.errors import AlreadyExists, NotFound, Transient
from pulse_resources.settings import load_settings

FIND_TENANT = "SELECT tenant_id, slug FROM pdm_tenants WHERE slug = %s"
LIST_TENANTS = "SELECT tenant_id, slug FROM pdm_tenants ORDER BY slug"
INSERT_TENANT = "INSERT INTO pdm_tenants (tenant_id, slug, name) VALUES (%s, %s, %s)"
INSERT_POSITION = """
INSERT INTO ingest_positions (tenant_id, partition, planned_offset, settled_offset)
VALUES (%s, %s, 0, 0)
"""
NEXT_VERSION = "SELECT coalesce(max(version), 0) + 1 FROM pdm_schemas WHERE name = %s"
SAME_DOCUMENT = """
SELECT schema_uri FROM pdm_schemas WHERE name = %s AND document = %s ORDER BY version DESC LIMIT 1
"""
INSERT_SCHEMA = """
INSERT INTO pdm_schemas (tenant_id, name, version, schema_uri, document) VALUES (%s, %s, %s, %s, %s)
"""
FIND_SCHEMA = "SELECT document FROM pdm_schemas WHERE schema_uri = %s"
LIST_DATASETS = """
SELECT d.dataset_id, d.tenant_id, d.slug, d.name, d.schema_uri, s.document, d.table_schema
FROM pdm_datasets d JOIN pdm_schemas s USING (schema_uri) ORDER BY d.slug
"""
INSERT_DATASET = """
INSERT INTO pdm_datasets (dataset_id, tenant_id, slug, name, schema_uri, table_schema)
VALUES (%s, %s, %s, %s, %s, %s)
"""
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
OWNERS = """
SELECT d.slug, array_agg(t.slug ORDER BY t.slug)
FROM pdm_datasets d JOIN pdm_tenants t USING (tenant_id) GROUP BY d.slug ORDER BY d.slug
"""


def create_tenant(slug: str, name: str | None = None) -> Tenant:
    """Register a tenant and create its topics.

    Raises:
        UserError: the slug is not valid.
        AlreadyExists: another tenant has it.
        Transient: Kafka did not create the topics; nothing was registered.
    """
    tenant = Tenant(uuid.uuid4(), check_slug("tenant", slug))
    try:
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
            connection.execute(INSERT_TENANT, [tenant.tenant_id, slug, name or slug])
            for partition in range(load_settings().kafka.partitions_per_topic):
                connection.execute(INSERT_POSITION, [tenant.tenant_id, partition])
            kafka.create_topics([tenant.topic, tenant.dead_letter_topic])
    except psycopg.errors.UniqueViolation as error:
        raise AlreadyExists("a tenant with this slug exists", tenant=slug) from error
    return tenant


def find_tenant(slug: str) -> Tenant:
    """The tenant with this slug, for operators. Raises NotFound."""
    with postgres.transaction("pulse_pipeline") as connection:
        row = connection.execute(FIND_TENANT, [slug]).fetchone()
    if row is None:
        raise NotFound("no such tenant", fix=f"Create it with: pulse tenant create {slug}", tenant=slug)
    return Tenant(*row)


def list_tenants() -> list[Tenant]:
    """All tenants by slug, for operators."""
    with postgres.transaction("pulse_pipeline") as connection:
        return [Tenant(*row) for row in connection.execute(LIST_TENANTS)]


def publish_schema(tenant: Tenant, name: str, document: str) -> str:
    """Publish a JSON Schema as the next version of `name`; returns its address.

    Publishing the very same document again returns the address that it has.

    Raises:
        UserError: the name or the schema is not valid.
    """
    check_slug("schema", name)
    check_document(document)
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        # Two publishers of one name take turns, so that versions have no gaps and no twins.
        connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 1))", [f"{tenant.tenant_id}/{name}"]
        )
        if known := connection.execute(SAME_DOCUMENT, [name, document]).fetchone():
            return str(known[0])
        found = connection.execute(NEXT_VERSION, [name]).fetchone()
        uri = SchemaUri(tenant.slug, name, found[0] if found else 1)
        connection.execute(INSERT_SCHEMA, [tenant.tenant_id, name, uri.version, str(uri), document])
    return str(uri)


def create_dataset(tenant: Tenant, slug: str, schema_uri: str, name: str | None = None) -> Dataset:
    """Create a dataset: its row, its Iceberg namespace and its table, or nothing at all.

    Raises:
        UserError: the slug or the schema address is not valid.
        NotFound: the tenant has not published this schema.
        AlreadyExists: the tenant has a dataset with this slug.
        Transient: the object store failed; nothing was created.
    """
    check_slug("dataset", slug)
    SchemaUri.parse(schema_uri)
    bucket = load_settings().object_store.bucket
    try:
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
            found = connection.execute(FIND_SCHEMA, [schema_uri]).fetchone()
            if found is None:
                raise NotFound(
                    "the tenant has not published this schema",
                    fix="Publish it with: pulse schema publish",
                    tenant=tenant.slug,
                    schema=schema_uri,
                )
            dataset_id = uuid.uuid4()
            metadata, schema = iceberg.write_new_table(
                tenant.table_location(bucket, slug),
                table_schema(columns(check_document(found[0]))),
                PARTITIONED_BY_DAY,
                PROPERTIES | {"pulse.tenant": tenant.slug, "pulse.dataset-id": str(dataset_id)},
            )
            dataset = Dataset(
                dataset_id,
                tenant.tenant_id,
                slug,
                name or slug,
                schema_uri,
                found[0],
                schema.model_dump_json(),
            )
            connection.execute(
                INSERT_DATASET,
                [
                    dataset_id,
                    tenant.tenant_id,
                    slug,
                    dataset.name,
                    schema_uri,
                    dataset.table_schema,
                ],
            )
            connection.execute(INSERT_NAMESPACE, [iceberg.CATALOG, tenant.namespace])
            connection.execute(INSERT_TABLE, [iceberg.CATALOG, tenant.namespace, slug, metadata])
    except psycopg.errors.UniqueViolation as error:
        raise AlreadyExists(
            "the tenant has a dataset with this slug", tenant=tenant.slug, dataset=slug
        ) from error
    except OSError as error:
        raise Transient(
            f"the object store did not take the table: {error}",
            fix="Nothing was created: try again",
            tenant=tenant.slug,
            dataset=slug,
        ) from error
    return dataset


def list_datasets(tenant: Tenant) -> list[Dataset]:
    """The tenant's datasets by slug, as its own RLS session sees them."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return [Dataset(*row) for row in connection.execute(LIST_DATASETS)]


def find_dataset(tenant: Tenant, slug: str) -> Dataset:
    """One of the tenant's datasets. Raises NotFound, also for a slug that another tenant has."""
    for dataset in list_datasets(tenant):
        if dataset.slug == slug:
            return dataset
    raise NotFound("no such dataset", tenant=tenant.slug, dataset=slug)


def dataset_owners() -> dict[str, list[str]]:
    """Every dataset slug, each of which is one Dagster asset, with the tenants that own it."""
    with postgres.transaction("pulse_pipeline") as connection:
        return dict(connection.execute(OWNERS).fetchall())


@dataclass(frozen=True)
class CurrentTable:
    dataset: Dataset
    metadata_location: str


def current_table(tenant: Tenant, slug: str) -> CurrentTable:
    """A dataset and its table's current metadata, both resolved in the tenant's RLS session.

    Raises:
        NotFound: the tenant has no such dataset.
        Terminal: the dataset's table is not in the catalog.
    """
    dataset = find_dataset(tenant, slug)
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        location = iceberg.current_location(connection, (tenant.namespace, slug))
    return CurrentTable(dataset, location)
