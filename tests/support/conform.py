"""A dataset that exists on paper only, and messages of it: for what conforms without a service."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pulse_pipelines.domain.dataset import Dataset, DatasetKind
from pulse_pipelines.domain.schemas.columns import columns as declared
from pulse_pipelines.domain.schemas.schema import check_document
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables.iceberg_schema import table_schema
from pulse_pipelines.tables.raw_zone import Message

TENANT = Tenant(UUID(int=7), "acme")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["country"],
    "properties": {
        "country": {"type": "string"},
        "amount": {"type": "number"},
        "count": {"type": "integer"},
        "active": {"type": "boolean"},
        "signup_at": {"type": ["string", "null"], "format": "date-time"},
        "born": {"type": "string", "format": "date"},
        "either": {"type": ["string", "integer", "null"]},
        "address": {
            "type": ["object", "null"],
            "properties": {
                "zip": {"type": "string"},
                "geo": {"type": "object", "properties": {"lat": {"type": "number"}}},
            },
        },
        "lines": {
            "type": "array",
            "items": {"type": "object", "properties": {"sku": {"type": "string"}, "n": {"type": "integer"}}},
        },
        "tags": {"type": "array", "items": {"type": ["string", "null"]}},
        "a/b~c": {"type": "integer"},
    },
}


def dataset(schema: dict[str, Any], slug: str = "orders", kind: DatasetKind = DatasetKind.EVENTS) -> Dataset:
    text = json.dumps(schema)
    table = table_schema(declared(check_document(text)), kind)
    return Dataset(
        UUID(int=8),
        TENANT.tenant_id,
        slug,
        slug,
        f"pulse://acme/{slug}/3",
        text,
        table.model_dump_json(),
        "refuse",
        datetime.now(UTC),
        7,
        kind,
    )


def messages(payloads: Iterable[bytes]) -> list[Message]:
    return [Message(1, offset, 1_700_000_000_123, payload) for offset, payload in enumerate(payloads)]
