-- Where in a large run each digest can be, two bytes of each: see `tables/claim_filters.py`. NULL: it has none.
ALTER TABLE processed_event_ids ADD COLUMN filter bytea STORAGE EXTERNAL;
