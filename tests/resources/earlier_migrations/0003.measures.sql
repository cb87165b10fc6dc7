-- Totals per topic partition, and the indexes behind measures and the list of dead letters.

-- What became of everything below settled_offset: the sums of its ranges, so that no scrape adds them up.
ALTER TABLE ingest_positions
    ADD COLUMN landed bigint NOT NULL DEFAULT 0,
    ADD COLUMN duplicates bigint NOT NULL DEFAULT 0,
    ADD COLUMN dead_letters bigint NOT NULL DEFAULT 0;
-- The owner, too, sees no tenant's rows while row-level security is forced.
ALTER TABLE ingest_positions NO FORCE ROW LEVEL SECURITY;
ALTER TABLE ingest_ranges NO FORCE ROW LEVEL SECURITY;
UPDATE ingest_positions p SET (landed, duplicates, dead_letters) = (
    SELECT coalesce(sum(r.landed), 0), coalesce(sum(r.duplicates), 0), coalesce(sum(r.dead_letters), 0)
    FROM ingest_ranges r WHERE r.tenant_id = p.tenant_id AND r.partition = p.partition);
ALTER TABLE ingest_positions FORCE ROW LEVEL SECURITY;
ALTER TABLE ingest_ranges FORCE ROW LEVEL SECURITY;

CREATE INDEX ingest_batches_settled ON ingest_batches (settled_at) WHERE state = 'settled';
CREATE INDEX dead_letters_open_reasons ON dead_letters (tenant_id, reason) WHERE resolution IS NULL;
CREATE INDEX dead_letters_newest ON dead_letters (tenant_id, settled_at, partition, event_offset);
