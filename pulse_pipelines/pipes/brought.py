"""The dataset that a pipe brings."""

import json
from typing import Any

from pulse_pipelines import registry
from pulse_pipelines.domain.dataset import Dataset, DatasetKind
from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes import kinds
from pulse_resources.errors import NotFound, UserError


def dataset(tenant: Tenant, said: Definition) -> Dataset:
    """Find the dataset that a pipe brings; if there is none, make it, by a schema derived from what it reads.

    Raises:
        NotFound: the source is not configured, or has not what the pipe reads.
        UserError: it cannot be replicated, or the dataset is of the other kind.
        Transient: the source does not answer.
    """
    schema = _schema(tenant, said)
    try:
        found = registry.find_dataset(tenant, said.dataset)
    except NotFound:
        if schema is None:
            raise UserError(
                "the source shows no property from which a schema could follow, or is too large to look at",
                fix=f"Create the dataset first, with its schema: pulse dataset create --kind {said.kind}",
                source=said.other_end.source,
            ) from None
        uri = registry.publish_schema(tenant, said.dataset, json.dumps(schema)).schema_uri
        found = registry.create_dataset(tenant, said.dataset, uri, kind=said.kind)
    if found.kind != said.kind:
        message, fix = _OTHER_KIND[said.kind]
        raise UserError(message, fix=fix, dataset=said.dataset)
    if said.timestamp in found.schema.get("required", ()):
        raise UserError(
            f"the dataset's schema requires {said.timestamp}, which is in the envelope of events",
            fix="Follow a version of the schema that does not require it",
            dataset=said.dataset,
        )
    return found


_OTHER_KIND = {
    DatasetKind.ENTITIES: (
        "without a timestamp a pipe brings entities, and this is a dataset of events",
        "Name the column that is their timestamp, if rows are only appended: `timestamp`; or another dataset",
    ),
    DatasetKind.EVENTS: (
        "with a timestamp a pipe brings events, and this is a dataset of entities",
        "Leave timestamp out, or name another dataset",
    ),
}
"""Message and fix, by the kind that a pipe brings."""


def _schema(tenant: Tenant, said: Definition) -> dict[str, Any] | None:
    """The schema of what a pipe reads; the timestamp of events is in their envelope."""
    found = kinds.of(said).schema(tenant, said)
    if found is None or said.timestamp is None:
        return found
    declared = {name: each for name, each in found["properties"].items() if name != said.timestamp}
    return found | {"properties": declared}
