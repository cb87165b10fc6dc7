-- The front door: keys, quotas and rates, schema versions of datasets, and what became of dead letters.

-- keys ----------------------------------------------------------------------------------------

-- A key names its tenant, so that it is looked up inside that tenant's own session.
CREATE TABLE api_keys (
    tenant_id    uuid NOT NULL REFERENCES pdm_tenants,
    key_id       text NOT NULL,
    name         text NOT NULL,
    scopes       text[] NOT NULL
                 CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['collect', 'read', 'manage']),
    key_hash     bytea NOT NULL, -- SHA-256 of the secret part, which has 256 random bits
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz,
    PRIMARY KEY (tenant_id, key_id)
);
CREATE TABLE operator_keys (
    key_id       text PRIMARY KEY,
    name         text NOT NULL,
    key_hash     bytea NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    revoked_at   timestamptz,
    last_used_at timestamptz
);

-- quotas and rates ----------------------------------------------------------------------------

-- Limits: positive a maximum, -1 unlimited, 0 none configured (the installation's default holds).
CREATE TABLE quotas (
    tenant_id             uuid NOT NULL REFERENCES pdm_tenants,
    kind                  text NOT NULL CHECK (kind IN ('events', 'entities')),
    max_datasets          bigint NOT NULL DEFAULT 0 CHECK (max_datasets >= -1),
    max_records_per_month bigint NOT NULL DEFAULT 0 CHECK (max_records_per_month >= -1),
    PRIMARY KEY (tenant_id, kind)
);
CREATE TABLE rates (
    tenant_id           uuid PRIMARY KEY REFERENCES pdm_tenants,
    requests_per_second double precision NOT NULL DEFAULT 0 CHECK (requests_per_second >= -1),
    events_per_second   double precision NOT NULL DEFAULT 0 CHECK (events_per_second >= -1)
);
-- Records that the front door accepted; `usage` has what landed. Apart, so that collecting never waits
-- for the row lock of a settle transaction.
CREATE TABLE intake (
    tenant_id uuid NOT NULL REFERENCES pdm_tenants,
    kind      text NOT NULL,
    month     date NOT NULL,
    records   bigint NOT NULL CHECK (records >= 0),
    PRIMARY KEY (tenant_id, kind, month)
);
ALTER TABLE usage ADD COLUMN kind text NOT NULL DEFAULT 'events';
ALTER TABLE usage DROP CONSTRAINT usage_pkey, ADD PRIMARY KEY (tenant_id, kind, month);

-- datasets ------------------------------------------------------------------------------------

ALTER TABLE pdm_datasets
    ADD COLUMN on_invalid text NOT NULL DEFAULT 'refuse' CHECK (on_invalid IN ('refuse', 'dead_letter'));

-- Every schema version that a dataset follows or followed: an event may name the one that it is of.
CREATE TABLE dataset_versions (
    tenant_id  uuid NOT NULL,
    dataset_id uuid NOT NULL REFERENCES pdm_datasets ON DELETE CASCADE,
    version    integer NOT NULL,
    schema_uri text NOT NULL,
    since      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (dataset_id, version),
    FOREIGN KEY (tenant_id, schema_uri) REFERENCES pdm_schemas (tenant_id, schema_uri)
);
-- The files of a deleted dataset stay: what landed there is still accounted for.
CREATE TABLE deleted_datasets (
    tenant_id         uuid NOT NULL REFERENCES pdm_tenants,
    dataset_id        uuid PRIMARY KEY,
    slug              text NOT NULL,
    metadata_location text, -- null: its table was not in the catalog any more
    deleted_at        timestamptz NOT NULL DEFAULT now()
);

-- dead letters and measures -------------------------------------------------------------------

ALTER TABLE dead_letters
    ADD COLUMN resolution text CHECK (resolution IN ('replayed', 'discarded')),
    ADD COLUMN resolved_at timestamptz,
    ADD CHECK ((resolution IS NULL) = (resolved_at IS NULL));
CREATE INDEX dead_letters_open ON dead_letters (tenant_id, settled_at) WHERE resolution IS NULL;

ALTER TABLE ingest_ranges ADD COLUMN oldest_received timestamptz;
ALTER TABLE ingest_batches
    ADD COLUMN settle_seconds double precision, -- of the settle stage, over all tenants
    ADD COLUMN commit_seconds double precision; -- of its slowest transaction

-- What caches hold of a tenant is void at once when one of these changes, whoever changed it.
CREATE FUNCTION announce_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('pulse_changes', COALESCE(NEW.tenant_id, OLD.tenant_id)::text);
    RETURN NULL;
END $$;
CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE OF scopes, key_hash, expires_at, revoked_at
    ON api_keys FOR EACH ROW EXECUTE FUNCTION announce_change();
CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE ON pdm_datasets
    FOR EACH ROW EXECUTE FUNCTION announce_change();
CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE ON quotas
    FOR EACH ROW EXECUTE FUNCTION announce_change();
CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE ON rates
    FOR EACH ROW EXECUTE FUNCTION announce_change();
CREATE FUNCTION announce_operator() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('pulse_changes', 'operator');
    RETURN NULL;
END $$;
CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE OF key_hash, revoked_at ON operator_keys
    FOR EACH STATEMENT EXECUTE FUNCTION announce_operator();

-- row-level security and grants ---------------------------------------------------------------

DO $$
DECLARE t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['api_keys', 'quotas', 'rates', 'intake', 'dataset_versions',
        'deleted_datasets']
    LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY own_tenant ON %I USING (tenant_id = app_tenant())'
            ' WITH CHECK (tenant_id = app_tenant())', t);
    END LOOP;
    CREATE POLICY plan_all ON dataset_versions FOR SELECT TO pulse_pipeline USING (true);
END $$;

GRANT SELECT, INSERT ON api_keys TO pulse_api;
GRANT UPDATE (expires_at, revoked_at, last_used_at) ON api_keys TO pulse_api;
GRANT SELECT ON operator_keys TO pulse_api;
GRANT UPDATE (last_used_at) ON operator_keys TO pulse_api;
GRANT SELECT ON quotas, rates TO pulse_api; -- operators set them, as the owner
GRANT SELECT, INSERT, UPDATE ON intake TO pulse_api;
GRANT UPDATE (schema_uri, table_schema, on_invalid), DELETE ON pdm_datasets TO pulse_api;
GRANT DELETE ON iceberg_catalog.iceberg_tables TO pulse_api;
GRANT SELECT, INSERT ON dataset_versions, deleted_datasets TO pulse_api;
GRANT UPDATE (resolution, resolved_at) ON dead_letters TO pulse_api;
GRANT SELECT ON dataset_versions, deleted_datasets TO pulse_pipeline;
