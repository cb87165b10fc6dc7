-- Tenants whose events are large have batches of their own, whose messages are fetched in small pieces: a few
-- hundred bytes of a compressed topic may be a gigabyte.
ALTER TABLE ingest_positions
    ADD COLUMN event_bytes bigint NOT NULL DEFAULT 0; -- mean of the latest batch, or 9/10 of what it was
ALTER TABLE ingest_batches ADD COLUMN bulk boolean NOT NULL DEFAULT false; -- small batches take precedence
