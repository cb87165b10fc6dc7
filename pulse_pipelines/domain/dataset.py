"""A dataset: a tenant's slug, the schema that its events follow, and the table that they land in."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import UUID

import orjson

from pulse_pipelines.domain.schema import Column, SchemaUri, columns


@dataclass(frozen=True)
class Dataset:
    dataset_id: UUID
    tenant_id: UUID
    slug: str
    name: str
    schema_uri: str
    document: str
    """The JSON Schema as published."""
    table_schema: str
    """The Iceberg schema of the table, as JSON: field ids and column order."""

    @cached_property
    def schema(self) -> dict[str, Any]:
        parsed: dict[str, Any] = orjson.loads(self.document)
        return parsed

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return columns(self.schema)

    @property
    def schema_version(self) -> int:
        return SchemaUri.parse(self.schema_uri).version
