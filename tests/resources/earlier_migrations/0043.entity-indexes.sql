-- Indexes of entity datasets: of each version of the log the value of an expression, and the one that its entity had
-- before.

CREATE SEQUENCE entity_index_numbers;
CREATE TABLE entity_indexes (
    tenant_id  uuid NOT NULL REFERENCES pdm_tenants,
    index_id   bigint PRIMARY KEY DEFAULT nextval('entity_index_numbers'),
    dataset_id uuid NOT NULL REFERENCES entity_logs ON DELETE CASCADE,
    expression text NOT NULL, -- in its canonical form
    updated    bigint NOT NULL DEFAULT 0 CHECK (updated >= 0), -- `_updated` of the last version that it has
    entries    bigint NOT NULL DEFAULT 0 CHECK (entries >= 0), -- values in its runs
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (dataset_id, expression)
);

-- Of consecutive versions the digest of the value that each has, then those of the values that were others before:
-- of all the first eight bytes, then the last eight.
CREATE TABLE entity_index_runs (
    tenant_id uuid NOT NULL REFERENCES pdm_tenants,
    index_id  bigint NOT NULL REFERENCES entity_indexes ON DELETE CASCADE,
    first     bigint NOT NULL, -- `_updated` of the first version
    versions  integer NOT NULL CHECK (versions > 0),
    packed    bytea STORAGE EXTERNAL NOT NULL CHECK (octet_length(packed) = 32 * versions),
    PRIMARY KEY (index_id, first)
);

-- Who reads subsets by an index: an index that nobody reads can be dropped.
CREATE TABLE entity_index_readers (
    tenant_id uuid NOT NULL REFERENCES pdm_tenants,
    index_id  bigint NOT NULL REFERENCES entity_indexes ON DELETE CASCADE,
    reader    text NOT NULL, -- id of an API key
    read_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (index_id, reader)
);

ALTER TABLE entity_indexes ENABLE ROW LEVEL SECURITY;
ALTER TABLE entity_indexes FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON entity_indexes
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
ALTER TABLE entity_index_runs ENABLE ROW LEVEL SECURITY;
ALTER TABLE entity_index_runs FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON entity_index_runs
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
ALTER TABLE entity_index_readers ENABLE ROW LEVEL SECURITY;
ALTER TABLE entity_index_readers FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON entity_index_readers
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
-- Who declares an index builds it; from then on batches maintain it.
GRANT SELECT, INSERT, DELETE, UPDATE (updated, entries) ON entity_indexes TO pulse_api;
GRANT SELECT, UPDATE (updated, entries) ON entity_indexes TO pulse_pipeline;
GRANT SELECT, INSERT, DELETE ON entity_index_runs TO pulse_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON entity_index_runs TO pulse_pipeline;
GRANT SELECT, INSERT, UPDATE ON entity_index_readers TO pulse_api;
GRANT USAGE ON SEQUENCE entity_index_numbers TO pulse_api;
