-- Pipes are watched between their runs: how far behind its source each is, and what that keeps for it. Syncs whose
-- sender has gone end.

ALTER TABLE entity_syncs
    ADD COLUMN as_of   timestamptz, -- of a pipe: the moment up to which it brings what there is; as `position`
    ADD COLUMN part_at timestamptz NOT NULL DEFAULT now(); -- when its last part was taken
CREATE INDEX entity_syncs_of_pipes_begun ON entity_syncs (begun_at) WHERE pipe IS NOT NULL;

ALTER TABLE pipes
    ADD COLUMN wal_bytes  bigint, -- that the source keeps for the slot, when it was last looked at ...
    ADD COLUMN wal_status text;   -- ... and what it says of them

-- A pipe may have a slot in its source, which would keep its log for ever: the pipe is deleted first.
ALTER TABLE pipes
    DROP CONSTRAINT pipes_dataset_id_fkey,
    ADD CONSTRAINT pipes_dataset_id_fkey FOREIGN KEY (dataset_id) REFERENCES entity_logs;
