"""Tenants: the owners of events, schemas and datasets; registered by operators."""

import uuid

import psycopg

from pulse_pipelines.domain.naming import check_name
from pulse_pipelines.domain.tenant import SLUG, Tenant, check_slug
from pulse_pipelines.tables import ledger
from pulse_resources import kafka, postgres
from pulse_resources.errors import AlreadyExists, NotFound, meant
from pulse_resources.settings import load_settings
from pulse_resources.store_keys import vending_accounts

FIND_TENANT = "SELECT tenant_id, slug FROM pdm_tenants WHERE slug = %s"
LIST_TENANTS = "SELECT tenant_id, slug FROM pdm_tenants ORDER BY slug"
INSERT_TENANT = "INSERT INTO pdm_tenants (tenant_id, slug, name) VALUES (%s, %s, %s)"


def create_tenant(slug: str, name: str | None = None) -> Tenant:
    """Register a tenant, and create its account of the object store and its topics.

    Raises:
        UserError: the slug or the name is not valid.
        AlreadyExists: another tenant has it.
        Transient, Terminal: MinIO did not create the account, or Kafka the topics; nothing was registered.
    """
    tenant = Tenant(uuid.uuid4(), check_slug("tenant", slug))
    shown = check_name("tenant", name or slug)
    try:
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
            connection.execute(INSERT_TENANT, [tenant.tenant_id, slug, shown])
            for partition in range(load_settings().kafka.partitions_per_topic):
                ledger.add_partition(connection, tenant.tenant_id, partition)
            vending_accounts.ensure_tenant_accounts(load_settings(), [tenant.namespace])
            kafka.create_topics([tenant.topic, tenant.dead_letter_topic])
    except psycopg.errors.UniqueViolation as error:
        raise AlreadyExists(
            "a tenant with this slug exists",
            fix=f"Use it (pulse tenant show {slug}), or choose another slug",
            tenant=slug,
        ) from error
    return tenant


def find_tenant(slug: str) -> Tenant:
    """The tenant with this slug. Raises NotFound."""
    with postgres.transaction("pulse_pipeline") as connection:
        tenants = postgres.select(connection, Tenant, FIND_TENANT, [slug])
        if not tenants:
            slugs = [tenant[1] for tenant in connection.execute(LIST_TENANTS)]
            # Any other, such as a query in the place of a tenant, cannot be created.
            possible = SLUG.fullmatch(slug)
            create = (
                f"Create it with: pulse tenant create {slug}" if possible else "Look with: pulse tenant list"
            )
            raise NotFound("no such tenant", fix=meant(slug, slugs, create), tenant=slug)
    return tenants[0]


def list_tenants() -> list[Tenant]:
    """All tenants by slug."""
    with postgres.transaction("pulse_pipeline") as connection:
        return postgres.select(connection, Tenant, LIST_TENANTS)
