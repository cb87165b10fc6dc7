-- Losses that an operator accepted: events that a topic no longer held before they were ingested.

-- Offsets are Pulse's own: the broker's plus base_offset. A topic that was recreated begins at 0 again, while
-- here its log goes on where the one before it ended, so that no two events ever have one position.
ALTER TABLE ingest_positions ADD COLUMN base_offset bigint NOT NULL DEFAULT 0;

CREATE TABLE accepted_losses (
    tenant_id   uuid NOT NULL REFERENCES pdm_tenants,
    partition   integer NOT NULL,
    position    bigint NOT NULL, -- the first offset that was never ingested
    lost        bigint,          -- offsets that are skipped; null: nobody can know
    problem     text NOT NULL,
    accepted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, partition, position, accepted_at)
);
ALTER TABLE accepted_losses ENABLE ROW LEVEL SECURITY;
ALTER TABLE accepted_losses FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON accepted_losses
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
GRANT SELECT, INSERT ON accepted_losses TO pulse_pipeline;
GRANT DELETE ON ingest_ranges TO pulse_pipeline; -- of a batch whose events are gone
