-- Pipes: each brings the rows of a source's table into a dataset of entities, by syncs.

CREATE TABLE pipes (
    tenant_id     uuid NOT NULL REFERENCES pdm_tenants,
    pipe          text NOT NULL,
    dataset_id    uuid NOT NULL UNIQUE REFERENCES entity_logs ON DELETE CASCADE,
    definition    jsonb NOT NULL, -- without any credentials
    state         text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused')),
    every_seconds integer CHECK (every_seconds > 0), -- null: only when somebody says so
    asked_at      timestamptz,  -- somebody said so, and no run has begun since
    begun_at      timestamptz,  -- of the last run
    anew_after    bigint NOT NULL DEFAULT 0, -- positions of syncs up to this one are forgotten
    error         text,         -- of the last run
    created_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, pipe)
);
ALTER TABLE pipes ENABLE ROW LEVEL SECURITY;
ALTER TABLE pipes FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON pipes USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
-- A sensor launches those of all tenants.
CREATE POLICY look_at_all ON pipes FOR SELECT TO pulse_pipeline USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON pipes TO pulse_api;
GRANT SELECT, UPDATE ON pipes TO pulse_pipeline;

ALTER TABLE entity_syncs
    ADD COLUMN pipe     text, -- that made it
    ADD COLUMN position text; -- of the source, up to which it brings what there is; true once it has settled
CREATE INDEX entity_syncs_of_pipe ON entity_syncs (tenant_id, pipe, sync_id) WHERE pipe IS NOT NULL;
