-- The latest result of each check of a dataset, for its tenant; all results are in the control room.

CREATE TABLE check_results (
    tenant_id  uuid NOT NULL,
    dataset_id uuid NOT NULL REFERENCES pdm_datasets ON DELETE CASCADE,
    name       text NOT NULL,
    scope      text NOT NULL CHECK (scope IN ('batch', 'table')), -- what a batch added, or any of the table
    problems   integer NOT NULL CHECK (problems >= 0),
    checked_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (dataset_id, name)
);
ALTER TABLE check_results ENABLE ROW LEVEL SECURITY;
ALTER TABLE check_results FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON check_results
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
GRANT SELECT, INSERT, UPDATE ON check_results TO pulse_pipeline;
GRANT SELECT ON check_results TO pulse_api;
