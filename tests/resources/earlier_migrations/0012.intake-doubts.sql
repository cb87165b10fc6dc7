-- Events that were published, were not acknowledged, and may have been written nevertheless: their reservation
-- stays, and the same event sent again needs no other.

CREATE TABLE intake_doubts (
    tenant_id uuid NOT NULL REFERENCES pdm_tenants,
    kind      text NOT NULL,
    event     bytea NOT NULL, -- digest of its dataset and event id
    month     date NOT NULL,  -- that it is reserved in
    PRIMARY KEY (tenant_id, kind, event)
);
ALTER TABLE intake_doubts ENABLE ROW LEVEL SECURITY;
ALTER TABLE intake_doubts FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON intake_doubts
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
GRANT SELECT, INSERT, UPDATE, DELETE ON intake_doubts TO pulse_api; -- UPDATE: to lock them
