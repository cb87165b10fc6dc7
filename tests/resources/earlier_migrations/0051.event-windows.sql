-- Windows of a state: counts and sums of the last minutes and hours, and sessions, as buckets of a key and a minute.

CREATE SEQUENCE event_window_numbers;
CREATE TABLE event_windows (
    tenant_id     uuid NOT NULL REFERENCES pdm_tenants,
    dataset_id    uuid PRIMARY KEY REFERENCES event_states ON DELETE CASCADE,
    number        bigint NOT NULL DEFAULT nextval('event_window_numbers'),
    sums          text[] NOT NULL, -- columns
    session_gap_s integer, -- null: no sessions
    max_buckets   integer NOT NULL CHECK (max_buckets > 0),
    buckets       integer NOT NULL DEFAULT 0 CHECK (buckets >= 0), -- that are kept
    newest        integer, -- minute of the newest event, since 1970; null: there was none
    dropped_to    integer, -- for want of room no bucket of this minute, or of an earlier one, is kept
    built         boolean NOT NULL DEFAULT false, -- whether they have all that the table has
    round         bigint NOT NULL DEFAULT 1, -- how often they began anew
    base          text, -- metadata of the table that they are built from; batches add what settled since
    read_files    integer NOT NULL DEFAULT 0, -- how far the build is: whole files of the base ...
    read_pieces   integer NOT NULL DEFAULT 0  -- ... and pieces of the next one
);

CREATE TABLE event_window_buckets (
    tenant_id  uuid NOT NULL,
    dataset_id uuid NOT NULL REFERENCES event_windows ON DELETE CASCADE,
    key        text COLLATE "C" NOT NULL,
    minute     integer NOT NULL, -- since 1970, by the events' timestamps
    number     bigint NOT NULL, -- of the windows
    events     bigint NOT NULL,
    first_at   bigint NOT NULL, -- in microseconds since 1970
    last_at    bigint NOT NULL,
    sums       numeric[] NOT NULL,
    PRIMARY KEY (dataset_id, key, minute)
);
-- Old minutes are found by the windows' number, and keys by their dataset: so neither index can be taken for the
-- other, whatever the statistics say of a dataset that they do not know yet.
CREATE INDEX event_window_buckets_by_minute ON event_window_buckets (number, minute);

ALTER TABLE event_windows ENABLE ROW LEVEL SECURITY;
ALTER TABLE event_windows FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON event_windows
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
CREATE POLICY plan_all ON event_windows FOR SELECT TO pulse_pipeline USING (true);
ALTER TABLE event_window_buckets ENABLE ROW LEVEL SECURITY;
ALTER TABLE event_window_buckets FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON event_window_buckets
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
-- As of states: who declares windows builds them; from then on batches keep them.
GRANT SELECT, INSERT, UPDATE, DELETE ON event_windows TO pulse_api;
GRANT SELECT, UPDATE ON event_windows TO pulse_pipeline;
GRANT SELECT, INSERT, UPDATE, DELETE ON event_window_buckets TO pulse_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON event_window_buckets TO pulse_pipeline;
GRANT USAGE ON SEQUENCE event_window_numbers TO pulse_api;
-- Batches whose files know nothing of windows that were declared meanwhile must not settle beside them.
GRANT UPDATE (state_id) ON event_states TO pulse_api;
