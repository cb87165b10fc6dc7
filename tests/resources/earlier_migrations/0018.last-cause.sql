-- The last error of a batch's attempts that said what went wrong: a run that only died hides it no more.
ALTER TABLE ingest_batches ADD COLUMN last_cause text;
