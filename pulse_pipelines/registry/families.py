"""Families: all tenants' datasets of one slug, which are one asset in Dagster."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from uuid import UUID

from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres
from pulse_resources.settings import load_settings

MEMBERS = """
SELECT d.slug, f.first_day, t.tenant_id, t.slug, d.dataset_id, d.name, d.schema_uri, d.table_schema
FROM pdm_datasets d JOIN pdm_tenants t USING (tenant_id) LEFT JOIN family_versions f ON f.slug = d.slug
WHERE %(slugs)s::text[] IS NULL OR d.slug = ANY(%(slugs)s) ORDER BY d.slug, t.slug
"""
OUTLINES = """
SELECT f.slug, min(t.slug), count(d.dataset_id), f.token::text
FROM family_versions f LEFT JOIN pdm_datasets d USING (slug) LEFT JOIN pdm_tenants t USING (tenant_id)
WHERE f.version > %s GROUP BY f.slug ORDER BY f.slug
"""
VERSION = "SELECT version FROM registry_version"
OWNERS = """
SELECT f.slug, coalesce(array_agg(t.slug) FILTER (WHERE t.slug IS NOT NULL), '{}')
FROM family_versions f LEFT JOIN pdm_datasets d USING (slug) LEFT JOIN pdm_tenants t USING (tenant_id)
WHERE f.version > %s GROUP BY f.slug ORDER BY f.slug
"""
EXISTING = "SELECT DISTINCT slug FROM pdm_datasets WHERE slug = ANY(%s)"
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
    first_day: date | None = None
    """No row is of an earlier day; the first of a month or year, if long ago; None: nothing has landed."""

    @property
    def owner(self) -> str | None:
        """Slug of the tenant, if only one has a dataset of this slug."""
        return self.members[0].tenant.slug if len(self.members) == 1 else None


@dataclass(frozen=True)
class Outline:
    """A family without its members, which may be many."""

    slug: str
    members: int
    owner: str | None
    """Slug of the tenant, if only one has a dataset of this slug."""
    version: str
    """Changes when a member does, when one is created or deleted, and with the family's first day."""


def version() -> int:
    """Number of the registry: greater after each transaction that changed a dataset or a pipe."""
    with postgres.transaction("pulse_pipeline") as connection:
        ((number,),) = connection.execute(VERSION).fetchall()
        return int(number)


def list_outlines(since: int = 0) -> list[Outline]:
    """Outlines of the families that have changed since a version, by slug; a gone one has no members."""
    with postgres.transaction("pulse_pipeline") as connection:
        return [
            Outline(slug, count, tenant if count == 1 else None, token)
            for slug, tenant, count, token in connection.execute(OUTLINES, [since])
        ]


def list_families(slugs: Collection[str] | None = None) -> list[Family]:
    """Families, by slug: of these slugs, or all."""
    by_slug: dict[tuple[str, date | None], list[Member]] = {}
    with postgres.transaction("pulse_pipeline") as connection:
        for slug, first_day, tenant_id, tenant, dataset_id, *columns in connection.execute(
            MEMBERS, {"slugs": None if slugs is None else list(slugs)}
        ):
            member = Member(Tenant(tenant_id, tenant), dataset_id, slug, *columns)
            by_slug.setdefault((slug, first_day), []).append(member)
    return [Family(slug, tuple(members), first_day) for (slug, first_day), members in by_slug.items()]


def list_owners(since: int = 0) -> dict[str, frozenset[str]]:
    """Slugs of the tenants of each family that changed after a version, by its slug; a gone one has none."""
    with postgres.transaction("pulse_pipeline") as connection:
        return {slug: frozenset(tenants) for slug, tenants in connection.execute(OWNERS, [since])}


def existing_slugs(slugs: Collection[str]) -> set[str]:
    """The slugs, among these, that some dataset has."""
    with postgres.transaction("pulse_pipeline") as connection:
        return {slug for (slug,) in connection.execute(EXISTING, [list(slugs)])}


def family_owners(slug: str) -> list[Tenant]:
    """The tenants with a dataset of this slug, by tenant slug."""
    with postgres.transaction("pulse_pipeline") as connection:
        return postgres.select(connection, Tenant, OWNED, [slug])
