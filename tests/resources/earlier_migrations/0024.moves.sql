-- Moves of datasets to a newer schema that write data files again: each is a run, and attempts at it.

CREATE TABLE dataset_moves (
    tenant_id  uuid NOT NULL REFERENCES pdm_tenants,
    move_id    text NOT NULL,
    dataset_id uuid NOT NULL, -- which may be deleted meanwhile
    slug       text NOT NULL,
    from_uri   text NOT NULL,
    schema_uri text NOT NULL,
    state      text NOT NULL DEFAULT 'planned' CHECK (state IN ('planned', 'running', 'done', 'failed')),
    attempt    integer NOT NULL DEFAULT 1,
    not_before timestamptz NOT NULL DEFAULT now(),
    files      integer, -- to be written again, as far as this attempt knows; null: it has not looked
    files_done integer NOT NULL DEFAULT 0,
    error      text, -- of the attempt before, or why it failed
    run_id     text, -- of the Dagster run
    asked_at   timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    ended_at   timestamptz,
    PRIMARY KEY (tenant_id, move_id)
);
-- One at a time: a second one is refused until the first has ended.
CREATE UNIQUE INDEX dataset_moves_one ON dataset_moves (dataset_id) WHERE state IN ('planned', 'running');
CREATE INDEX dataset_moves_open ON dataset_moves (asked_at) WHERE state IN ('planned', 'running');
CREATE INDEX dataset_moves_slug ON dataset_moves (tenant_id, slug, asked_at);
ALTER TABLE dataset_moves ENABLE ROW LEVEL SECURITY;
ALTER TABLE dataset_moves FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON dataset_moves
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
-- A sensor launches those of all tenants.
CREATE POLICY plan_all ON dataset_moves FOR SELECT TO pulse_pipeline USING (true);
-- The transaction that moves the dataset, which is pulse_api's, says that the move is done.
GRANT SELECT, INSERT, UPDATE ON dataset_moves TO pulse_api;
GRANT SELECT, UPDATE ON dataset_moves TO pulse_pipeline;
