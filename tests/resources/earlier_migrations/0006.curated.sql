-- The curated zone: what was computed from a day of a dataset, as it is served.

CREATE TABLE summaries (
    tenant_id   uuid NOT NULL,
    dataset_id  uuid NOT NULL REFERENCES pdm_datasets ON DELETE CASCADE,
    rollup      text NOT NULL,
    day         date NOT NULL,
    definition  text NOT NULL,        -- of the rollup; another one makes the day due again
    landed_at   timestamptz NOT NULL, -- the last change of the day that was looked at
    grain       text[] NOT NULL,
    rows        json NOT NULL,        -- an array of objects: grain and measures (json: jsonb takes no \u0000)
    snapshot_id bigint,               -- that the rows are from; null: none was computed yet
    computed_at timestamptz,
    error       text,                 -- why the rows are not of that change
    PRIMARY KEY (dataset_id, rollup, day),
    CHECK (error IS NOT NULL OR computed_at IS NOT NULL)
);
ALTER TABLE summaries ENABLE ROW LEVEL SECURITY;
ALTER TABLE summaries FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON summaries USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
CREATE POLICY plan_all ON summaries FOR SELECT TO pulse_pipeline USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON summaries TO pulse_pipeline;
GRANT SELECT ON summaries TO pulse_api;

-- A curated table begins with its first rows, in the transaction that serves them.
GRANT INSERT ON iceberg_catalog.iceberg_tables TO pulse_pipeline;

-- When a day changed last is asked for each day that is shown.
DROP INDEX landings_dataset_day;
CREATE INDEX landings_dataset_day ON landings (tenant_id, dataset_id, day, landed_at);
