-- Tenants whose events are large have batches of their own, and their messages are fetched in small pieces: a few
-- hundred bytes of a compressed topic may be a gigabyte.
ALTER TABLE ingest_positions
    ADD COLUMN event_bytes bigint NOT NULL DEFAULT 0; -- mean of the latest batch, or 9/10 of what it was
ALTER TABLE ingest_batches
    ADD COLUMN kind text NOT NULL DEFAULT 'quick' CHECK (kind IN ('quick', 'bulk', 'costly'));
