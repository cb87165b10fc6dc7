-- The data model as it was after 54 migrations. A database that has those takes this one as applied.

CREATE SCHEMA iceberg_catalog;
CREATE SCHEMA staging;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO pulse_api, pulse_pipeline, pulse_lake;
GRANT USAGE ON SCHEMA iceberg_catalog TO pulse_api, pulse_pipeline, pulse_catalog, pulse_lake;
GRANT USAGE, CREATE ON SCHEMA staging TO pulse_pipeline;

-- The registry ----------------------------------------------------------------------------------------------

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
    dataset_id   uuid PRIMARY KEY,
    tenant_id    uuid NOT NULL REFERENCES pdm_tenants,
    slug         text NOT NULL,
    name         text NOT NULL,
    schema_uri   text NOT NULL,
    table_schema text NOT NULL, -- the Iceberg schema of its table: tasks type rows without loading it
    created_at   timestamptz NOT NULL DEFAULT now(),
    on_invalid   text NOT NULL DEFAULT 'refuse' CHECK (on_invalid IN ('refuse', 'dead_letter')),
    claim_seed   bigint NOT NULL DEFAULT
        ('x' || right(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint,
    kind         text NOT NULL DEFAULT 'events' CHECK (kind IN ('events', 'entities')),
    UNIQUE (tenant_id, slug),
    FOREIGN KEY (tenant_id, schema_uri) REFERENCES pdm_schemas (tenant_id, schema_uri)
);
CREATE INDEX pdm_datasets_of_slug ON pdm_datasets (slug);

-- Schema versions that a dataset has or had: an event may name the one by which it was written.
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
    metadata_location text, -- null: the catalog had no such table
    deleted_at        timestamptz NOT NULL DEFAULT now(),
    kind              text NOT NULL DEFAULT 'events' CHECK (kind IN ('events', 'entities'))
);

CREATE TABLE registry_version (
    one     boolean DEFAULT true PRIMARY KEY CHECK (one),
    version bigint NOT NULL,
    xact    xid8 -- the transaction of the last change
);

CREATE TABLE family_versions (
    slug    text PRIMARY KEY, -- of present and former datasets
    version bigint NOT NULL, -- of the registry at the last change of one of them
    token   uuid NOT NULL DEFAULT gen_random_uuid() -- a number may come again, in a restored database
);
CREATE INDEX family_versions_newest ON family_versions (version);

GRANT SELECT, INSERT ON pdm_tenants, pdm_schemas, dataset_versions, deleted_datasets TO pulse_api;
GRANT SELECT, INSERT, DELETE ON pdm_datasets TO pulse_api;
GRANT SELECT ON
    pdm_schemas, pdm_datasets, dataset_versions, deleted_datasets, registry_version, family_versions
    TO pulse_pipeline;
GRANT SELECT ON pdm_tenants TO pulse_pipeline, pulse_lake;
GRANT UPDATE (on_invalid, schema_uri, table_schema) ON pdm_datasets TO pulse_api;

-- Keys and limits -------------------------------------------------------------------------------------------

-- A key names its tenant, so that it is looked up inside that tenant's own session.
CREATE TABLE api_keys (
    tenant_id    uuid NOT NULL REFERENCES pdm_tenants,
    key_id       text NOT NULL,
    name         text NOT NULL,
    scopes       text[] NOT NULL
        CHECK ((cardinality(scopes) > 0) AND (
            scopes <@ ARRAY['collect', 'read', 'manage', 'lake:read', 'lake:write'])),
    key_hash     bytea NOT NULL, -- SHA-256 of the secret part, which has 256 random bits
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz,
    issued_by    text, -- null: an operator, or the key is older than this column
    PRIMARY KEY (tenant_id, key_id),
    CHECK (issued_by <> key_id),
    FOREIGN KEY (tenant_id, issued_by) REFERENCES api_keys (tenant_id, key_id)
);
CREATE INDEX api_keys_issued_by ON api_keys (tenant_id, issued_by);

CREATE TABLE operator_keys (
    key_id       text PRIMARY KEY,
    name         text NOT NULL,
    key_hash     bytea NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    revoked_at   timestamptz,
    last_used_at timestamptz
);

-- Limits: positive a maximum, -1 unlimited, 0 none configured (the installation's default holds).
CREATE TABLE quotas (
    tenant_id             uuid NOT NULL REFERENCES pdm_tenants,
    kind                  text NOT NULL CHECK (kind IN ('events', 'entities', 'lake')),
    max_datasets          bigint NOT NULL DEFAULT 0 CHECK (max_datasets >= -1),
    max_records_per_month bigint NOT NULL DEFAULT 0 CHECK (max_records_per_month >= -1),
    max_bytes             bigint NOT NULL DEFAULT 0 CHECK (max_bytes >= -1),
    PRIMARY KEY (tenant_id, kind)
);

CREATE TABLE rates (
    tenant_id           uuid PRIMARY KEY REFERENCES pdm_tenants,
    requests_per_second double precision NOT NULL DEFAULT 0
        CHECK (requests_per_second >= -1),
    events_per_second   double precision NOT NULL DEFAULT 0
        CHECK (events_per_second >= -1)
);

CREATE UNLOGGED TABLE api_processes (
    process uuid PRIMARY KEY,
    seen_at timestamptz NOT NULL DEFAULT now()
);

CREATE UNLOGGED TABLE rate_shares (
    tenant_id uuid NOT NULL,
    kind      text NOT NULL, -- of the rate
    process   uuid NOT NULL REFERENCES api_processes ON DELETE CASCADE,
    asked     double precision NOT NULL, -- per second, whether or not it was granted
    seen_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, kind, process)
);
CREATE INDEX rate_shares_process ON rate_shares (process);

GRANT SELECT ON operator_keys TO pulse_api;
GRANT SELECT, INSERT ON api_keys TO pulse_api;
GRANT SELECT, INSERT, UPDATE ON rate_shares TO pulse_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON api_processes TO pulse_api;
GRANT SELECT ON quotas TO pulse_api, pulse_pipeline, pulse_lake;
GRANT SELECT ON rates TO pulse_api, pulse_lake;
GRANT SELECT ON api_keys TO pulse_lake;
GRANT UPDATE (expires_at, last_used_at, revoked_at) ON api_keys TO pulse_api;
GRANT UPDATE (last_used_at) ON api_keys TO pulse_lake;
GRANT UPDATE (last_used_at) ON operator_keys TO pulse_api;

-- Ingestion -------------------------------------------------------------------------------------------------

CREATE TABLE ingest_batches (
    batch_id       text PRIMARY KEY,
    attempt        integer NOT NULL DEFAULT 1,
    state          text NOT NULL DEFAULT 'planned'
        CHECK (state IN ('planned', 'running', 'settled', 'stuck')),
    planned_at     timestamptz NOT NULL DEFAULT now(),
    not_before     timestamptz NOT NULL DEFAULT now(),
    started_at     timestamptz,
    settled_at     timestamptz,
    last_error     text,
    settle_seconds double precision, -- of the settle stage, over all tenants
    commit_seconds double precision, -- of its slowest transaction
    -- The last error of the batch's attempts that has a cause: that of a run that only died is none.
    last_cause     text
);
CREATE INDEX ingest_batches_open ON ingest_batches (planned_at) WHERE state <> 'settled';
CREATE INDEX ingest_batches_settled ON ingest_batches (settled_at) WHERE state = 'settled';

-- Everything below settled_offset is accounted for; [settled_offset, planned_offset) is in flight.
CREATE TABLE ingest_positions (
    tenant_id      uuid NOT NULL,
    partition      integer NOT NULL,
    planned_offset bigint NOT NULL,
    settled_offset bigint NOT NULL,
    topic_id       text, -- the broker's id of the topic; a recreated topic has another
    -- Sums of the ranges below settled_offset, so that no scrape adds them up.
    landed         bigint NOT NULL DEFAULT 0,
    duplicates     bigint NOT NULL DEFAULT 0,
    dead_letters   bigint NOT NULL DEFAULT 0,
    -- Offsets are Pulse's own: the broker's plus base_offset. A topic that was recreated begins at 0 again,
    -- while here its log goes on where the one before it ended, so that no two events ever have one position.
    base_offset    bigint NOT NULL DEFAULT 0,
    claims_from    bigint NOT NULL DEFAULT 0, -- claims of earlier offsets may have been retired
    PRIMARY KEY (tenant_id, partition),
    CHECK (settled_offset <= planned_offset)
);

-- What one batch takes of one topic partition, and, once settled, what became of it:
-- drained = landed + duplicates + dead_letters.
CREATE TABLE ingest_ranges (
    batch_id          text NOT NULL REFERENCES ingest_batches,
    tenant_id         uuid NOT NULL,
    partition         integer NOT NULL,
    start_offset      bigint NOT NULL,
    end_offset        bigint NOT NULL,
    settled_at        timestamptz,
    drained           bigint,
    landed            bigint,
    duplicates        bigint,
    dead_letters      bigint,
    duplicate_offsets int8multirange,
    absent_offsets    int8multirange, -- offsets that hold no message, such as transaction markers
    oldest_received   timestamptz,
    PRIMARY KEY (tenant_id, partition, start_offset),
    CHECK (end_offset > start_offset),
    CONSTRAINT ingest_ranges_check1
        CHECK ((settled_at IS NULL) OR (drained = landed + duplicates + dead_letters))
);
CREATE INDEX ingest_ranges_batch ON ingest_ranges (batch_id, tenant_id);

-- A claim: this event id of this dataset belongs to the event at this position of the tenant's topic.
CREATE TABLE processed_event_ids (
    tenant_id  uuid NOT NULL,
    dataset_id uuid NOT NULL,
    run        bigint NOT NULL,
    newest     bigint NOT NULL,
    ids        integer NOT NULL CHECK (ids > 0),
    ends       bigint[] NOT NULL,
    claimed_on date NOT NULL DEFAULT current_date,
    digests    bytea STORAGE EXTERNAL NOT NULL,
    -- Two bytes of each digest of a large run, to find it (`claims/claim_filters.py`). Null: none.
    filter     bytea STORAGE EXTERNAL,
    CONSTRAINT processed_event_ids_pkey1 PRIMARY KEY (dataset_id, run),
    CHECK (octet_length(digests) = (16 * ids))
);
CREATE INDEX processed_event_ids_tenant ON processed_event_ids (tenant_id, claimed_on);

CREATE TABLE landings (
    batch_id          text NOT NULL,
    tenant_id         uuid NOT NULL,
    dataset_id        uuid NOT NULL,
    slug              text NOT NULL,
    day               date NOT NULL,
    rows              bigint NOT NULL,
    duplicates        bigint NOT NULL,
    bytes             bigint NOT NULL,
    files             integer NOT NULL,
    snapshot_id       bigint,
    metadata_location text,
    landed_at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (batch_id, dataset_id, day)
);
CREATE INDEX landings_dataset_day ON landings (tenant_id, dataset_id, day, landed_at);
CREATE INDEX landings_landed_at ON landings (landed_at);

CREATE TABLE raw_objects (
    tenant_id  uuid NOT NULL,
    path       text NOT NULL,
    slug       text NOT NULL,
    day        date NOT NULL,
    events     bigint NOT NULL,
    bytes      bigint NOT NULL,
    batch_id   text NOT NULL,
    -- The row of an object that retention removed stays: a backfill must know that something is missing.
    removed_at timestamptz,
    -- Objects that retention has marked and not deleted yet.
    deleted_at timestamptz,
    -- A raw object has a gzip member, and a row here, for each day of its events. Where its member begins, in
    -- bytes; objects of earlier versions have one.
    start      bigint NOT NULL,
    PRIMARY KEY (tenant_id, path, start)
);
CREATE INDEX raw_objects_batch ON raw_objects (batch_id);
CREATE INDEX raw_objects_day ON raw_objects (tenant_id, slug, day);
CREATE INDEX raw_objects_removed ON raw_objects (tenant_id)
    WHERE removed_at IS NOT NULL AND deleted_at IS NULL;

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
    resolution   text CHECK (resolution IN ('replayed', 'discarded', 'landed', 'erased')),
    resolved_at  timestamptz,
    -- The backfill that made it a row at its own position ('landed'). Of an erased one the payload is gone.
    landed_by    text,
    PRIMARY KEY (tenant_id, partition, event_offset),
    CHECK ((resolution IS NULL) = (resolved_at IS NULL)),
    CONSTRAINT dead_letters_landed_check CHECK ((resolution = 'landed') = (landed_by IS NOT NULL))
);
CREATE INDEX dead_letters_batch ON dead_letters (tenant_id, batch_id);
CREATE INDEX dead_letters_event ON dead_letters (tenant_id, event_id);
CREATE INDEX dead_letters_newest ON dead_letters (tenant_id, settled_at, partition, event_offset);
CREATE INDEX dead_letters_open ON dead_letters (tenant_id, settled_at) WHERE resolution IS NULL;
CREATE INDEX dead_letters_open_reasons ON dead_letters (tenant_id, reason) WHERE resolution IS NULL;
-- Counts those that wait for room, and finds the oldest.
CREATE INDEX dead_letters_over_quota ON dead_letters (tenant_id, settled_at)
    WHERE resolution IS NULL AND reason = 'over_quota';
CREATE INDEX dead_letters_unpublished ON dead_letters (tenant_id) WHERE published_at IS NULL;

-- Settled dead letters that may not be on the topic yet, for example after a crash before publishing.
CREATE TABLE dead_letter_outbox (
    tenant_id  uuid NOT NULL,
    batch_id   text NOT NULL,
    settled_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, batch_id)
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

-- Places of a batch between its gate and its settle, which makes them rows of `usage`.
CREATE TABLE intake_holds (
    tenant_id uuid NOT NULL REFERENCES pdm_tenants,
    kind      text NOT NULL,
    batch_id  text NOT NULL,
    month     date NOT NULL,
    records   bigint NOT NULL CHECK (records >= 0),
    direct    bigint NOT NULL, -- of them, as in `usage`
    PRIMARY KEY (tenant_id, kind, batch_id, month),
    CHECK (direct BETWEEN 0 AND records)
);

CREATE TABLE intake_doubts (
    tenant_id uuid NOT NULL REFERENCES pdm_tenants,
    kind      text NOT NULL,
    event     bytea NOT NULL, -- digest of its dataset and event id
    month     date NOT NULL, -- of the reservation
    PRIMARY KEY (tenant_id, kind, event)
);

CREATE TABLE usage (
    tenant_id uuid NOT NULL,
    month     date NOT NULL,
    records   bigint NOT NULL,
    bytes     bigint NOT NULL,
    kind      text NOT NULL DEFAULT 'events',
    -- Rows that landed in the month, of events received before it: they count in the month before.
    early     bigint NOT NULL DEFAULT 0,
    -- Places in the month that rows took when they landed, because the front door had taken none.
    direct    bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, kind, month)
);

CREATE TABLE accepted_losses (
    tenant_id   uuid NOT NULL REFERENCES pdm_tenants,
    partition   integer NOT NULL,
    "position"  bigint NOT NULL, -- the first offset that was never ingested
    lost        bigint, -- offsets that are skipped; null: nobody can know
    problem     text NOT NULL,
    accepted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, partition, "position", accepted_at)
);

CREATE TABLE failures (
    tenant_id  uuid NOT NULL REFERENCES pdm_tenants,
    job        text NOT NULL,
    task       text NOT NULL,
    dataset_id uuid REFERENCES pdm_datasets ON DELETE CASCADE, -- null: of all datasets of the tenant
    slug       text,
    day        date, -- null: of the whole dataset
    error      text NOT NULL,
    count      integer NOT NULL DEFAULT 1, -- in a row
    first_at   timestamptz NOT NULL DEFAULT now(),
    last_at    timestamptz NOT NULL DEFAULT now(),
    retry_at   timestamptz NOT NULL, -- until then it is not tried; then it comes after what has not failed
    UNIQUE NULLS NOT DISTINCT (tenant_id, job, task, dataset_id, day)
);
CREATE INDEX failures_dataset ON failures (dataset_id);

CREATE SEQUENCE claim_runs;

GRANT SELECT ON ingest_ranges, landings, raw_objects, dead_letters, intake_holds, usage TO pulse_api;
GRANT SELECT, INSERT ON ingest_positions TO pulse_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON intake_doubts TO pulse_api;
GRANT SELECT, INSERT, UPDATE ON intake TO pulse_api, pulse_pipeline;
GRANT SELECT, INSERT ON accepted_losses TO pulse_pipeline;
GRANT SELECT, INSERT, UPDATE ON
    ingest_batches, ingest_positions, landings, raw_objects, dead_letters, usage TO pulse_pipeline;
GRANT SELECT, INSERT, UPDATE, DELETE ON ingest_ranges, intake_holds, failures TO pulse_pipeline;
GRANT SELECT, INSERT, DELETE ON processed_event_ids, dead_letter_outbox TO pulse_pipeline;
GRANT UPDATE (resolution, resolved_at) ON dead_letters TO pulse_api;
GRANT USAGE ON SEQUENCE claim_runs TO pulse_pipeline;

-- Entities --------------------------------------------------------------------------------------------------

CREATE SEQUENCE entity_generations;
CREATE TABLE entity_logs (
    tenant_id    uuid NOT NULL REFERENCES pdm_tenants,
    dataset_id   uuid PRIMARY KEY REFERENCES pdm_datasets ON DELETE CASCADE,
    generation   bigint NOT NULL DEFAULT nextval('entity_generations'), -- another one: read from the start
    updated      bigint NOT NULL DEFAULT 0 CHECK (updated >= 0), -- `_updated` of its last version
    -- The share of its entities that a full sync may delete without approval.
    deletes_most double precision NOT NULL DEFAULT 0.2
        CHECK (deletes_most BETWEEN 0 AND 1)
);

CREATE SEQUENCE entity_head_runs;
CREATE TABLE entity_heads (
    tenant_id  uuid NOT NULL REFERENCES pdm_tenants,
    dataset_id uuid NOT NULL REFERENCES entity_logs ON DELETE CASCADE,
    run        bigint NOT NULL DEFAULT nextval('entity_head_runs'),
    entities   integer NOT NULL CHECK (entities > 0),
    heads      bytea STORAGE EXTERNAL NOT NULL,
    PRIMARY KEY (dataset_id, run),
    CHECK (octet_length(heads) = (40 * entities))
);

CREATE SEQUENCE entity_sync_numbers;
CREATE TABLE entity_syncs (
    tenant_id   uuid NOT NULL REFERENCES pdm_tenants,
    sync_id     bigint DEFAULT nextval('entity_sync_numbers') PRIMARY KEY,
    dataset_id  uuid NOT NULL REFERENCES pdm_datasets ON DELETE CASCADE,
    is_full     boolean NOT NULL,
    sequence_id text NOT NULL,
    request_id  text NOT NULL, -- of the last part
    parts       integer NOT NULL DEFAULT 0, -- accepted
    -- open: parts come; sent: all are on the topic; held: a person decides; deleting: its deletions are on
    -- their way. The others are ends.
    state       text NOT NULL DEFAULT 'open'
        CHECK (state IN ('open', 'sent', 'held', 'deleting', 'done', 'rolled_back', 'superseded', 'failed')),
    starts      jsonb NOT NULL, -- by partition: where it begins ...
    ends        jsonb, -- ... where all of it is before ...
    swept_to    jsonb, -- ... and where its deletions are before
    refused     bigint NOT NULL DEFAULT 0,
    nameless    bigint NOT NULL DEFAULT 0, -- of the refused: those without a readable id
    created     bigint NOT NULL DEFAULT 0,
    changed     bigint NOT NULL DEFAULT 0,
    unchanged   bigint NOT NULL DEFAULT 0,
    deleted     bigint NOT NULL DEFAULT 0,
    entities    bigint, -- not deleted, at the decision on deletions
    absent      bigint, -- of these: those that the sync lacks
    reason      text, -- why it is held, or has failed
    begun_at    timestamptz NOT NULL DEFAULT now(),
    settled_at  timestamptz, -- of all parts
    ended_at    timestamptz,
    pipe        text, -- the pipe that sent it
    "position"  text, -- of the source: the sync has what is before it; true once it has settled
    as_of       timestamptz, -- of a pipe: the sync has what is before this moment; as `position`
    part_at     timestamptz NOT NULL DEFAULT now() -- of the last part
);
CREATE INDEX entity_syncs_of_dataset ON entity_syncs (dataset_id, sync_id);
CREATE INDEX entity_syncs_of_pipe ON entity_syncs (tenant_id, pipe, sync_id) WHERE pipe IS NOT NULL;
CREATE INDEX entity_syncs_of_pipes_begun ON entity_syncs (begun_at) WHERE pipe IS NOT NULL;
-- Claims of a dataset that a pipe fills, or has filled, never expire.
CREATE INDEX entity_syncs_of_pipes_by_dataset ON entity_syncs (dataset_id) WHERE pipe IS NOT NULL;
CREATE INDEX entity_syncs_unfinished ON entity_syncs (tenant_id)
    WHERE state IN ('open', 'sent', 'held', 'deleting');

CREATE SEQUENCE entity_sync_runs;
CREATE TABLE entity_sync_ids (
    tenant_id uuid NOT NULL REFERENCES pdm_tenants,
    sync_id   bigint NOT NULL REFERENCES entity_syncs ON DELETE CASCADE,
    run       bigint NOT NULL DEFAULT nextval('entity_sync_runs'),
    ids       bytea STORAGE EXTERNAL NOT NULL CHECK ((octet_length(ids) % 16) = 0),
    PRIMARY KEY (sync_id, run)
);

CREATE SEQUENCE entity_index_numbers;
CREATE TABLE entity_indexes (
    tenant_id  uuid NOT NULL REFERENCES pdm_tenants,
    index_id   bigint DEFAULT nextval('entity_index_numbers') PRIMARY KEY,
    dataset_id uuid NOT NULL REFERENCES entity_logs ON DELETE CASCADE,
    expression text NOT NULL, -- in its canonical form
    updated    bigint NOT NULL DEFAULT 0 CHECK (updated >= 0), -- `_updated` of the last version that it has
    entries    bigint NOT NULL DEFAULT 0 CHECK (entries >= 0), -- values in its runs
    created_at timestamptz NOT NULL DEFAULT now(),
    implied    boolean NOT NULL DEFAULT false, -- made for joins alone
    UNIQUE (dataset_id, expression)
);

-- Digests of the values of consecutive versions, then those of the values before, where they differ: of all
-- the first eight bytes, then the last eight.
CREATE TABLE entity_index_runs (
    tenant_id uuid NOT NULL REFERENCES pdm_tenants,
    index_id  bigint NOT NULL REFERENCES entity_indexes ON DELETE CASCADE,
    first     bigint NOT NULL, -- `_updated` of the first version
    versions  integer NOT NULL CHECK (versions > 0),
    packed    bytea STORAGE EXTERNAL NOT NULL,
    PRIMARY KEY (index_id, first),
    CHECK (octet_length(packed) = (32 * versions))
);

-- Keys that read subsets by an index: one without readers can be dropped.
CREATE TABLE entity_index_readers (
    tenant_id uuid NOT NULL REFERENCES pdm_tenants,
    index_id  bigint NOT NULL REFERENCES entity_indexes ON DELETE CASCADE,
    reader    text NOT NULL, -- id of an API key
    read_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (index_id, reader)
);

GRANT SELECT, INSERT ON entity_logs TO pulse_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON entity_index_readers TO pulse_api;
GRANT SELECT, INSERT, DELETE ON entity_indexes, entity_index_runs TO pulse_api;
GRANT INSERT ON entity_sync_ids TO pulse_api;
GRANT SELECT, INSERT, UPDATE ON entity_syncs TO pulse_api, pulse_pipeline;
GRANT SELECT ON entity_indexes TO pulse_pipeline;
GRANT SELECT, INSERT, UPDATE, DELETE ON entity_index_runs TO pulse_pipeline;
GRANT SELECT, INSERT, DELETE ON entity_heads, entity_sync_ids TO pulse_pipeline;
GRANT SELECT, UPDATE ON entity_logs TO pulse_pipeline;
GRANT UPDATE (deletes_most) ON entity_logs TO pulse_api;
GRANT UPDATE (entries, implied, updated) ON entity_indexes TO pulse_api;
GRANT UPDATE (entries, updated) ON entity_indexes TO pulse_pipeline;
GRANT USAGE ON SEQUENCE
    entity_generations, entity_sync_numbers, entity_sync_runs TO pulse_api, pulse_pipeline;
GRANT USAGE ON SEQUENCE entity_head_runs TO pulse_pipeline;
GRANT USAGE ON SEQUENCE entity_index_numbers TO pulse_api;

-- States and windows ----------------------------------------------------------------------------------------

CREATE SEQUENCE event_state_numbers;
CREATE TABLE event_states (
    tenant_id  uuid NOT NULL REFERENCES pdm_tenants,
    dataset_id uuid PRIMARY KEY REFERENCES pdm_datasets ON DELETE CASCADE,
    state_id   bigint NOT NULL DEFAULT nextval('event_state_numbers'), -- of this declaration
    latest_by  text NOT NULL, -- the column
    max_keys   integer NOT NULL CHECK (max_keys > 0),
    keys       integer NOT NULL DEFAULT 0 CHECK (keys >= 0), -- present
    left_out   bigint NOT NULL DEFAULT 0, -- times that a batch had a key for which there was no room
    marks      bigint NOT NULL DEFAULT 1, -- how often the state came to lack something that the table has ...
    built      bigint NOT NULL DEFAULT 0, -- ... and the value of `marks` at the last build from the table
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE event_state_keys (
    tenant_id    uuid NOT NULL REFERENCES pdm_tenants,
    dataset_id   uuid NOT NULL REFERENCES event_states ON DELETE CASCADE,
    key          text COLLATE "C" NOT NULL,
    at           bigint NOT NULL, -- the event's timestamp, in microseconds since 1970
    partition    integer NOT NULL,
    event_offset bigint NOT NULL,
    event_id     text NOT NULL,
    data         text, -- JSON; null: it is too large
    PRIMARY KEY (dataset_id, key)
);

CREATE SEQUENCE event_window_numbers;
CREATE TABLE event_windows (
    tenant_id     uuid NOT NULL REFERENCES pdm_tenants,
    dataset_id    uuid PRIMARY KEY REFERENCES event_states ON DELETE CASCADE,
    number        bigint NOT NULL DEFAULT nextval('event_window_numbers'),
    sums          text[] NOT NULL, -- columns
    session_gap_s integer, -- null: no sessions
    max_buckets   integer NOT NULL CHECK (max_buckets > 0),
    buckets       integer NOT NULL DEFAULT 0 CHECK (buckets >= 0), -- present
    newest        integer, -- minute of the newest event, since 1970; null: no event
    dropped_to    integer, -- buckets up to this minute were dropped for want of room
    built         boolean NOT NULL DEFAULT false, -- whether the windows have all rows of the table
    round         bigint NOT NULL DEFAULT 1, -- number of builds from the start
    base          text, -- metadata of the table to build from; batches add what settled since
    read_files    integer NOT NULL DEFAULT 0, -- progress of the build: whole files of the base ...
    read_pieces   integer NOT NULL DEFAULT 0 -- ... and pieces of the next one
);

CREATE TABLE event_window_buckets (
    tenant_id  uuid NOT NULL,
    dataset_id uuid NOT NULL REFERENCES event_windows ON DELETE CASCADE,
    key        text COLLATE "C" NOT NULL,
    minute     integer NOT NULL, -- since 1970, by the events' timestamps
    number     bigint NOT NULL, -- of the windows
    events     bigint NOT NULL,
    first_at   bigint NOT NULL, -- in microseconds since 1970
    last_at    bigint NOT NULL,
    sums       numeric[] NOT NULL,
    PRIMARY KEY (dataset_id, key, minute)
);
-- Old minutes are selected by the windows' number, and keys by their dataset: then the planner cannot use one
-- index for the other, whatever the statistics say of a dataset that they do not know yet.
CREATE INDEX event_window_buckets_by_minute ON event_window_buckets (number, minute);

GRANT SELECT, INSERT, UPDATE, DELETE ON event_windows TO pulse_api;
GRANT SELECT, INSERT, DELETE ON event_states TO pulse_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON event_state_keys, event_window_buckets TO pulse_api, pulse_pipeline;
GRANT SELECT ON event_states TO pulse_pipeline;
GRANT SELECT, UPDATE ON event_windows TO pulse_pipeline;
GRANT UPDATE (built, keys, left_out, marks, max_keys, state_id) ON event_states TO pulse_api;
GRANT UPDATE (built, keys, left_out, marks) ON event_states TO pulse_pipeline;
GRANT USAGE ON SEQUENCE event_state_numbers, event_window_numbers TO pulse_api;

-- Work on days and tables -----------------------------------------------------------------------------------

CREATE TABLE backfills (
    tenant_id      uuid NOT NULL REFERENCES pdm_tenants,
    backfill_id    text NOT NULL,
    dataset_id     uuid NOT NULL,
    slug           text NOT NULL,
    day            date NOT NULL,
    schema_version integer NOT NULL, -- for events that name none
    rows           bigint NOT NULL,
    dead_letters   bigint NOT NULL, -- of the rows: those that were dead letters before
    files_before   integer NOT NULL,
    files_after    integer NOT NULL,
    bytes          bigint NOT NULL,
    snapshot_id    bigint NOT NULL,
    run_id         text, -- of the Dagster run; null: pulse backfill
    settled_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, backfill_id)
);
CREATE INDEX backfills_day ON backfills (tenant_id, dataset_id, day);

CREATE TABLE summaries (
    tenant_id   uuid NOT NULL,
    dataset_id  uuid NOT NULL REFERENCES pdm_datasets ON DELETE CASCADE,
    rollup      text NOT NULL,
    day         date NOT NULL,
    definition  text NOT NULL, -- of the rollup; if it changes, the day is due again
    landed_at   timestamptz NOT NULL, -- of the last change of the day that the rows have
    grain       text[] NOT NULL,
    rows        json NOT NULL, -- an array of objects: grain and measures (json: jsonb takes no \u0000)
    snapshot_id bigint, -- of the rows; null: none was computed yet
    computed_at timestamptz,
    error       text, -- why the rows lack that change
    PRIMARY KEY (dataset_id, rollup, day),
    CHECK ((error IS NOT NULL) OR (computed_at IS NOT NULL))
);

CREATE TABLE dataset_moves (
    tenant_id  uuid NOT NULL REFERENCES pdm_tenants,
    move_id    text NOT NULL,
    dataset_id uuid NOT NULL, -- which may be deleted meanwhile
    slug       text NOT NULL,
    from_uri   text NOT NULL,
    schema_uri text NOT NULL,
    state      text NOT NULL DEFAULT 'planned' CHECK (state IN ('planned', 'running', 'done', 'failed')),
    attempt    integer NOT NULL DEFAULT 1,
    not_before timestamptz NOT NULL DEFAULT now(),
    files      integer, -- to be rewritten, as far as this attempt knows; null: not counted yet
    files_done integer NOT NULL DEFAULT 0,
    error      text, -- of the previous attempt, or of the move
    run_id     text, -- of the Dagster run
    asked_at   timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    ended_at   timestamptz,
    PRIMARY KEY (tenant_id, move_id)
);
-- One at a time.
CREATE UNIQUE INDEX dataset_moves_one ON dataset_moves (dataset_id) WHERE state IN ('planned', 'running');
CREATE INDEX dataset_moves_open ON dataset_moves (asked_at) WHERE state IN ('planned', 'running');
CREATE INDEX dataset_moves_slug ON dataset_moves (tenant_id, slug, asked_at);

-- When each tenant's raw zone was last searched for orphans, and for what is older than its retention.
CREATE TABLE upkeep_tenants (
    tenant_id   uuid PRIMARY KEY REFERENCES pdm_tenants,
    swept_at    timestamptz,
    retained_at timestamptz,
    -- Upkeep of tenants' own tables works in the tenant's session, as pulse_lake; namespaces say which
    -- tenants may have any.
    own_at      timestamptz
);

-- State of a table at the last upkeep; the ledger has what came since.
CREATE TABLE upkeep_tables (
    tenant_id  uuid NOT NULL,
    dataset_id uuid PRIMARY KEY REFERENCES pdm_datasets ON DELETE CASCADE,
    seen_at    timestamptz NOT NULL,
    snapshots  integer NOT NULL,
    oldest_at  timestamptz, -- of the remaining snapshots
    manifests  integer NOT NULL,
    swept_at   timestamptz -- when its folder was last searched for orphans
);

-- Totals of the ledger up to the last compaction of a day, and its result.
CREATE TABLE upkeep_days (
    tenant_id    uuid NOT NULL,
    dataset_id   uuid NOT NULL REFERENCES pdm_datasets ON DELETE CASCADE,
    day          date NOT NULL,
    level        integer NOT NULL CHECK (level IN (1, 2)),
    landed_files bigint NOT NULL,
    landed_bytes bigint NOT NULL,
    files        integer NOT NULL,
    bytes        bigint NOT NULL,
    compacted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (dataset_id, day)
);

CREATE TABLE upkeep_log (
    tenant_id   uuid NOT NULL REFERENCES pdm_tenants,
    upkeep_id   text NOT NULL,
    dataset_id  uuid, -- null: of all datasets of the tenant
    slug        text,
    day         date,
    task        text NOT NULL,
    reason      text NOT NULL,
    outcome     text NOT NULL DEFAULT 'running'
        CHECK (outcome IN ('running', 'done', 'skipped', 'failed', 'rolled_back', 'abandoned')),
    detail      text,
    before      jsonb NOT NULL DEFAULT '{}'::jsonb,
    after       jsonb NOT NULL DEFAULT '{}'::jsonb,
    snapshot_id bigint, -- of the table afterwards
    run_id      text,
    started_at  timestamptz NOT NULL DEFAULT now(),
    ended_at    timestamptz,
    seconds     double precision,
    PRIMARY KEY (tenant_id, upkeep_id)
);
CREATE INDEX upkeep_log_open ON upkeep_log (dataset_id) WHERE outcome IN ('running', 'abandoned');
CREATE INDEX upkeep_log_started ON upkeep_log (started_at);

GRANT SELECT ON backfills, summaries TO pulse_api;
GRANT SELECT, INSERT, UPDATE ON dataset_moves TO pulse_api;
GRANT SELECT, INSERT ON backfills TO pulse_pipeline;
GRANT SELECT, INSERT, UPDATE ON upkeep_tenants, upkeep_tables, upkeep_days, upkeep_log TO pulse_pipeline;
GRANT SELECT, INSERT, UPDATE, DELETE ON summaries TO pulse_pipeline;
GRANT SELECT, UPDATE ON dataset_moves TO pulse_pipeline;

-- Erasure ---------------------------------------------------------------------------------------------------

CREATE TABLE erasures (
    tenant_id   uuid NOT NULL REFERENCES pdm_tenants,
    erasure_id  text NOT NULL,
    dataset_id  uuid NOT NULL,
    slug        text NOT NULL,
    field       text NOT NULL,
    salt        bytea NOT NULL,
    value_hash  bytea NOT NULL, -- the value itself is personal
    covers      jsonb NOT NULL, -- by partition: the first offset that was not settled when it began
    -- results by step; a missing step is to be done
    steps       jsonb NOT NULL DEFAULT '{}'::jsonb,
    started_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    PRIMARY KEY (tenant_id, erasure_id)
);
CREATE INDEX erasures_unfinished ON erasures (tenant_id, dataset_id) WHERE finished_at IS NULL;

-- Offsets of events that had landed and were erased: they stay accounted for.
CREATE TABLE erased_offsets (
    tenant_id  uuid NOT NULL REFERENCES pdm_tenants,
    erasure_id text NOT NULL,
    partition  integer NOT NULL,
    offsets    int8multirange NOT NULL,
    PRIMARY KEY (tenant_id, erasure_id, partition)
);

GRANT SELECT ON erased_offsets TO pulse_api;
GRANT SELECT, INSERT, UPDATE ON erasures, erased_offsets TO pulse_pipeline;

-- Monitoring ------------------------------------------------------------------------------------------------

CREATE TABLE alerts (
    alert_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key         text NOT NULL, -- the fault and its object: the same while it lasts
    kind        text NOT NULL,
    severity    text NOT NULL CHECK (severity IN ('warning', 'error')),
    about       jsonb NOT NULL, -- tenant, dataset, batch, run, as far as there are any
    summary     text NOT NULL,
    fix         text NOT NULL, -- what to do
    first_seen  timestamptz NOT NULL DEFAULT now(),
    last_seen   timestamptz NOT NULL DEFAULT now(),
    resolved_at timestamptz
);
CREATE UNIQUE INDEX alerts_open ON alerts (key) WHERE resolved_at IS NULL;
CREATE INDEX alerts_resolved ON alerts (resolved_at) WHERE resolved_at IS NOT NULL;

-- Deliveries to notifiers: a row is written with the alert, and closed once the alert's end was delivered.
CREATE TABLE alert_deliveries (
    alert_id      bigint NOT NULL REFERENCES alerts ON DELETE CASCADE,
    notifier      text NOT NULL,
    notified_at   timestamptz, -- of the last delivery; null: none
    told_severity text,
    closed        boolean NOT NULL DEFAULT false,
    error         text, -- of the last delivery
    PRIMARY KEY (alert_id, notifier)
);
CREATE INDEX alert_deliveries_owed ON alert_deliveries (notifier, alert_id) WHERE NOT closed;

CREATE TABLE check_results (
    tenant_id  uuid NOT NULL,
    dataset_id uuid NOT NULL REFERENCES pdm_datasets ON DELETE CASCADE,
    name       text NOT NULL,
    scope      text NOT NULL CHECK (scope IN ('batch', 'table')), -- the rows of a batch, or of the table
    problems   integer NOT NULL CHECK (problems >= 0),
    checked_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (dataset_id, name)
);

GRANT SELECT ON check_results TO pulse_api;
GRANT SELECT, INSERT, UPDATE ON check_results TO pulse_pipeline;
GRANT SELECT, INSERT, UPDATE, DELETE ON alerts, alert_deliveries TO pulse_pipeline;

-- Pipes -----------------------------------------------------------------------------------------------------

CREATE TABLE pipes (
    tenant_id     uuid NOT NULL REFERENCES pdm_tenants,
    pipe          text NOT NULL,
    dataset_id    uuid NOT NULL REFERENCES pdm_datasets,
    definition    jsonb NOT NULL, -- without any credentials
    state         text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused')),
    every_seconds integer CHECK (every_seconds > 0), -- null: it runs on request alone
    asked_at      timestamptz, -- a run was requested, and none has begun since
    begun_at      timestamptz, -- of the last run
    anew_after    bigint NOT NULL DEFAULT 0, -- a reset: positions of syncs up to this one do not count
    error         text, -- of the last run
    created_at    timestamptz NOT NULL DEFAULT now(),
    wal_bytes     bigint, -- that the source keeps for the slot, at the last check ...
    wal_status    text, -- ... and their status there
    delivers      boolean NOT NULL DEFAULT false, -- from a dataset to a sink
    -- What a sink has confirmed: generation and place in the log, and the reset (`anew_after`) before it; of
    -- a service over HTTP also the chain of requests. A database has its position in a table of its own.
    confirmed     jsonb,
    computes      text, -- of the last run of a transform: all, or what follows from changes, and why
    -- Set when the run has to give its place to a run of another tenant: its tasks then end.
    gives_way     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant_id, pipe)
);
CREATE INDEX pipes_of_datasets ON pipes (dataset_id);
CREATE UNIQUE INDEX pipes_that_bring ON pipes (dataset_id) WHERE NOT delivers;

CREATE TABLE pipe_deliveries (
    delivery_id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    tenant_id   uuid NOT NULL,
    pipe        text NOT NULL,
    state       text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'failed')),
    -- a full copy, after which missing entities were deleted
    is_full     boolean NOT NULL DEFAULT false,
    versions    bigint NOT NULL DEFAULT 0, -- read
    upserted    bigint NOT NULL DEFAULT 0,
    deleted     bigint NOT NULL DEFAULT 0,
    refused     bigint NOT NULL DEFAULT 0,
    begun_at    timestamptz NOT NULL DEFAULT now(),
    ended_at    timestamptz,
    reason      text,
    FOREIGN KEY (tenant_id, pipe) REFERENCES pipes (tenant_id, pipe) ON DELETE CASCADE
);
CREATE INDEX pipe_deliveries_of_pipe ON pipe_deliveries (tenant_id, pipe, delivery_id);

GRANT SELECT ON pipe_deliveries TO pulse_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON pipes TO pulse_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON pipe_deliveries TO pulse_pipeline;
GRANT SELECT, UPDATE ON pipes TO pulse_pipeline;

-- The catalog, SQL and questions ----------------------------------------------------------------------------

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

-- Folders of tenants' own tables whose files are removed: no other table may be registered there.
CREATE TABLE lake_purges (
    tenant_id uuid NOT NULL REFERENCES pdm_tenants,
    location  text NOT NULL,
    at        timestamptz NOT NULL DEFAULT now(),
    done_at   timestamptz, -- null: files may be left
    PRIMARY KEY (tenant_id, location)
);

-- Requests with an Idempotency-Key: a repeated one is not carried out again.
CREATE TABLE lake_requests (
    tenant_id   uuid NOT NULL REFERENCES pdm_tenants,
    request_key text NOT NULL CHECK (length(request_key) BETWEEN 1 AND 100),
    asked       text NOT NULL, -- digest of the request
    at          timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, request_key)
);
CREATE INDEX lake_requests_at ON lake_requests (tenant_id, at);

CREATE TABLE sql_queries (
    tenant_id uuid NOT NULL REFERENCES pdm_tenants,
    query_id  text NOT NULL CHECK (query_id ~ '^[A-Za-z0-9._-]{1,64}$'),
    key_id    text, -- null: an operator asked, by the command line
    sql       text NOT NULL,
    state     text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'failed', 'cancelled')),
    snapshots jsonb NOT NULL DEFAULT '{}'::jsonb, -- by slug; null: the table was empty
    rows      bigint,
    bytes     bigint,
    seconds   double precision,
    error     text,
    asked_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, query_id)
);
CREATE INDEX sql_queries_asked ON sql_queries (tenant_id, asked_at);

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

GRANT SELECT, INSERT, UPDATE ON iceberg_catalog.iceberg_namespace_properties TO pulse_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON sql_queries, questions TO pulse_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON
    iceberg_catalog.iceberg_tables TO pulse_api, pulse_catalog, pulse_lake;
GRANT SELECT ON iceberg_catalog.iceberg_namespace_properties TO pulse_pipeline;
GRANT SELECT, INSERT, UPDATE ON iceberg_catalog.iceberg_tables TO pulse_pipeline;
GRANT SELECT, INSERT, UPDATE, DELETE ON
    iceberg_catalog.iceberg_namespace_properties TO pulse_catalog, pulse_lake;
GRANT SELECT, INSERT ON lake_purges TO pulse_lake;
GRANT SELECT, INSERT, DELETE ON lake_requests TO pulse_lake;
GRANT UPDATE (done_at) ON lake_purges TO pulse_lake;

-- Row-level security ----------------------------------------------------------------------------------------

-- The tenant of a session; null without one, so that policies fail closed.
CREATE FUNCTION app_tenant() RETURNS uuid LANGUAGE sql STABLE PARALLEL SAFE
    RETURN NULLIF(current_setting('app.tenant', true), '')::uuid;

-- Tables whose rows belong to a tenant, for the owner of the tables, too.
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[
    'pdm_tenants', 'pdm_schemas', 'pdm_datasets', 'dataset_versions', 'deleted_datasets', 'api_keys',
    'quotas', 'rates', 'rate_shares', 'ingest_positions', 'ingest_ranges', 'processed_event_ids',
    'landings', 'raw_objects', 'dead_letters', 'dead_letter_outbox', 'intake', 'intake_holds',
    'intake_doubts', 'usage', 'accepted_losses', 'failures', 'entity_logs', 'entity_heads', 'entity_syncs',
    'entity_sync_ids', 'entity_indexes', 'entity_index_runs', 'entity_index_readers', 'event_states',
    'event_state_keys', 'event_windows', 'event_window_buckets', 'backfills', 'summaries', 'dataset_moves',
    'upkeep_tenants', 'upkeep_tables', 'upkeep_days', 'upkeep_log', 'erasures', 'erased_offsets',
    'check_results', 'pipes', 'pipe_deliveries', 'lake_purges', 'lake_requests', 'sql_queries', 'questions'
   ] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY own_tenant ON %I
            USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant())', name);
    END LOOP;
END $$;

-- What sensors, schedules, metrics and alerts read of all tenants.
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[
    'pdm_tenants', 'pdm_schemas', 'pdm_datasets', 'dataset_versions', 'ingest_positions', 'ingest_ranges',
    'landings', 'dead_letter_outbox', 'failures', 'event_states', 'event_windows', 'backfills',
    'summaries', 'dataset_moves', 'upkeep_tenants', 'upkeep_tables', 'upkeep_days', 'upkeep_log'] LOOP
        EXECUTE format('CREATE POLICY plan_all ON %I FOR SELECT TO pulse_pipeline USING (true)', name);
    END LOOP;
END $$;
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['entity_logs', 'entity_syncs', 'pipes', 'pipe_deliveries'] LOOP
        EXECUTE format('CREATE POLICY look_at_all ON %I FOR SELECT TO pulse_pipeline USING (true)', name);
    END LOOP;
END $$;

-- Records of what was asked stay for a day, whoever asks.
CREATE POLICY only_old_ones ON sql_queries AS RESTRICTIVE FOR DELETE
    USING (asked_at < now() - interval '1 day');
CREATE POLICY only_old_ones ON questions AS RESTRICTIVE FOR DELETE
    USING (asked_at < now() - interval '1 day');

-- The catalog: `pulse_<tenant>` is the namespace of a tenant's datasets, and `pulse_<tenant>.*` are its own.

ALTER TABLE iceberg_catalog.iceberg_tables ENABLE ROW LEVEL SECURITY;
ALTER TABLE iceberg_catalog.iceberg_tables FORCE ROW LEVEL SECURITY;
CREATE POLICY operators ON iceberg_catalog.iceberg_tables TO pulse_catalog USING (true)
    WITH CHECK (true);
CREATE POLICY own_namespace ON iceberg_catalog.iceberg_tables TO pulse_api, pulse_pipeline
    USING (table_namespace = 'pulse_' || replace(app_tenant()::text, '-', ''))
    WITH CHECK (table_namespace = 'pulse_' || replace(app_tenant()::text, '-', ''));
CREATE POLICY own_namespaces ON iceberg_catalog.iceberg_tables TO pulse_lake
    USING (starts_with(table_namespace, 'pulse_' || replace(app_tenant()::text, '-', '') || '.'))
    WITH CHECK (starts_with(table_namespace, 'pulse_' || replace(app_tenant()::text, '-', '') || '.'));
CREATE POLICY own_lake ON iceberg_catalog.iceberg_tables FOR SELECT TO pulse_lake
    USING (table_namespace = 'pulse_' || replace(app_tenant()::text, '-', ''));
-- SQL over tables of a tenant's own: the API finds them, and only the catalog's role writes them.
CREATE POLICY read_own ON iceberg_catalog.iceberg_tables FOR SELECT TO pulse_api
    USING (starts_with(table_namespace, 'pulse_' || replace(app_tenant()::text, '-', '') || '.'));

ALTER TABLE iceberg_catalog.iceberg_namespace_properties ENABLE ROW LEVEL SECURITY;
ALTER TABLE iceberg_catalog.iceberg_namespace_properties FORCE ROW LEVEL SECURITY;
CREATE POLICY operators ON iceberg_catalog.iceberg_namespace_properties TO pulse_catalog USING (true)
    WITH CHECK (true);
CREATE POLICY own_namespace ON iceberg_catalog.iceberg_namespace_properties TO pulse_api, pulse_pipeline
    USING (namespace = 'pulse_' || replace(app_tenant()::text, '-', ''))
    WITH CHECK (namespace = 'pulse_' || replace(app_tenant()::text, '-', ''));
CREATE POLICY own_namespaces ON iceberg_catalog.iceberg_namespace_properties TO pulse_lake
    USING (starts_with(namespace, 'pulse_' || replace(app_tenant()::text, '-', '') || '.'))
    WITH CHECK (starts_with(namespace, 'pulse_' || replace(app_tenant()::text, '-', '') || '.'));
CREATE POLICY plan_own ON iceberg_catalog.iceberg_namespace_properties FOR SELECT TO pulse_pipeline
    USING (property_key = 'exists');

-- Changes ---------------------------------------------------------------------------------------------------

-- Services forget what they remember of a tenant once one of these changes.
CREATE FUNCTION announce_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('pulse_changes', COALESCE(NEW.tenant_id, OLD.tenant_id)::text);
    RETURN NULL;
END $$;
CREATE FUNCTION announce_operator() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('pulse_changes', 'operator');
    RETURN NULL;
END $$;
CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE OF scopes, key_hash, expires_at, revoked_at
    ON api_keys FOR EACH ROW EXECUTE FUNCTION announce_change();
CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE OF key_hash, revoked_at
    ON operator_keys FOR EACH STATEMENT EXECUTE FUNCTION announce_operator();
CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE
    ON pdm_datasets FOR EACH ROW EXECUTE FUNCTION announce_change();
CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE
    ON quotas FOR EACH ROW EXECUTE FUNCTION announce_change();
CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE
    ON rates FOR EACH ROW EXECUTE FUNCTION announce_change();

-- Changes of the registry are numbered: a process learns from a number whether it has to read anything again.
-- Numbers are taken as a transaction commits, one after the other: who sees a number sees all lower ones.
INSERT INTO registry_version (version) VALUES (1);
CREATE FUNCTION note_registry_change() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    UPDATE registry_version SET version = version + 1, xact = pg_current_xact_id()
        WHERE xact IS DISTINCT FROM pg_current_xact_id();
    IF TG_TABLE_NAME = 'pdm_datasets' THEN
        INSERT INTO family_versions (slug, version)
            SELECT COALESCE(NEW.slug, OLD.slug), version FROM registry_version
            ON CONFLICT (slug) DO UPDATE SET version = EXCLUDED.version, token = gen_random_uuid()
            WHERE family_versions.version <> EXCLUDED.version;
    END IF;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION note_registry_change() FROM PUBLIC;
CREATE CONSTRAINT TRIGGER note_change
    AFTER INSERT OR DELETE OR UPDATE OF name, schema_uri, table_schema ON pdm_datasets
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note_registry_change();
CREATE CONSTRAINT TRIGGER note_change AFTER INSERT OR DELETE OR UPDATE OF definition ON pipes
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note_registry_change();
