"""Bytes of a tenant's schemas: limited together, whatever each dataset has."""

import json
import tracemalloc
from typing import Any

import pytest
from support.ingest import Owner

from chaos.surroundings import with_settings
from pulse_pipelines import moves, registry
from pulse_pipelines.registry.schema_bytes import LEAST_BYTES, schema_bytes
from pulse_resources import postgres
from pulse_resources.errors import QuotaExceeded

LEAST = 1_048_576
"""The least that the setting may be."""
LARGE = 250_000


def schema(name: str, **more: Any) -> str:
    """A schema of `LARGE` bytes."""
    document = {"type": "object", "properties": {name: {"type": "string"}}, "description": "x" * LARGE}
    return json.dumps(document | more)


def test_a_tenant_may_not_have_many_large_schemas(owner: Owner) -> None:
    """Of 150 tables of 1,700 columns each, Spark's memory was too small for everybody's batches."""
    uri = registry.publish_schema(owner.tenant, "large", schema("a")).schema_uri
    with with_settings(INGEST__MAX_TENANT_SCHEMA_BYTES=LEAST):
        for number in range(4):
            registry.create_dataset(owner.tenant, f"d{number}", uri)
        with pytest.raises(QuotaExceeded, match="may have 1,048,576") as refused:
            registry.create_dataset(owner.tenant, "one_more", uri)
        assert "ask the operator to raise ingest.max_tenant_schema_bytes" in str(refused.value.fix)
        registry.delete_dataset(owner.tenant, "d0")
        registry.create_dataset(owner.tenant, "one_more", uri)
    assert {"d0", "orders", "one_more"} & set(registry.list_slugs(owner.tenant, None, 9)) == {
        "orders",
        "one_more",
    }


def test_the_versions_that_a_dataset_followed_count(owner: Owner) -> None:
    for number in range(4):
        published = registry.publish_schema(owner.tenant, "large", schema("a", title=str(number)))
        if number == 0:
            registry.create_dataset(owner.tenant, "large", published.schema_uri)
        else:
            moves.ask(owner.tenant, "large", published.schema_uri)
    with postgres.transaction("pulse_pipeline") as connection:
        used = schema_bytes(connection, [owner.tenant.tenant_id])[owner.tenant.tenant_id]
    assert 4 * LARGE < used < 5 * LARGE
    last = registry.publish_schema(owner.tenant, "large", schema("a", title="the last")).schema_uri
    with with_settings(INGEST__MAX_TENANT_SCHEMA_BYTES=LEAST), pytest.raises(QuotaExceeded):
        moves.ask(owner.tenant, "large", last)
    assert registry.find_dataset(owner.tenant, "large").schema_version == 4


def test_the_list_of_schemas_reads_no_documents(owner: Owner) -> None:
    """A tenant's own list of 500 versions of 500 KB took half a gigabyte of the API's memory."""
    for number in range(8):
        registry.publish_schema(owner.tenant, "large", schema("a", title=str(number)))
    registry.list_schemas(owner.tenant)  # what the first one imports is no part of it
    tracemalloc.start()
    try:
        listed = registry.list_schemas(owner.tenant)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [one.version for one in listed if one.name == "large"] == list(range(1, 9))
    assert peak < LARGE


def test_a_tenant_may_not_publish_versions_without_end(owner: Owner) -> None:
    with with_settings(API__MAX_PUBLISHED_SCHEMA_BYTES=LEAST):
        for number in range(4):
            last = registry.publish_schema(owner.tenant, f"large_{number}", schema("a"))
        with pytest.raises(QuotaExceeded, match="may have 1,048,576") as refused:
            registry.publish_schema(owner.tenant, "one_more", schema("a"))
        assert "ask the operator to raise api.max_published_schema_bytes" in str(refused.value.fix)
        again = registry.publish_schema(owner.tenant, "large_3", schema("a"))
    assert again.schema_uri == last.schema_uri
    assert not again.created
    assert "one_more" not in {one.name for one in registry.list_schemas(owner.tenant)}


def test_small_versions_count_as_four_kilobytes(owner: Owner) -> None:
    there = len(registry.list_schemas(owner.tenant))
    with with_settings(API__MAX_PUBLISHED_SCHEMA_BYTES=LEAST):
        for number in range(LEAST // LEAST_BYTES - there):
            registry.publish_schema(owner.tenant, "small", small(number))
        with pytest.raises(QuotaExceeded):
            registry.publish_schema(owner.tenant, "small", small(-1))


def small(number: int) -> str:
    return json.dumps({"type": "object", "title": str(number)})
