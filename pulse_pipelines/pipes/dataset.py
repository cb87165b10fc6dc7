"""The dataset that a pipe writes."""

import json
from typing import Any

from pulse_pipelines import registry
from pulse_pipelines.domain.dataset import Dataset, DatasetKind
from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes import sources
from pulse_resources.errors import NotFound, UserError


def find_or_create(tenant: Tenant, definition: Definition) -> Dataset:
    """Find the dataset that a pipe writes, or create it with a schema derived from the source.

    Raises:
        NotFound: the source is not configured, or lacks the table or files.
        UserError: it cannot be replicated, or the dataset is of the other kind.
        Transient: the source does not answer.
    """
    schema = _schema(tenant, definition)
    try:
        existing = registry.find_dataset(tenant, definition.dataset)
    except NotFound:
        if schema is None:
            raise UserError(
                "no schema can be derived: the source shows no property, or is too large to sample",
                fix=f"Create it first, with its schema: pulse dataset create --kind {definition.kind}",
                source=definition.other_end.source,
            ) from None
        uri = registry.publish_schema(tenant, definition.dataset, json.dumps(schema)).schema_uri
        existing = registry.create_dataset(tenant, definition.dataset, uri, kind=definition.kind)
    if existing.kind != definition.kind:
        message, fix = _OTHER_KIND[definition.kind]
        raise UserError(message, fix=fix, dataset=definition.dataset)
    if definition.timestamp in existing.schema.get("required", ()):
        raise UserError(
            f"the dataset's schema requires {definition.timestamp}, which is in the envelope of events",
            fix="Follow a version of the schema that does not require it",
            dataset=definition.dataset,
        )
    return existing


_OTHER_KIND = {
    DatasetKind.ENTITIES: (
        "a pipe without `timestamp` brings entities, and this is a dataset of events",
        "For append-only rows, name the column of their time as `timestamp`; or name another dataset",
    ),
    DatasetKind.EVENTS: (
        "a pipe with `timestamp` brings events, and this is a dataset of entities",
        "Leave timestamp out, or name another dataset",
    ),
}
"""Message and fix, by the kind that a pipe writes."""


def _schema(tenant: Tenant, definition: Definition) -> dict[str, Any] | None:
    """The schema of a pipe's source, without the timestamp of events, which is in their envelope."""
    schema = sources.module_of(definition).schema(tenant, definition)
    if schema is None or definition.timestamp is None:
        return schema
    declared = {
        name: subschema for name, subschema in schema["properties"].items() if name != definition.timestamp
    }
    return schema | {"properties": declared}
