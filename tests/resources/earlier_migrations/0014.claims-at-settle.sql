-- Claims are written by settle: those that an attempt left, which is under way or died, would make copies of the
-- events that they were for.

-- The owner, too, sees no tenant's rows while row-level security is forced.
ALTER TABLE processed_event_ids NO FORCE ROW LEVEL SECURITY;
ALTER TABLE ingest_positions NO FORCE ROW LEVEL SECURITY;
DELETE FROM processed_event_ids c USING ingest_positions p
WHERE (c.tenant_id, c.partition) = (p.tenant_id, p.partition) AND c.event_offset >= p.settled_offset;
ALTER TABLE processed_event_ids FORCE ROW LEVEL SECURITY;
ALTER TABLE ingest_positions FORCE ROW LEVEL SECURITY;
