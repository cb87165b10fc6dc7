-- Sinks: a pipe can bring a dataset of entities to a place outside, too.

ALTER TABLE pipes
    ADD COLUMN delivers  boolean NOT NULL DEFAULT false, -- it reads its dataset, and brings it to a sink
    -- How far a sink has confirmed what was brought: generation and place in the log, as of a reset (`anew_after`); of a
    -- service that is pushed to also the chain of requests. A database that is a sink knows better, by its own table.
    ADD COLUMN confirmed jsonb,
    DROP CONSTRAINT pipes_dataset_id_key;
CREATE UNIQUE INDEX pipes_that_bring ON pipes (dataset_id) WHERE NOT delivers;
CREATE INDEX pipes_of_datasets ON pipes (dataset_id);

CREATE TABLE pipe_deliveries ( -- runs of pipes with a sink
    delivery_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id   uuid NOT NULL,
    pipe        text NOT NULL,
    state       text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'failed')),
    is_full     boolean NOT NULL DEFAULT false, -- all entities were brought, and what is not there any more was deleted
    versions    bigint NOT NULL DEFAULT 0,      -- that were read
    upserted    bigint NOT NULL DEFAULT 0,
    deleted     bigint NOT NULL DEFAULT 0,
    refused     bigint NOT NULL DEFAULT 0,
    begun_at    timestamptz NOT NULL DEFAULT now(),
    ended_at    timestamptz,
    reason      text,
    FOREIGN KEY (tenant_id, pipe) REFERENCES pipes ON DELETE CASCADE
);
CREATE INDEX pipe_deliveries_of_pipe ON pipe_deliveries (tenant_id, pipe, delivery_id);
ALTER TABLE pipe_deliveries ENABLE ROW LEVEL SECURITY;
ALTER TABLE pipe_deliveries FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON pipe_deliveries USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
-- Schedules, metrics and alerts are of all tenants.
CREATE POLICY look_at_all ON pipe_deliveries FOR SELECT TO pulse_pipeline USING (true);
GRANT SELECT ON pipe_deliveries TO pulse_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON pipe_deliveries TO pulse_pipeline;
