-- What changes in the registry is numbered, so that nobody need read all of it to see whether it has changed.
-- Numbers are taken as a transaction commits, one after the other: whoever sees a number sees all lower ones.

CREATE TABLE registry_version (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint NOT NULL,
    xact    xid8 -- by which it was changed last
);
INSERT INTO registry_version (version) VALUES (1);
CREATE TABLE family_versions (
    slug    text PRIMARY KEY, -- of datasets that there are, or were
    version bigint NOT NULL, -- of the registry, when one of them was changed last
    token   uuid NOT NULL DEFAULT gen_random_uuid() -- a number may come again, in a restored database
);
CREATE INDEX family_versions_newest ON family_versions (version);
CREATE INDEX pdm_datasets_of_slug ON pdm_datasets (slug);

CREATE FUNCTION note_registry_change() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    UPDATE registry_version SET version = version + 1, xact = pg_current_xact_id()
        WHERE xact IS DISTINCT FROM pg_current_xact_id();
    IF TG_TABLE_NAME = 'pdm_datasets' THEN
        INSERT INTO family_versions (slug, version)
            SELECT COALESCE(NEW.slug, OLD.slug), version FROM registry_version
            ON CONFLICT (slug) DO UPDATE SET version = EXCLUDED.version, token = gen_random_uuid()
            WHERE family_versions.version <> EXCLUDED.version;
    END IF;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION note_registry_change() FROM PUBLIC;
CREATE CONSTRAINT TRIGGER note_change
    AFTER INSERT OR DELETE OR UPDATE OF name, schema_uri, table_schema ON pdm_datasets
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note_registry_change();
CREATE CONSTRAINT TRIGGER note_change AFTER INSERT OR DELETE OR UPDATE OF definition ON pipes
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note_registry_change();

ALTER TABLE pdm_datasets NO FORCE ROW LEVEL SECURITY;
INSERT INTO family_versions (slug, version) SELECT DISTINCT slug, 1 FROM pdm_datasets;
ALTER TABLE pdm_datasets FORCE ROW LEVEL SECURITY;

GRANT SELECT ON registry_version, family_versions TO pulse_pipeline;
