-- Entity datasets: a log of versions, of which each entity's newest is known.

ALTER TABLE pdm_datasets
    ADD COLUMN kind text NOT NULL DEFAULT 'events' CHECK (kind IN ('events', 'entities'));
ALTER TABLE deleted_datasets
    ADD COLUMN kind text NOT NULL DEFAULT 'events' CHECK (kind IN ('events', 'entities'));

-- How far a log has come. The row is locked by whoever appends to it, until he has committed.
CREATE SEQUENCE entity_generations;
CREATE TABLE entity_logs (
    tenant_id  uuid NOT NULL REFERENCES pdm_tenants,
    dataset_id uuid PRIMARY KEY REFERENCES pdm_datasets ON DELETE CASCADE,
    generation bigint NOT NULL DEFAULT nextval('entity_generations'), -- another one: read it from the start
    updated    bigint NOT NULL DEFAULT 0 CHECK (updated >= 0)         -- `_updated` of its last version
);

-- Runs of heads, as those of claims: of each entity the newest version, in whichever run has the highest.
CREATE SEQUENCE entity_head_runs;
CREATE TABLE entity_heads (
    tenant_id  uuid NOT NULL REFERENCES pdm_tenants,
    dataset_id uuid NOT NULL REFERENCES entity_logs ON DELETE CASCADE,
    run        bigint NOT NULL DEFAULT nextval('entity_head_runs'),
    entities   integer NOT NULL CHECK (entities > 0),
    heads      bytea STORAGE EXTERNAL NOT NULL CHECK (octet_length(heads) = 40 * entities),
    PRIMARY KEY (dataset_id, run)
);

ALTER TABLE entity_logs ENABLE ROW LEVEL SECURITY;
ALTER TABLE entity_logs FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON entity_logs
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
ALTER TABLE entity_heads ENABLE ROW LEVEL SECURITY;
ALTER TABLE entity_heads FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON entity_heads
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
GRANT SELECT, INSERT ON entity_logs TO pulse_api;
GRANT SELECT, UPDATE ON entity_logs TO pulse_pipeline;
GRANT SELECT, INSERT, DELETE ON entity_heads TO pulse_pipeline;
GRANT USAGE ON SEQUENCE entity_generations TO pulse_api, pulse_pipeline;
GRANT USAGE ON SEQUENCE entity_head_runs TO pulse_pipeline;
