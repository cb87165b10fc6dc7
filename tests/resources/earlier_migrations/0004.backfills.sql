-- Backfills: a day of a dataset rebuilt from the raw zone, and dead letters that landed after all.

CREATE TABLE backfills (
    tenant_id      uuid NOT NULL REFERENCES pdm_tenants,
    backfill_id    text NOT NULL,
    dataset_id     uuid NOT NULL,
    slug           text NOT NULL,
    day            date NOT NULL,
    schema_version integer NOT NULL, -- by which events were read that name none
    rows           bigint NOT NULL,
    dead_letters   bigint NOT NULL, -- those among the rows that had been dead letters until then
    files_before   integer NOT NULL,
    files_after    integer NOT NULL,
    bytes          bigint NOT NULL,
    snapshot_id    bigint NOT NULL,
    run_id         text, -- of the Dagster run; null: pulse backfill
    settled_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, backfill_id)
);
CREATE INDEX backfills_day ON backfills (tenant_id, dataset_id, day);
ALTER TABLE backfills ENABLE ROW LEVEL SECURITY;
ALTER TABLE backfills FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON backfills USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
-- A sensor reports those of all tenants to Dagster.
CREATE POLICY plan_all ON backfills FOR SELECT TO pulse_pipeline USING (true);
GRANT SELECT, INSERT ON backfills TO pulse_pipeline;
GRANT SELECT ON backfills TO pulse_api;

-- The row of an object that retention removed stays: a backfill must know that something is missing.
ALTER TABLE raw_objects ADD COLUMN removed_at timestamptz;

-- 'landed': a backfill made it a row at its own position; 'erased': its payload is gone for good.
ALTER TABLE dead_letters
    DROP CONSTRAINT dead_letters_resolution_check,
    ADD CONSTRAINT dead_letters_resolution_check
        CHECK (resolution IN ('replayed', 'discarded', 'landed', 'erased')),
    ADD COLUMN landed_by text, -- the backfill
    ADD CONSTRAINT dead_letters_landed_check CHECK ((resolution = 'landed') = (landed_by IS NOT NULL));
CREATE INDEX dead_letters_batch ON dead_letters (tenant_id, batch_id);

-- Every commit that changes the rows of a (dataset, day) has a row here, with the difference: what depends on
-- the day (upkeep, curated data) looks for it, over all tenants.
CREATE POLICY plan_all ON landings FOR SELECT TO pulse_pipeline USING (true);
CREATE INDEX landings_landed_at ON landings (landed_at);
