-- Tenants write tables of their own: in namespaces pulse_<tenant id>.<name>, never where Pulse writes theirs.

GRANT INSERT, UPDATE, DELETE ON iceberg_catalog.iceberg_tables TO pulse_lake;
GRANT SELECT, INSERT, UPDATE, DELETE ON iceberg_catalog.iceberg_namespace_properties TO pulse_lake;
CREATE POLICY own_namespaces ON iceberg_catalog.iceberg_tables TO pulse_lake
    USING (starts_with(table_namespace, 'pulse_' || replace(app_tenant()::text, '-', '') || '.'))
    WITH CHECK (starts_with(table_namespace, 'pulse_' || replace(app_tenant()::text, '-', '') || '.'));
CREATE POLICY own_namespaces ON iceberg_catalog.iceberg_namespace_properties TO pulse_lake
    USING (starts_with(namespace, 'pulse_' || replace(app_tenant()::text, '-', '') || '.'))
    WITH CHECK (starts_with(namespace, 'pulse_' || replace(app_tenant()::text, '-', '') || '.'));

-- Requests that named themselves by an Idempotency-Key: one that comes again is not carried out again.
CREATE TABLE lake_requests (
    tenant_id   uuid NOT NULL REFERENCES pdm_tenants,
    request_key text NOT NULL CHECK (length(request_key) BETWEEN 1 AND 100),
    asked       text NOT NULL, -- a digest of what the request says
    at          timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, request_key)
);
CREATE INDEX lake_requests_at ON lake_requests (tenant_id, at);
ALTER TABLE lake_requests ENABLE ROW LEVEL SECURITY;
ALTER TABLE lake_requests FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON lake_requests
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
GRANT SELECT, INSERT, DELETE ON lake_requests TO pulse_lake;

-- Quotas of those tables: their number is max_datasets of the kind `lake`.
ALTER TABLE quotas DROP CONSTRAINT quotas_kind_check;
ALTER TABLE quotas ADD CONSTRAINT quotas_kind_check CHECK (kind IN ('events', 'entities', 'lake'));
ALTER TABLE quotas ADD COLUMN max_bytes bigint NOT NULL DEFAULT 0 CHECK (max_bytes >= -1);
