"""Preview: the newest rows of a dataset, after its slug was resolved in the tenant's RLS session."""

import pyarrow as pa

from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import duck

MAX_LIMIT = 10_000


def preview(tenant: Tenant, slug: str, limit: int) -> pa.Table:
    """At most `limit` rows of the dataset's current snapshot, latest event first.

    Raises:
        NotFound: the tenant has no such dataset, whoever else has one.
        Terminal: the dataset's table, or a file of it, is gone.
        Transient: the object store does not answer.
    """
    table = registry.current_table(tenant, slug)
    with duck.connect() as connection:
        query = f"SELECT * FROM {duck.SCAN} ORDER BY timestamp DESC, _kafka_partition, _offset LIMIT ?"  # noqa: S608
        rows = connection.execute(query, [table.metadata_location, min(limit, MAX_LIMIT)])
        return rows.to_arrow_table()
