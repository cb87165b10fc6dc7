-- The REST catalog: keys with scopes of its own, and a role that sees what a tenant's engines may.

ALTER TABLE api_keys DROP CONSTRAINT api_keys_scopes_check;
ALTER TABLE api_keys ADD CONSTRAINT api_keys_scopes_check CHECK (
    cardinality(scopes) > 0 AND scopes <@ ARRAY['collect', 'read', 'manage', 'lake:read', 'lake:write']);

GRANT USAGE ON SCHEMA public, iceberg_catalog TO pulse_lake;
GRANT SELECT ON pdm_tenants, api_keys, quotas, rates TO pulse_lake;
GRANT UPDATE (last_used_at) ON api_keys TO pulse_lake;

-- A tenant's datasets and rollups: it reads them, and only Pulse writes them.
GRANT SELECT ON iceberg_catalog.iceberg_tables TO pulse_lake;
CREATE POLICY own_lake ON iceberg_catalog.iceberg_tables FOR SELECT TO pulse_lake
    USING (table_namespace = 'pulse_' || replace(app_tenant()::text, '-', ''));
