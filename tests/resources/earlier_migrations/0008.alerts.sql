-- Alerts: what is wrong, for operators, and whom each was told to. They are about tenants, and no tenant sees them.

CREATE TABLE alerts (
    alert_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key         text NOT NULL, -- what is wrong with what: the same while it goes on
    kind        text NOT NULL,
    severity    text NOT NULL CHECK (severity IN ('warning', 'error')),
    about       jsonb NOT NULL, -- tenant, dataset, batch, run ..., where there is one
    summary     text NOT NULL,
    fix         text NOT NULL, -- what to do
    first_seen  timestamptz NOT NULL DEFAULT now(),
    last_seen   timestamptz NOT NULL DEFAULT now(),
    resolved_at timestamptz
);
CREATE UNIQUE INDEX alerts_open ON alerts (key) WHERE resolved_at IS NULL;
CREATE INDEX alerts_resolved ON alerts (resolved_at) WHERE resolved_at IS NOT NULL;

-- What each notifier is owed. A row is written with the alert and closed when its end was announced.
CREATE TABLE alert_deliveries (
    alert_id      bigint NOT NULL REFERENCES alerts ON DELETE CASCADE,
    notifier      text NOT NULL,
    notified_at   timestamptz, -- when it was told last; null: never
    told_severity text,
    closed        boolean NOT NULL DEFAULT false,
    error         text, -- why it could not be told the last time
    PRIMARY KEY (alert_id, notifier)
);
CREATE INDEX alert_deliveries_owed ON alert_deliveries (notifier, alert_id) WHERE NOT closed;

GRANT SELECT, INSERT, UPDATE, DELETE ON alerts, alert_deliveries TO pulse_pipeline;
