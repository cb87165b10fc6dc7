"""Datasets: a tenant's slug, the schema that its events follow, and the table in which they land."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any
from uuid import UUID

import orjson

from pulse_pipelines.domain.roles import played_by
from pulse_pipelines.domain.schemas.columns import Column, columns
from pulse_pipelines.domain.schemas.schema import SchemaUri
from pulse_pipelines.domain.table_columns import fitted


class OnInvalid(StrEnum):
    """The HTTP API's treatment of an invalid event: refuse it, or make it a dead letter."""

    REFUSE = "refuse"
    DEAD_LETTER = "dead_letter"


class DatasetKind(StrEnum):
    """The kind of a dataset's rows."""

    EVENTS = "events"
    """Events, each one row."""
    ENTITIES = "entities"
    """Versions of entities: the table is their log (see `domain.entities`)."""


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
    on_invalid: str
    created_at: datetime
    claim_seed: int
    """Seed of the digests of its event ids; secret, so that no sender can choose ids that collide."""
    kind: str = DatasetKind.EVENTS
    earlier: tuple[tuple[int, str], ...] = ()
    """Numbers and documents of the schema versions that it followed before."""
    state: tuple[int, str] | None = None
    """The state's number and its key column; None: the dataset has no state."""
    windows: tuple[str, ...] | None = None
    """The columns that the state's windows sum; None: it has no windows."""

    @cached_property
    def schema(self) -> dict[str, Any]:
        parsed: dict[str, Any] = orjson.loads(self.document)
        return parsed

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return _columns(self.document, self.table_schema)

    @cached_property
    def later_columns(self) -> tuple[str, ...]:
        """Names of the columns that moves to newer schema versions have added."""
        if not self.earlier:
            return ()
        _, first = min(self.earlier)
        at_first = {column.field for column in _columns(first, self.table_schema)}
        return tuple(column.name for column in self.columns if column.field not in at_first)

    @property
    def of_entities(self) -> bool:
        return self.kind == DatasetKind.ENTITIES

    def column_of(self, role: str) -> str | None:
        """The column of the property with a role (see `domain.roles`); None if there is none."""
        field = played_by(self.schema, role)
        return next((column.name for column in self.columns if column.field == field), None)

    @property
    def schema_version(self) -> int:
        return SchemaUri.parse(self.schema_uri).version

    @cached_property
    def documents(self) -> dict[int, str]:
        """Every schema document that an event may follow, by version."""
        return dict(self.earlier) | {self.schema_version: self.document}


@lru_cache(maxsize=1024)
def _columns(document: str, table_schema: str) -> tuple[Column, ...]:
    schema = orjson.loads(document)
    return fitted(columns(schema), schema, table_schema)
