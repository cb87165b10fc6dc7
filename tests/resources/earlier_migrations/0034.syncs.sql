-- Syncs: what was sent to a dataset of entities between two moments of its tenant's topic, as one thing.

-- The share of its entities that a full sync may delete without a person's word.
ALTER TABLE entity_logs
    ADD COLUMN deletes_most double precision NOT NULL DEFAULT 0.2 CHECK (deletes_most BETWEEN 0 AND 1);

CREATE SEQUENCE entity_sync_numbers;
CREATE TABLE entity_syncs (
    tenant_id   uuid NOT NULL REFERENCES pdm_tenants,
    sync_id     bigint PRIMARY KEY DEFAULT nextval('entity_sync_numbers'),
    dataset_id  uuid NOT NULL REFERENCES entity_logs ON DELETE CASCADE,
    is_full     boolean NOT NULL,
    sequence_id text NOT NULL,
    request_id  text NOT NULL, -- of its last part
    parts       integer NOT NULL DEFAULT 0, -- that were taken
    -- open: parts come; sent: all are on the topic; held: a person decides; deleting: its deletions are on
    -- their way. The others are ends.
    state       text NOT NULL DEFAULT 'open' CHECK (state IN (
        'open', 'sent', 'held', 'deleting', 'done', 'rolled_back', 'superseded', 'failed')),
    starts      jsonb NOT NULL, -- by partition: where it begins ...
    ends        jsonb,          -- ... where all of it is before ...
    swept_to    jsonb,          -- ... and where its deletions are before
    refused     bigint NOT NULL DEFAULT 0,
    nameless    bigint NOT NULL DEFAULT 0, -- of the refused: nobody can tell which entities they are
    created     bigint NOT NULL DEFAULT 0,
    changed     bigint NOT NULL DEFAULT 0,
    unchanged   bigint NOT NULL DEFAULT 0,
    deleted     bigint NOT NULL DEFAULT 0,
    entities    bigint, -- not deleted, when it was decided what it deletes
    absent      bigint, -- of these: what it did not bring
    reason      text,   -- why it is held, or has failed
    begun_at    timestamptz NOT NULL DEFAULT now(),
    settled_at  timestamptz, -- all that was sent
    ended_at    timestamptz
);
CREATE INDEX entity_syncs_of_dataset ON entity_syncs (dataset_id, sync_id);
CREATE INDEX entity_syncs_unfinished ON entity_syncs (tenant_id)
    WHERE state IN ('open', 'sent', 'held', 'deleting');

-- Of a full sync that has not ended: the digests of the ids of all entities that came since it began.
CREATE SEQUENCE entity_sync_runs;
CREATE TABLE entity_sync_ids (
    tenant_id uuid NOT NULL REFERENCES pdm_tenants,
    sync_id   bigint NOT NULL REFERENCES entity_syncs ON DELETE CASCADE,
    run       bigint NOT NULL DEFAULT nextval('entity_sync_runs'),
    ids       bytea STORAGE EXTERNAL NOT NULL CHECK (octet_length(ids) % 16 = 0),
    PRIMARY KEY (sync_id, run)
);

ALTER TABLE entity_syncs ENABLE ROW LEVEL SECURITY;
ALTER TABLE entity_syncs FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON entity_syncs
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
-- A sensor looks for those of all tenants.
CREATE POLICY look_at_all ON entity_syncs FOR SELECT TO pulse_pipeline USING (true);
ALTER TABLE entity_sync_ids ENABLE ROW LEVEL SECURITY;
ALTER TABLE entity_sync_ids FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON entity_sync_ids
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
GRANT SELECT, INSERT, UPDATE ON entity_syncs TO pulse_api, pulse_pipeline;
GRANT UPDATE (deletes_most) ON entity_logs TO pulse_api;
GRANT INSERT ON entity_sync_ids TO pulse_api;
GRANT SELECT, INSERT, DELETE ON entity_sync_ids TO pulse_pipeline;
GRANT USAGE ON SEQUENCE entity_sync_numbers, entity_sync_runs TO pulse_api, pulse_pipeline;
