"""The registry's version: each transaction that changes something has its own, in the order of commits."""

import uuid
from collections.abc import Callable

import psycopg
import pytest
from support.ingest import Owner

from chaos.surroundings import superuser
from pulse_pipelines import registry
from pulse_pipelines.definitions import PARTS
from pulse_resources import postgres

COPY = """
INSERT INTO pdm_datasets (dataset_id, tenant_id, slug, name, schema_uri, table_schema)
SELECT gen_random_uuid(), tenant_id, %s, name, schema_uri, table_schema
FROM pdm_datasets WHERE slug = 'orders'
"""


def slugs_since(version: int) -> dict[str, int]:
    return {outline.slug: outline.members for outline in registry.list_outlines(version)}


def test_a_later_commit_has_a_higher_version(new_owner: Callable[[], Owner]) -> None:
    one, other = new_owner(), new_owner()
    early, late = (f"d{uuid.uuid4().hex[:8]}" for _ in range(2))
    first = registry.version()
    with postgres.tenant_transaction("pulse_api", one.tenant.tenant_id) as connection:
        connection.execute(COPY, [late])
        with postgres.tenant_transaction("pulse_api", other.tenant.tenant_id) as beside:  # waits for nobody
            beside.execute(COPY, [early])
        second = registry.version()
        assert second > first
        assert slugs_since(first) == {early: 1}
    assert registry.version() > second
    assert slugs_since(second) == {late: 1}


def test_a_transaction_has_one_version_and_one_that_fails_none(owner: Owner) -> None:
    first = registry.version()
    names = sorted(f"d{uuid.uuid4().hex[:8]}" for _ in range(3))
    with postgres.tenant_transaction("pulse_api", owner.tenant.tenant_id) as connection:
        for name in names:
            connection.execute(COPY, [name])
    assert registry.version() == first + 1
    with postgres.tenant_transaction("pulse_api", owner.tenant.tenant_id) as connection:
        connection.execute(COPY, [f"d{uuid.uuid4().hex[:8]}"])
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        raise psycopg.Rollback
    assert registry.version() == first + 1
    assert sorted(slugs_since(first)) == names


def test_a_deleted_family_has_no_members_and_returns_as_a_new_one(owner: Owner) -> None:
    slug = f"d{uuid.uuid4().hex[:8]}"
    uri = f"pulse://{owner.tenant.slug}/orders/1"
    registry.create_dataset(owner.tenant, slug, uri)
    version, before = registry.version(), PARTS.versions()[slug]
    registry.delete_dataset(owner.tenant, slug)
    assert slugs_since(version) == {slug: 0}
    assert registry.list_owners(version) == {slug: frozenset()}
    assert slug not in PARTS.versions()
    registry.create_dataset(owner.tenant, slug, uri)
    assert PARTS.versions()[slug] != before


def test_only_outlines_that_have_changed_are_read(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    listed = registry.list_outlines

    def counted(since: int = 0) -> list[registry.Outline]:
        outlines = listed(since)
        read.extend(outline.slug for outline in outlines)
        return outlines

    monkeypatch.setattr(registry, "list_outlines", counted)
    PARTS.versions()
    assert "orders" in PARTS.versions()
    read.clear()
    PARTS.versions()
    assert read == []
    slug = f"d{uuid.uuid4().hex[:8]}"
    registry.create_dataset(owner.tenant, slug, f"pulse://{owner.tenant.slug}/orders/1")
    assert {slug, "orders"} <= PARTS.versions().keys()
    assert read == [slug]


def test_an_older_registry_is_read_as_a_whole(owner: Owner) -> None:
    """As after Postgres was restored from a backup."""
    slug = f"d{uuid.uuid4().hex[:8]}"
    registry.create_dataset(owner.tenant, slug, f"pulse://{owner.tenant.slug}/orders/1")
    known = PARTS.versions()
    with superuser() as connection:
        connection.execute("UPDATE registry_version SET version = version - 1")
        connection.execute(
            "UPDATE family_versions SET token = gen_random_uuid(), version = 1 WHERE slug = %s", [slug]
        )
        try:
            assert PARTS.versions()[slug] != known[slug]
        finally:
            connection.execute("UPDATE registry_version SET version = version + 1")
