"""A registry of any size, in bulk: tenants, datasets without tables, pipes, keys, settled batches."""

from collections.abc import Mapping

import psycopg

from pulse_resources.settings import load_settings

TENANTS = """
INSERT INTO pdm_tenants (tenant_id, slug, name)
SELECT gen_random_uuid(), 'tenant_' || i, 'Tenant ' || i FROM generate_series(%(first)s, %(last)s) i
"""
OF_TENANTS = """
INSERT INTO pdm_schemas (tenant_id, name, version, schema_uri, document)
SELECT tenant_id, 'any', 1, 'pulse://' || slug || '/any/1', '{}'
FROM pdm_tenants t WHERE NOT EXISTS (SELECT FROM pdm_schemas s WHERE s.tenant_id = t.tenant_id);
INSERT INTO ingest_positions (tenant_id, partition, planned_offset, settled_offset)
SELECT tenant_id, partition, 0, 0 FROM pdm_tenants, generate_series(0, 1) partition ON CONFLICT DO NOTHING
"""
DATASETS = """
INSERT INTO pdm_datasets (dataset_id, tenant_id, slug, name, schema_uri, table_schema)
SELECT gen_random_uuid(), t.tenant_id, 'dataset_' || i, 'Dataset ' || i, 'pulse://' || t.slug || '/any/1', (
    SELECT json_build_object('type', 'struct', 'fields', json_agg(json_build_object(
        'id', c, 'name', 'column_' || c, 'type', 'string', 'required', false)))::text
    FROM generate_series(1, 12) c)
FROM generate_series(%(first)s, %(last)s) i CROSS JOIN generate_series(0, %(owners)s - 1) owner
JOIN pdm_tenants t ON t.slug = 'tenant_' || (1 + (i + owner) %% (SELECT count(*) FROM pdm_tenants))
"""
# Paused, and each with a dataset of its own: no process connects to its source.
PIPES = """
WITH of_pipes AS (
    INSERT INTO pdm_datasets (dataset_id, tenant_id, slug, name, schema_uri, table_schema, kind)
    SELECT gen_random_uuid(), t.tenant_id, 'piped_' || i, 'Piped ' || i, 'pulse://' || t.slug || '/any/1',
        '{"fields": []}', 'entities'
    FROM generate_series(%(first)s, %(last)s) i
    JOIN pdm_tenants t ON t.slug = 'tenant_' || (1 + i %% (SELECT count(*) FROM pdm_tenants))
    RETURNING dataset_id, tenant_id, slug)
INSERT INTO pipes (tenant_id, pipe, dataset_id, definition, state)
SELECT tenant_id, slug, dataset_id, jsonb_build_object('pipe', slug, 'source', 'src', 'table', 'public.any',
    'dataset', slug), 'paused' FROM of_pipes
"""
# Of one tenant, which has as many in force as it may have; the others were revoked.
KEYS = """
INSERT INTO api_keys (tenant_id, key_id, name, scopes, key_hash, revoked_at)
SELECT tenant_id, 'key_' || i, 'any', '{collect}', '', CASE WHEN i > 1000 THEN now() END
FROM generate_series(%(first)s, %(last)s) i
CROSS JOIN (SELECT tenant_id FROM pdm_tenants ORDER BY slug LIMIT 1) t
"""
# Of one tenant, in the last thirty days.
BATCHES = """
INSERT INTO ingest_batches
    (batch_id, state, planned_at, started_at, settled_at, settle_seconds, commit_seconds)
SELECT 'batch_' || i, 'settled', at, at, at, 0.1, 0.05 FROM generate_series(%(first)s, %(last)s) i,
LATERAL (SELECT now() - 30.0 / %(last)s * i * interval '1 day' AS at) moment;
INSERT INTO ingest_ranges (batch_id, tenant_id, partition, start_offset, end_offset, settled_at, drained,
    landed, duplicates, dead_letters, oldest_received)
SELECT batch_id, tenant_id, 0, number, number + 1, settled_at, 1, 1, 0, 0, settled_at
FROM (SELECT batch_id, settled_at, substr(batch_id, 7)::bigint number FROM ingest_batches) b
CROSS JOIN (SELECT tenant_id FROM pdm_tenants ORDER BY slug LIMIT 1) t
WHERE number BETWEEN %(first)s AND %(last)s;
INSERT INTO landings (batch_id, tenant_id, dataset_id, slug, day, rows, duplicates, bytes, files, landed_at)
SELECT batch_id, d.tenant_id, d.dataset_id, d.slug, settled_at::date, 1, 0, 1000, 1, settled_at
FROM (SELECT batch_id, settled_at, substr(batch_id, 7)::bigint number FROM ingest_batches) b
CROSS JOIN (SELECT * FROM pdm_datasets ORDER BY slug LIMIT 1) d
WHERE number BETWEEN %(first)s AND %(last)s
"""
STATEMENTS = {
    "tenants": f"{TENANTS}; {OF_TENANTS}",
    "slugs": DATASETS,
    "pipes": PIPES,
    "keys": KEYS,
    "batches": BATCHES,
}
"""By what there is more of: tenants; distinct slugs; pipes of distinct names; keys of one tenant; batches."""


class Registry:
    """What there is, which only grows."""

    def __init__(self, tenants: int, owners: int) -> None:
        """Args:
        owners: tenants with a dataset of each slug.
        """
        self.counts = dict.fromkeys(STATEMENTS, 0)
        self._owners = owners
        self.grow(tenants=tenants)

    def grow(self, **counts: int) -> None:
        """Add what is missing to these counts, by the names of `STATEMENTS`, as superuser."""
        settings = load_settings().postgres
        with psycopg.connect(
            settings.superuser_url(settings.database), cursor_factory=psycopg.ClientCursor
        ) as connection:
            for name, count in counts.items():
                if count > self.counts[name]:
                    values: Mapping[str, int] = {
                        "first": self.counts[name] + 1,
                        "last": count,
                        "owners": self._owners,
                    }
                    connection.execute(STATEMENTS[name], values)
                    self.counts[name] = count
        with psycopg.connect(settings.superuser_url(settings.database), autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")  # as autovacuum does
