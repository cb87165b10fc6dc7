-- The registry, the claims and the ledger. Tenant-scoped tables have row-level security enabled and
-- forced; their policies fail closed when app.tenant is unset or empty.

CREATE SCHEMA iceberg_catalog;
CREATE SCHEMA staging;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO pulse_api, pulse_pipeline;
GRANT USAGE ON SCHEMA iceberg_catalog TO pulse_api, pulse_pipeline, pulse_catalog;
GRANT USAGE, CREATE ON SCHEMA staging TO pulse_pipeline;

CREATE FUNCTION app_tenant() RETURNS uuid LANGUAGE sql STABLE PARALLEL SAFE
    RETURN NULLIF(current_setting('app.tenant', true), '')::uuid;

-- registry ------------------------------------------------------------------------------------

CREATE TABLE pdm_tenants (
    tenant_id  uuid PRIMARY KEY,
    slug       text NOT NULL UNIQUE,
    name       text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE pdm_schemas (
    tenant_id    uuid NOT NULL REFERENCES pdm_tenants,
    name         text NOT NULL,
    version      integer NOT NULL CHECK (version > 0),
    schema_uri   text NOT NULL UNIQUE,
    document     text NOT NULL, -- the JSON Schema as published, byte for byte
    published_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, name, version),
    UNIQUE (tenant_id, schema_uri)
);

-- Rows were validated by what was published: not even the owner changes it.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is immutable: publish the next version', TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON pdm_schemas
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TABLE pdm_datasets (
    dataset_id uuid PRIMARY KEY,
    tenant_id  uuid NOT NULL REFERENCES pdm_tenants,
    slug       text NOT NULL,
    name       text NOT NULL,
    schema_uri text NOT NULL,
    table_schema text NOT NULL, -- the Iceberg schema of its table: tasks type rows without loading it
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, slug),
    FOREIGN KEY (tenant_id, schema_uri) REFERENCES pdm_schemas (tenant_id, schema_uri)
);

-- exactly once --------------------------------------------------------------------------------

-- A claim: this event id of this dataset belongs to the event at this position of the tenant's topic.
CREATE TABLE processed_event_ids (
    tenant_id    uuid NOT NULL,
    dataset_id   uuid NOT NULL,
    event_offset bigint NOT NULL,
    partition    integer NOT NULL,
    claimed_on   date NOT NULL DEFAULT current_date,
    event_id     text COLLATE "C" NOT NULL,
    PRIMARY KEY (dataset_id, event_id)
);

CREATE TABLE ingest_batches (
    batch_id   text PRIMARY KEY,
    attempt    integer NOT NULL DEFAULT 1,
    state      text NOT NULL DEFAULT 'planned'
               CHECK (state IN ('planned', 'running', 'settled', 'stuck')),
    planned_at timestamptz NOT NULL DEFAULT now(),
    not_before timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    settled_at timestamptz,
    last_error text
);
CREATE INDEX ingest_batches_open ON ingest_batches (planned_at) WHERE state <> 'settled';

-- What one batch takes of one topic partition, and, once settled, what became of it:
-- drained = landed + duplicates + dead_letters.
CREATE TABLE ingest_ranges (
    batch_id     text NOT NULL REFERENCES ingest_batches,
    tenant_id    uuid NOT NULL,
    partition    integer NOT NULL,
    start_offset bigint NOT NULL,
    end_offset   bigint NOT NULL CHECK (end_offset > start_offset),
    settled_at   timestamptz,
    drained      bigint,
    landed       bigint,
    duplicates   bigint,
    dead_letters bigint,
    duplicate_offsets int8multirange,
    absent_offsets    int8multirange, -- offsets that hold no message, such as transaction markers
    PRIMARY KEY (tenant_id, partition, start_offset),
    CHECK (settled_at IS NULL OR drained = landed + duplicates + dead_letters)
);
CREATE INDEX ingest_ranges_batch ON ingest_ranges (batch_id, tenant_id);

-- Everything below settled_offset is accounted for; [settled_offset, planned_offset) is in flight.
CREATE TABLE ingest_positions (
    tenant_id      uuid NOT NULL,
    partition      integer NOT NULL,
    planned_offset bigint NOT NULL,
    settled_offset bigint NOT NULL,
    topic_id       text, -- the broker's id of the topic; a recreated topic has another
    PRIMARY KEY (tenant_id, partition),
    CHECK (settled_offset <= planned_offset)
);

CREATE TABLE landings (
    batch_id       text NOT NULL,
    tenant_id      uuid NOT NULL,
    dataset_id     uuid NOT NULL,
    slug           text NOT NULL,
    day            date NOT NULL,
    rows           bigint NOT NULL,
    duplicates     bigint NOT NULL,
    bytes          bigint NOT NULL,
    files          integer NOT NULL,
    snapshot_id    bigint,
    metadata_location text,
    landed_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (batch_id, dataset_id, day)
);
CREATE INDEX landings_dataset_day ON landings (tenant_id, dataset_id, day);

CREATE TABLE raw_objects (
    tenant_id  uuid NOT NULL,
    path       text NOT NULL,
    slug       text NOT NULL,
    day        date NOT NULL,
    events     bigint NOT NULL,
    bytes      bigint NOT NULL,
    batch_id   text NOT NULL,
    PRIMARY KEY (tenant_id, path)
);
CREATE INDEX raw_objects_day ON raw_objects (tenant_id, slug, day);

CREATE TABLE dead_letters (
    tenant_id    uuid NOT NULL,
    partition    integer NOT NULL,
    event_offset bigint NOT NULL,
    dataset      text,
    event_id     text,
    reason       text NOT NULL,
    pointer      text,
    detail       text NOT NULL,
    payload      bytea NOT NULL,
    received_at  timestamptz NOT NULL,
    batch_id     text NOT NULL,
    settled_at   timestamptz NOT NULL DEFAULT now(),
    published_at timestamptz,
    PRIMARY KEY (tenant_id, partition, event_offset)
);
CREATE INDEX dead_letters_unpublished ON dead_letters (tenant_id) WHERE published_at IS NULL;

-- Settled dead letters that may not be on the topic yet: what a crash before publishing leaves.
CREATE TABLE dead_letter_outbox (
    tenant_id  uuid NOT NULL,
    batch_id   text NOT NULL,
    settled_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, batch_id)
);

CREATE TABLE usage (
    tenant_id uuid NOT NULL,
    month     date NOT NULL,
    records   bigint NOT NULL,
    bytes     bigint NOT NULL,
    PRIMARY KEY (tenant_id, month)
);

-- catalog: the two tables of Iceberg's JDBC catalog, schema version V1 ------------------------

CREATE TABLE iceberg_catalog.iceberg_tables (
    catalog_name               varchar(255) NOT NULL,
    table_namespace            varchar(255) NOT NULL,
    table_name                 varchar(255) NOT NULL,
    metadata_location          varchar(1000),
    previous_metadata_location varchar(1000),
    iceberg_type               varchar(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name)
);
CREATE TABLE iceberg_catalog.iceberg_namespace_properties (
    catalog_name   varchar(255) NOT NULL,
    namespace      varchar(255) NOT NULL,
    property_key   varchar(255) NOT NULL,
    property_value varchar(1000) NOT NULL,
    PRIMARY KEY (catalog_name, namespace, property_key)
);

-- row-level security --------------------------------------------------------------------------

DO $$
DECLARE t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['pdm_tenants', 'pdm_schemas', 'pdm_datasets', 'processed_event_ids',
        'ingest_ranges', 'ingest_positions', 'landings', 'raw_objects', 'dead_letters',
        'dead_letter_outbox', 'usage']
    LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY own_tenant ON %I USING (tenant_id = app_tenant())'
            ' WITH CHECK (tenant_id = app_tenant())', t);
    END LOOP;
    -- The planner multiplexes all tenants: it may read, never write, routing data of them all.
    FOREACH t IN ARRAY ARRAY['pdm_tenants', 'pdm_schemas', 'pdm_datasets', 'ingest_ranges',
        'ingest_positions', 'dead_letter_outbox']
    LOOP
        EXECUTE format('CREATE POLICY plan_all ON %I FOR SELECT TO pulse_pipeline USING (true)', t);
    END LOOP;
    -- Inside the catalog a tenant is its namespace; pulse_catalog serves operators and upkeep.
    FOREACH t IN ARRAY ARRAY['iceberg_tables', 'iceberg_namespace_properties']
    LOOP
        EXECUTE format('ALTER TABLE iceberg_catalog.%I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format('ALTER TABLE iceberg_catalog.%I FORCE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY operators ON iceberg_catalog.%I TO pulse_catalog'
            ' USING (true) WITH CHECK (true)', t);
    END LOOP;
    CREATE POLICY own_namespace ON iceberg_catalog.iceberg_tables TO pulse_api, pulse_pipeline
        USING (table_namespace = 'pulse_' || replace(app_tenant()::text, '-', ''))
        WITH CHECK (table_namespace = 'pulse_' || replace(app_tenant()::text, '-', ''));
    CREATE POLICY own_namespace ON iceberg_catalog.iceberg_namespace_properties
        TO pulse_api, pulse_pipeline
        USING (namespace = 'pulse_' || replace(app_tenant()::text, '-', ''))
        WITH CHECK (namespace = 'pulse_' || replace(app_tenant()::text, '-', ''));
END $$;

-- grants --------------------------------------------------------------------------------------

GRANT SELECT, INSERT ON pdm_tenants, pdm_schemas, pdm_datasets TO pulse_api;
GRANT SELECT, INSERT ON ingest_positions TO pulse_api;
GRANT SELECT ON ingest_ranges, landings, raw_objects, dead_letters, usage TO pulse_api;
GRANT SELECT, INSERT, UPDATE ON iceberg_catalog.iceberg_tables,
    iceberg_catalog.iceberg_namespace_properties TO pulse_api;

GRANT SELECT ON pdm_tenants, pdm_schemas, pdm_datasets TO pulse_pipeline;
GRANT SELECT, INSERT, UPDATE ON ingest_batches, ingest_ranges, ingest_positions, landings,
    raw_objects, dead_letters, usage TO pulse_pipeline;
GRANT SELECT, INSERT, DELETE ON processed_event_ids, dead_letter_outbox TO pulse_pipeline;
GRANT SELECT, UPDATE ON iceberg_catalog.iceberg_tables TO pulse_pipeline;

GRANT SELECT, INSERT, UPDATE, DELETE ON iceberg_catalog.iceberg_tables,
    iceberg_catalog.iceberg_namespace_properties TO pulse_catalog;
