-- Pipes of events: rows that are only appended become events, so a pipe and its runs (syncs) are of datasets of
-- either kind. Only those of entities have a log.

ALTER TABLE pipes
    DROP CONSTRAINT pipes_dataset_id_fkey,
    ADD CONSTRAINT pipes_dataset_id_fkey FOREIGN KEY (dataset_id) REFERENCES pdm_datasets;
ALTER TABLE entity_syncs
    DROP CONSTRAINT entity_syncs_dataset_id_fkey,
    ADD CONSTRAINT entity_syncs_dataset_id_fkey FOREIGN KEY (dataset_id) REFERENCES pdm_datasets
        ON DELETE CASCADE;
-- Claims of a dataset that a pipe brings, or has brought, never expire.
CREATE INDEX entity_syncs_of_pipes_by_dataset ON entity_syncs (dataset_id) WHERE pipe IS NOT NULL;
