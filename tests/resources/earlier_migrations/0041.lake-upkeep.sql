-- Folders of tenants' own tables whose files are removed: no table is entered there any more.
CREATE TABLE lake_purges (
    tenant_id uuid NOT NULL REFERENCES pdm_tenants,
    location  text NOT NULL,
    at        timestamptz NOT NULL DEFAULT now(),
    done_at   timestamptz, -- null: files may be left
    PRIMARY KEY (tenant_id, location)
);
ALTER TABLE lake_purges ENABLE ROW LEVEL SECURITY;
ALTER TABLE lake_purges FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON lake_purges
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
GRANT SELECT, INSERT, UPDATE (done_at) ON lake_purges TO pulse_lake;

-- Upkeep looks after tables of tenants' own where they ask for it: in the tenant's session, as pulse_lake.
-- It learns from their namespaces which tenants may have any.
ALTER TABLE upkeep_tenants ADD COLUMN own_at timestamptz;
GRANT SELECT ON iceberg_catalog.iceberg_namespace_properties TO pulse_pipeline;
CREATE POLICY plan_own ON iceberg_catalog.iceberg_namespace_properties FOR SELECT TO pulse_pipeline
    USING (property_key = 'exists');
