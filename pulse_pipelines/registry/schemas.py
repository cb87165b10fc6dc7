"""Published schemas: immutable documents, numbered by version within a name."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pulse_pipelines.domain.schemas.cost import Bound
from pulse_pipelines.domain.schemas.schema import SchemaUri, check_document
from pulse_pipelines.domain.tenant import Tenant, check_slug
from pulse_pipelines.registry.schema_bytes import check_published_bytes
from pulse_resources import postgres
from pulse_resources.errors import NotFound
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.settings import load_settings

NEXT_VERSION = (
    "SELECT coalesce(max(version), 0) + 1 FROM pdm_schemas WHERE name = %s AND tenant_id = app_tenant()"
)
SAME_DOCUMENT = """
SELECT schema_uri, name, version, published_at, document FROM pdm_schemas
WHERE name = %s AND document = %s AND tenant_id = app_tenant() ORDER BY version DESC LIMIT 1
"""
INSERT_SCHEMA = """
INSERT INTO pdm_schemas (tenant_id, name, version, schema_uri, document) VALUES (%s, %s, %s, %s, %s)
RETURNING schema_uri, name, version, published_at, document
"""
FIND_SCHEMA = """
SELECT schema_uri, name, version, published_at, document FROM pdm_schemas
WHERE schema_uri = %s AND tenant_id = app_tenant()
"""
# Lengths are read without the documents.
LIST_SCHEMAS = """
SELECT schema_uri, name, version, published_at, octet_length(document) AS bytes FROM pdm_schemas
WHERE tenant_id = app_tenant() ORDER BY name, version
"""
LOAD_SCHEMAS = """
SELECT schema_uri, name, version, published_at, document FROM pdm_schemas
WHERE name = ANY(%s) AND tenant_id = app_tenant() ORDER BY name, version
"""


@dataclass(frozen=True)
class SchemaVersion:
    """A published version without its document."""

    schema_uri: str
    name: str
    version: int
    published_at: datetime

    @property
    def version_entry(self) -> dict[str, Any]:
        """The version as lists of versions show it."""
        names = ("schema_uri", "name", "version", "published_at")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class ListedSchema(SchemaVersion):
    bytes: int
    """Length of the document."""


@dataclass(frozen=True)
class PublishedSchema(SchemaVersion):
    document: str
    """The document as published, byte for byte."""
    created: bool = False
    """Whether this call published it."""


def checked_schema(document: str) -> dict[str, Any]:
    """Parse a JSON Schema, and check that it can be published. Raises UserError."""
    ingest = load_settings().ingest
    return check_document(document, Bound(ingest.max_event_bytes, ingest.max_schema_seconds))


def publish_schema(tenant: Tenant, name: str, document: str) -> PublishedSchema:
    """Publish a JSON Schema as the next version of `name`.

    Publishing an identical document again returns its existing version.

    Raises:
        UserError: the name or the schema is not valid.
        QuotaExceeded: the tenant has published too many bytes.
    """
    check_slug("schema", name)
    checked_schema(document)
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        # Publishers of one name are serialized, so that versions have no gaps or duplicates.
        locks.wait(connection, Lock.SCHEMA, f"{tenant.tenant_id}/{name}")
        if published := postgres.select(connection, PublishedSchema, SAME_DOCUMENT, [name, document]):
            return published[0]
        next_version = connection.execute(NEXT_VERSION, [name]).fetchone()
        uri = SchemaUri(tenant.slug, name, next_version[0] if next_version else 1)
        values = [tenant.tenant_id, name, uri.version, str(uri), document]
        (schema,) = postgres.select(connection, PublishedSchema, INSERT_SCHEMA, values)
        check_published_bytes(connection, tenant)
        return replace(schema, created=True)


def find_schema(connection: postgres.Connection, tenant: Tenant, schema_uri: str) -> PublishedSchema:
    """Find a schema of the session's tenant.

    Raises:
        UserError: `schema_uri` is not a schema address.
        NotFound: the tenant has not published it, even if another tenant has.
    """
    SchemaUri.parse(schema_uri)
    schemas = postgres.select(connection, PublishedSchema, FIND_SCHEMA, [schema_uri])
    if not schemas:
        raise NotFound(
            "the tenant has not published this schema",
            fix="Publish this version first, or name one that is published",
            tenant=tenant.slug,
            schema=schema_uri,
        )
    return schemas[0]


def list_schemas(tenant: Tenant) -> list[ListedSchema]:
    """List every version of every schema of the tenant, by name and version, without the documents."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return postgres.select(connection, ListedSchema, LIST_SCHEMAS)


def load_schemas(tenant: Tenant, names: Collection[str]) -> list[PublishedSchema]:
    """Load every version of the tenant's schemas of these names, by name and version."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return postgres.select(connection, PublishedSchema, LOAD_SCHEMAS, [list(names)])
