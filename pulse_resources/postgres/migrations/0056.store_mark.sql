-- Postgres and the object store hold the same mark, renewed every minute. After one of them was restored the
-- marks differ: files that this database does not know may be the only copy of rows, so none is removed.
CREATE TABLE store_mark (
    one       boolean DEFAULT true PRIMARY KEY CHECK (one),
    mark      uuid NOT NULL,
    previous  uuid NOT NULL, -- the object holds this one until `mark` has been written to it
    marked_at timestamptz NOT NULL DEFAULT now()
);
GRANT SELECT, INSERT, UPDATE ON store_mark TO pulse_pipeline;
