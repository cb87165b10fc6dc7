"""The dataset that a pipe brings."""

import json

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
        UserError: it cannot be replicated, or the dataset is one of events.
        Transient: the source does not answer.
    """
    schema = kinds.of(said).schema(tenant, said)
    try:
        found = registry.find_dataset(tenant, said.dataset)
    except NotFound:
        if schema is None:
            raise UserError(
                "the source shows no property from which a schema could follow, or is too large to look at",
                fix="Create the dataset first, with its schema: pulse dataset create --kind entities",
                source=said.other_end.source,
            ) from None
        uri = registry.publish_schema(tenant, said.dataset, json.dumps(schema)).schema_uri
        found = registry.create_dataset(tenant, said.dataset, uri, kind=DatasetKind.ENTITIES)
    if not found.of_entities:
        raise UserError("a pipe brings entities, and this is a dataset of events", dataset=said.dataset)
    return found
