-- Upkeep: what was done to the lake and why, and what is known of each table and day since.

CREATE TABLE upkeep_log (
    tenant_id     uuid NOT NULL REFERENCES pdm_tenants,
    upkeep_id     text NOT NULL,
    dataset_id    uuid, -- null: the task is about all of the tenant
    slug          text,
    day           date,
    task          text NOT NULL,
    reason        text NOT NULL,
    outcome       text NOT NULL DEFAULT 'running'
                  CHECK (outcome IN ('running', 'done', 'failed', 'rolled_back', 'abandoned')),
    detail        text,
    before        jsonb NOT NULL DEFAULT '{}',
    after         jsonb NOT NULL DEFAULT '{}',
    snapshot_id   bigint, -- that the table had afterwards
    run_id        text,
    started_at    timestamptz NOT NULL DEFAULT now(),
    ended_at      timestamptz,
    seconds       double precision,
    PRIMARY KEY (tenant_id, upkeep_id)
);
CREATE INDEX upkeep_log_started ON upkeep_log (started_at);
CREATE INDEX upkeep_log_open ON upkeep_log (dataset_id) WHERE outcome IN ('running', 'abandoned');

-- What was true of a table when upkeep last looked at it; the ledger says what came since.
CREATE TABLE upkeep_tables (
    tenant_id  uuid NOT NULL,
    dataset_id uuid PRIMARY KEY REFERENCES pdm_datasets ON DELETE CASCADE,
    seen_at    timestamptz NOT NULL,
    snapshots  integer NOT NULL,
    oldest_at  timestamptz, -- of its kept snapshots
    manifests  integer NOT NULL,
    swept_at   timestamptz -- when its folder was last searched for orphans
);
-- Totals of the ledger up to the last compaction of a day, and what the compaction left.
CREATE TABLE upkeep_days (
    tenant_id    uuid NOT NULL,
    dataset_id   uuid NOT NULL REFERENCES pdm_datasets ON DELETE CASCADE,
    day          date NOT NULL,
    level        integer NOT NULL CHECK (level IN (1, 2)),
    landed_files bigint NOT NULL,
    landed_bytes bigint NOT NULL,
    files        integer NOT NULL,
    bytes        bigint NOT NULL,
    compacted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (dataset_id, day)
);
-- When each tenant's raw zone was last searched for orphans, and for what is older than its retention.
CREATE TABLE upkeep_tenants (
    tenant_id   uuid PRIMARY KEY REFERENCES pdm_tenants,
    swept_at    timestamptz,
    retained_at timestamptz
);

DO $$
DECLARE t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['upkeep_log', 'upkeep_tables', 'upkeep_days', 'upkeep_tenants']
    LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY own_tenant ON %I USING (tenant_id = app_tenant())'
            ' WITH CHECK (tenant_id = app_tenant())', t);
        -- Which tables need upkeep is decided for all tenants at once.
        EXECUTE format('CREATE POLICY plan_all ON %I FOR SELECT TO pulse_pipeline USING (true)', t);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE ON %I TO pulse_pipeline', t);
    END LOOP;
END $$;

-- Retention removes an object after its row says so: what is not deleted yet is found by this.
ALTER TABLE raw_objects ADD COLUMN deleted_at timestamptz;
CREATE INDEX raw_objects_removed ON raw_objects (tenant_id)
    WHERE removed_at IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX raw_objects_batch ON raw_objects (batch_id);
-- Claims are only ever added at the end: block ranges are enough to find old ones.
CREATE INDEX processed_event_ids_claimed_on ON processed_event_ids USING brin (claimed_on);
