-- The quota of a month holds for events that were written to the topic directly, too: those that land without
-- the front door having counted them take a place at the dedup gate.

ALTER TABLE usage
    -- Of the rows that landed in the month, those of events received before it: they count in the month before.
    ADD COLUMN early bigint NOT NULL DEFAULT 0,
    -- Places in the month that rows took when they landed, since the front door had taken none for them.
    ADD COLUMN direct bigint NOT NULL DEFAULT 0;

-- Places of a batch between its gate and its settle, which makes them rows of `usage`.
CREATE TABLE intake_holds (
    tenant_id uuid NOT NULL REFERENCES pdm_tenants,
    kind      text NOT NULL,
    batch_id  text NOT NULL,
    month     date NOT NULL,
    records   bigint NOT NULL CHECK (records >= 0),
    direct    bigint NOT NULL CHECK (direct BETWEEN 0 AND records), -- of them, as in `usage`
    PRIMARY KEY (tenant_id, kind, batch_id, month)
);
ALTER TABLE intake_holds ENABLE ROW LEVEL SECURITY;
ALTER TABLE intake_holds FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON intake_holds
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
GRANT SELECT ON intake_holds TO pulse_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON intake_holds TO pulse_pipeline;
GRANT SELECT ON quotas TO pulse_pipeline;
GRANT SELECT, INSERT, UPDATE ON intake TO pulse_pipeline; -- UPDATE: to lock the month

-- How many wait for room, and since when.
CREATE INDEX dead_letters_over_quota ON dead_letters (tenant_id, settled_at)
    WHERE resolution IS NULL AND reason = 'over_quota';
