"""Checks of a pipe with a sink, before it is created and before each run."""

from pulse_pipelines import registry
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import indexes
from pulse_pipelines.pipes import addresses
from pulse_pipelines.pipes.postgres import sessions
from pulse_pipelines.pipes.sinks import target
from pulse_resources.errors import UserError

HTTP = ("http://", "https://")


def readable(tenant: Tenant, definition: Definition) -> Dataset:
    """The dataset that a pipe reads, after checking its sink; with `create`, a missing table is created.

    Raises:
        NotFound: there is no such dataset, address or table.
        UserError: it is a dataset of events, the subset is not valid, or the table cannot be written.
        Conflict: the dataset has no index for the subset.
        Transient: the sink does not answer.
    """
    dataset = registry.find_dataset(tenant, definition.dataset)
    if not dataset.of_entities:
        raise UserError("a sink takes entities, and this is a dataset of events", dataset=definition.dataset)
    if definition.sink.subset is not None:
        indexes.subset_log(tenant, definition.dataset, definition.sink.subset, 0, 1)
    address = address_of(tenant, definition)
    if definition.sink.table is not None:
        with sessions.connect(address) as connection:
            target.inspect(connection, definition, dataset)
    return dataset


def address_of(tenant: Tenant, definition: Definition) -> str:
    """The address of a sink, of the kind that its pipe needs.

    Raises:
        NotFound: it is not configured.
        UserError: it is of the other kind.
    """
    address = addresses.url(tenant, definition.sink.source)
    if address.startswith(HTTP) is (definition.sink.table is not None):
        raise UserError(
            "the address leads to a service, and `table` is of a database"
            if definition.sink.table is not None
            else "the address does not begin with http:// or https://",
            fix="A pipe to a database names a table; one to a service names none",
            to=definition.sink.source,
        )
    return address
