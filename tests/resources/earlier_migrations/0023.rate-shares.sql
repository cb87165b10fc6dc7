-- Rates hold over all API processes: each says every second what it was asked for, and takes its part by that.
-- Unlogged: after a crash of Postgres they are empty, and right again a second later.

CREATE UNLOGGED TABLE api_processes (
    process uuid PRIMARY KEY,
    seen_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNLOGGED TABLE rate_shares (
    tenant_id uuid NOT NULL,
    kind      text NOT NULL, -- of rate
    process   uuid NOT NULL REFERENCES api_processes ON DELETE CASCADE,
    asked     double precision NOT NULL, -- per second, whether or not it was granted
    seen_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, kind, process)
);
CREATE INDEX rate_shares_process ON rate_shares (process);
ALTER TABLE rate_shares ENABLE ROW LEVEL SECURITY;
ALTER TABLE rate_shares FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON rate_shares
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
GRANT SELECT, INSERT, UPDATE, DELETE ON api_processes TO pulse_api;
GRANT SELECT, INSERT, UPDATE ON rate_shares TO pulse_api;
