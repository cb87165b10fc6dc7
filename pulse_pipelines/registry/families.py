"""Families: all tenants' datasets of one slug, which are one asset in Dagster."""

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres
from pulse_resources.settings import load_settings

MEMBERS = """
SELECT d.slug, t.tenant_id, t.slug, d.dataset_id, d.name, d.schema_uri, d.table_schema
FROM pdm_datasets d JOIN pdm_tenants t USING (tenant_id)
WHERE %(slugs)s::text[] IS NULL OR d.slug = ANY(%(slugs)s) ORDER BY d.slug, t.slug
"""
OUTLINES = """
SELECT d.slug, min(t.slug), count(*),
    sum(hashtextextended(concat_ws(' ', dataset_id, schema_uri, md5(table_schema), d.name), 0)::numeric)::text
FROM pdm_datasets d JOIN pdm_tenants t USING (tenant_id) GROUP BY d.slug ORDER BY d.slug
"""
# A sum of hashes does not depend on the order of rows, so they need no sorting.
FINGERPRINT = """
SELECT count(*), coalesce(sum(h::numeric), 0)::text FROM (
    SELECT hashtextextended(concat_ws(' ', dataset_id, slug, schema_uri, md5(table_schema), name), 0) h
    FROM pdm_datasets
) hashes
"""
OWNERS = """
SELECT d.slug, array_agg(t.slug) FROM pdm_datasets d JOIN pdm_tenants t USING (tenant_id)
GROUP BY d.slug ORDER BY d.slug
"""
OWNED = """
SELECT t.tenant_id, t.slug FROM pdm_datasets d JOIN pdm_tenants t USING (tenant_id)
WHERE d.slug = %s ORDER BY t.slug
"""


@dataclass(frozen=True)
class Member:
    """One tenant's dataset of a family."""

    tenant: Tenant
    dataset_id: UUID
    slug: str
    name: str
    schema_uri: str
    table_schema: str
    """The Iceberg schema of its table, as JSON."""

    @property
    def location(self) -> str:
        """Folder of its table in the object store."""
        return self.tenant.table_location(load_settings().object_store.bucket, self.slug, self.dataset_id)


@dataclass(frozen=True)
class Family:
    slug: str
    members: tuple[Member, ...]
    """Ordered by tenant slug; at least one."""

    @property
    def owner(self) -> str | None:
        """Slug of the tenant, if only one has a dataset of this slug."""
        return self.members[0].tenant.slug if len(self.members) == 1 else None


@dataclass(frozen=True)
class Outline:
    """A family without its members, which may be many."""

    slug: str
    owner: str | None
    """Slug of the tenant, if only one has a dataset of this slug."""
    version: str
    """Changes when a member does, when one is created, and when one is deleted."""


def list_outlines() -> list[Outline]:
    """Outlines of all families, by slug."""
    with postgres.transaction("pulse_pipeline") as connection:
        return [
            Outline(slug, tenant if count == 1 else None, f"{count}.{hashes}")
            for slug, tenant, count, hashes in connection.execute(OUTLINES)
        ]


def list_families(slugs: Collection[str] | None = None) -> list[Family]:
    """Families, by slug: of these slugs, or all."""
    found: dict[str, list[Member]] = {}
    with postgres.transaction("pulse_pipeline") as connection:
        for slug, tenant_id, tenant, dataset_id, *rest in connection.execute(
            MEMBERS, {"slugs": None if slugs is None else list(slugs)}
        ):
            found.setdefault(slug, []).append(Member(Tenant(tenant_id, tenant), dataset_id, slug, *rest))
    return [Family(slug, tuple(members)) for slug, members in found.items()]


def list_owners() -> dict[str, frozenset[str]]:
    """Slugs of the tenants of each family, by its slug."""
    with postgres.transaction("pulse_pipeline") as connection:
        return {slug: frozenset(tenants) for slug, tenants in connection.execute(OWNERS)}


def family_owners(slug: str) -> list[Tenant]:
    """The tenants with a dataset of this slug, by tenant slug."""
    with postgres.transaction("pulse_pipeline") as connection:
        return [Tenant(*row) for row in connection.execute(OWNED, [slug])]


def fingerprint() -> str:
    """A fingerprint of all datasets: changes exactly when one is created, renamed, moved or deleted."""
    with postgres.transaction("pulse_pipeline") as connection:
        count, hashes = connection.execute(FINGERPRINT).fetchall()[0]
    return f"{count}.{hashes}"
