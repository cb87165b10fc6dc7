-- A task that another writer overtook is no failure: the next run looks again.

ALTER TABLE upkeep_log DROP CONSTRAINT upkeep_log_outcome_check;
ALTER TABLE upkeep_log ADD CONSTRAINT upkeep_log_outcome_check
    CHECK (outcome IN ('running', 'done', 'skipped', 'failed', 'rolled_back', 'abandoned'));
