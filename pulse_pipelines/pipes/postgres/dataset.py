"""The dataset that a table is brought into."""

import json

from pulse_pipelines import registry
from pulse_pipelines.domain.dataset import Dataset, DatasetKind
from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes import addresses
from pulse_pipelines.pipes.postgres import tables
from pulse_resources.errors import NotFound, UserError


def brought(tenant: Tenant, said: Definition) -> Dataset:
    """The dataset of a pipe of a table; if there is none, it is made, with a schema derived from the table.

    Raises:
        NotFound: the source is not configured, or has no such table.
        UserError: the table cannot be replicated, or the dataset is one of events.
        Transient: the source does not answer.
    """
    with tables.snapshot(addresses.url(tenant, said.of_postgres.source)) as source:
        table = tables.look(source, said)
    try:
        dataset = registry.find_dataset(tenant, said.dataset)
    except NotFound:
        uri = registry.publish_schema(tenant, said.dataset, json.dumps(table.schema)).schema_uri
        dataset = registry.create_dataset(tenant, said.dataset, uri, kind=DatasetKind.ENTITIES)
    if not dataset.of_entities:
        raise UserError("a pipe brings entities, and this is a dataset of events", dataset=said.dataset)
    return dataset
