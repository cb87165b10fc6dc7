-- The latest sync of a sequence. Without this index a request that begins a sync read all syncs of its dataset.
CREATE INDEX entity_syncs_of_sequence ON entity_syncs (dataset_id, sequence_id, sync_id);
