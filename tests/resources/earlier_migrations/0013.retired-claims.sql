-- Retention forgets claims from the front of a topic: reconcile must know which rows may be without theirs.

ALTER TABLE ingest_positions
    ADD COLUMN claims_from bigint NOT NULL DEFAULT 0; -- claims of earlier offsets may have been retired

-- The owner, too, sees no tenant's rows while row-level security is forced.
ALTER TABLE ingest_positions NO FORCE ROW LEVEL SECURITY;
ALTER TABLE upkeep_log NO FORCE ROW LEVEL SECURITY;
UPDATE ingest_positions p SET claims_from = settled_offset WHERE EXISTS (
    SELECT FROM upkeep_log l WHERE l.tenant_id = p.tenant_id AND (l.after ->> 'claims_removed')::bigint > 0);
ALTER TABLE ingest_positions FORCE ROW LEVEL SECURITY;
ALTER TABLE upkeep_log FORCE ROW LEVEL SECURITY;
