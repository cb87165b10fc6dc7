-- A raw object has events of several days, those of a day as a gzip member: a row for each member. Objects of
-- earlier versions have one.
ALTER TABLE raw_objects
    ADD COLUMN start bigint NOT NULL DEFAULT 0, -- the byte of the object at which the member begins
    DROP CONSTRAINT raw_objects_pkey,
    ADD PRIMARY KEY (tenant_id, path, start);
ALTER TABLE raw_objects ALTER COLUMN start DROP DEFAULT;
