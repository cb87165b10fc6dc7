-- Failures: what a run over many tenants could not do for one of them, until it is done.

CREATE TABLE failures (
    tenant_id  uuid NOT NULL REFERENCES pdm_tenants,
    job        text NOT NULL,
    task       text NOT NULL,
    dataset_id uuid REFERENCES pdm_datasets ON DELETE CASCADE, -- null: the work is about all of the tenant
    slug       text,
    day        date, -- null: it is about all of the dataset
    error      text NOT NULL,
    count      integer NOT NULL DEFAULT 1, -- in a row
    first_at   timestamptz NOT NULL DEFAULT now(),
    last_at    timestamptz NOT NULL DEFAULT now(),
    retry_at   timestamptz NOT NULL, -- it is left alone until then, and goes behind what has not failed
    UNIQUE NULLS NOT DISTINCT (tenant_id, job, task, dataset_id, day)
);
CREATE INDEX failures_dataset ON failures (dataset_id);
ALTER TABLE failures ENABLE ROW LEVEL SECURITY;
ALTER TABLE failures FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON failures USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
-- What waits to be tried again is left out of what is decided for all tenants at once; alerts name it.
CREATE POLICY plan_all ON failures FOR SELECT TO pulse_pipeline USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON failures TO pulse_pipeline;
