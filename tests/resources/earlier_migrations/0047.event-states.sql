-- The state of a dataset of events: of each value of a column (the key) the newest event, kept by the batches.

CREATE SEQUENCE event_state_numbers;
CREATE TABLE event_states (
    tenant_id  uuid NOT NULL REFERENCES pdm_tenants,
    dataset_id uuid PRIMARY KEY REFERENCES pdm_datasets ON DELETE CASCADE,
    state_id   bigint NOT NULL DEFAULT nextval('event_state_numbers'), -- of this declaration
    latest_by  text NOT NULL, -- the column
    max_keys   integer NOT NULL CHECK (max_keys > 0),
    keys       integer NOT NULL DEFAULT 0 CHECK (keys >= 0), -- that are kept
    left_out   bigint NOT NULL DEFAULT 0, -- times that a batch brought a key for which there was no room
    marks      bigint NOT NULL DEFAULT 1, -- how often it came to lack something that the table has ...
    built      bigint NOT NULL DEFAULT 0, -- ... and which of these times it was built from the table since
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE event_state_keys (
    tenant_id    uuid NOT NULL REFERENCES pdm_tenants,
    dataset_id   uuid NOT NULL REFERENCES event_states ON DELETE CASCADE,
    key          text COLLATE "C" NOT NULL,
    at           bigint NOT NULL, -- the event's timestamp, in microseconds since 1970
    partition    integer NOT NULL,
    event_offset bigint NOT NULL,
    event_id     text NOT NULL,
    data         text, -- JSON; null: it is too large to be kept here
    PRIMARY KEY (dataset_id, key)
);

ALTER TABLE event_states ENABLE ROW LEVEL SECURITY;
ALTER TABLE event_states FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON event_states
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
CREATE POLICY plan_all ON event_states FOR SELECT TO pulse_pipeline USING (true);
ALTER TABLE event_state_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE event_state_keys FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON event_state_keys
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
-- Who declares a state builds it; from then on batches keep it.
GRANT SELECT, INSERT, DELETE, UPDATE (keys, left_out, marks, built, max_keys) ON event_states TO pulse_api;
GRANT SELECT, UPDATE (keys, left_out, marks, built) ON event_states TO pulse_pipeline;
GRANT SELECT, INSERT, UPDATE, DELETE ON event_state_keys TO pulse_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON event_state_keys TO pulse_pipeline;
GRANT USAGE ON SEQUENCE event_state_numbers TO pulse_api;
