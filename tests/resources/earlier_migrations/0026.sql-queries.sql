-- Queries of tenants over their own tables: each is recorded before it runs, and what became of it afterwards.

CREATE TABLE sql_queries (
    tenant_id uuid NOT NULL REFERENCES pdm_tenants,
    query_id  text NOT NULL CHECK (query_id ~ '^[A-Za-z0-9._-]{1,64}$'),
    key_id    text, -- null: an operator asked, by the command line
    sql       text NOT NULL,
    state     text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'failed', 'cancelled')),
    snapshots jsonb NOT NULL DEFAULT '{}', -- by slug; null: the table was empty
    rows      bigint,
    bytes     bigint,
    seconds   double precision,
    error     text,
    asked_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, query_id)
);
CREATE INDEX sql_queries_asked ON sql_queries (tenant_id, asked_at);
ALTER TABLE sql_queries ENABLE ROW LEVEL SECURITY;
ALTER TABLE sql_queries FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON sql_queries
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
-- What is young stays, whoever asks.
CREATE POLICY only_old_ones ON sql_queries AS RESTRICTIVE FOR DELETE
    USING (asked_at < now() - interval '1 day');
GRANT SELECT, INSERT, UPDATE, DELETE ON sql_queries TO pulse_api;
