-- Questions of tenants: who asked what, which queries that ran (in sql_queries), and what a model took for it.

CREATE TABLE questions (
    tenant_id   uuid NOT NULL REFERENCES pdm_tenants,
    question_id text NOT NULL CHECK (question_id ~ '^[A-Za-z0-9._-]{1,64}$'),
    key_id      text, -- null: an operator asked, by the command line
    question    text NOT NULL,
    provider    text NOT NULL, -- grammar, or the model
    state       text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'answered', 'refused', 'failed')),
    queries     text[] NOT NULL DEFAULT '{}',
    tokens      bigint NOT NULL DEFAULT 0 CHECK (tokens >= 0),
    seconds     double precision,
    error       text,
    asked_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, question_id)
);
CREATE INDEX questions_asked ON questions (tenant_id, asked_at);
ALTER TABLE questions ENABLE ROW LEVEL SECURITY;
ALTER TABLE questions FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON questions
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
-- What is young stays, whoever asks.
CREATE POLICY only_old_ones ON questions AS RESTRICTIVE FOR DELETE
    USING (asked_at < now() - interval '1 day');
GRANT SELECT, INSERT, UPDATE, DELETE ON questions TO pulse_api;
