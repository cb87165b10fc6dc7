"""Datasets read from Postgres, with every schema version that they follow or followed, and their state."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pulse_pipelines.domain.dataset import Dataset
from pulse_resources import postgres

SELECT = """
SELECT d.dataset_id, d.tenant_id, d.slug, d.name, d.schema_uri, s.document, d.table_schema,
    d.on_invalid, d.created_at, d.claim_seed, d.kind,
    (SELECT json_agg(json_build_array(v.version, o.document) ORDER BY v.version)
        FROM dataset_versions v JOIN pdm_schemas o USING (schema_uri)
        WHERE v.dataset_id = d.dataset_id AND v.schema_uri <> d.schema_uri),
    (SELECT json_build_array(e.state_id, e.latest_by, w.sums)
        FROM event_states e LEFT JOIN event_windows w USING (dataset_id)
        WHERE e.dataset_id = d.dataset_id)
FROM pdm_datasets d JOIN pdm_schemas s USING (schema_uri)
"""
OF_TENANT = "d.tenant_id = app_tenant()"
"""Condition: the dataset belongs to the session's tenant; row-level security demands it, too."""
OF_SLUG = f"d.slug = %s AND {OF_TENANT}"
OF_SLUGS = f"d.slug = ANY(%s) AND {OF_TENANT}"
ORDER = ' ORDER BY d.tenant_id, d.slug COLLATE "C"'


def read(
    connection: postgres.Connection, where: str = "true", values: Sequence[object] = ()
) -> Iterator[Dataset]:
    """Read the datasets that this session sees, by tenant and slug.

    Args:
        where: a condition of Pulse's own on `d`, with a %s for each of `values`.
    """
    for *row, earlier, state in connection.execute(f"{SELECT} WHERE {where}{ORDER}", values):
        versions = tuple((version, document) for version, document in earlier or ())
        dataset = replace(Dataset(*row), earlier=versions)
        if state is not None:
            state_id, latest_by, sums = state
            windows = None if sums is None else tuple(sums)
            dataset = replace(dataset, state=(state_id, latest_by), windows=windows)
        yield dataset
