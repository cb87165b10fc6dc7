-- Erasures: a person's events removed from everywhere, and which offsets held them.

CREATE TABLE erasures (
    tenant_id   uuid NOT NULL REFERENCES pdm_tenants,
    erasure_id  text NOT NULL,
    dataset_id  uuid NOT NULL,
    slug        text NOT NULL,
    field       text NOT NULL,
    salt        bytea NOT NULL,
    value_hash  bytea NOT NULL, -- the value is itself personal: only who knows it can tell
    covers      jsonb NOT NULL, -- by partition: the first offset that was not settled when it began
    steps       jsonb NOT NULL DEFAULT '{}', -- what each step did; a step that is not here is to be done
    started_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    PRIMARY KEY (tenant_id, erasure_id)
);
CREATE INDEX erasures_unfinished ON erasures (tenant_id, dataset_id) WHERE finished_at IS NULL;

-- Events that had landed and are no rows any more: as accounted for as rows, duplicates and dead letters.
CREATE TABLE erased_offsets (
    tenant_id  uuid NOT NULL REFERENCES pdm_tenants,
    erasure_id text NOT NULL,
    partition  integer NOT NULL,
    offsets    int8multirange NOT NULL,
    PRIMARY KEY (tenant_id, erasure_id, partition)
);

ALTER TABLE erasures ENABLE ROW LEVEL SECURITY;
ALTER TABLE erasures FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON erasures USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
ALTER TABLE erased_offsets ENABLE ROW LEVEL SECURITY;
ALTER TABLE erased_offsets FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON erased_offsets
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
GRANT SELECT, INSERT, UPDATE ON erasures TO pulse_pipeline;
GRANT SELECT, INSERT ON erased_offsets TO pulse_pipeline;
GRANT SELECT ON erased_offsets TO pulse_api;
