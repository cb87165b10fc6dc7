-- Since when a slug has rows: the grid of its asset begins there. A day more than 40 days ago is rounded down to its
-- month, one more than 13 months ago to its year: a tenant's old events change it, and the registry, few times.
ALTER TABLE family_versions ADD COLUMN first_day date; -- null: nothing has landed

CREATE FUNCTION rounded_first_day(day date) RETURNS date LANGUAGE sql STABLE AS $$
    SELECT greatest('1970-01-01', date_trunc(CASE
        WHEN day < now() AT TIME ZONE 'UTC' - interval '13 months' THEN 'year'
        WHEN day < now() AT TIME ZONE 'UTC' - interval '40 days' THEN 'month'
        ELSE 'day' END, day)::date)
$$;

ALTER TABLE landings NO FORCE ROW LEVEL SECURITY;
UPDATE family_versions f SET first_day = rounded_first_day(l.day)
    FROM (SELECT slug, min(day) AS day FROM landings WHERE rows > 0 GROUP BY slug) l WHERE l.slug = f.slug;
ALTER TABLE landings FORCE ROW LEVEL SECURITY;

-- Deferred as `note_registry_change`, whose locks it takes in the same order.
CREATE FUNCTION note_first_day() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM family_versions f WHERE f.slug = NEW.slug
               AND (f.first_day IS NULL OR rounded_first_day(NEW.day) < f.first_day)) THEN
        UPDATE registry_version SET version = version + 1, xact = pg_current_xact_id()
            WHERE xact IS DISTINCT FROM pg_current_xact_id();
        UPDATE family_versions f
            SET first_day = rounded_first_day(NEW.day), version = r.version, token = gen_random_uuid()
            FROM registry_version r WHERE f.slug = NEW.slug
            AND (f.first_day IS NULL OR rounded_first_day(NEW.day) < f.first_day);
    END IF;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION note_first_day() FROM PUBLIC;
CREATE CONSTRAINT TRIGGER note_first_day AFTER INSERT ON landings
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.rows > 0) EXECUTE FUNCTION note_first_day();
