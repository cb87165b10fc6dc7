-- Hops: a transform computes what the changes of its sources lead to, by indexes that its joins imply.

ALTER TABLE pipes ADD COLUMN computes text; -- of a transform: all, or what changes lead to, and why; of its last run
ALTER TABLE entity_indexes ADD COLUMN implied boolean NOT NULL DEFAULT false; -- by joins: for nobody else
GRANT UPDATE (implied) ON entity_indexes TO pulse_api;
-- A pipe that is deleted reads no index any more.
GRANT DELETE ON entity_index_readers TO pulse_api;
