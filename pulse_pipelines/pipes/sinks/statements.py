"""Statements of a sink's table: of its rows, its position, and the entities that it refuses."""

POSITIONS, LISTED = "pulse_positions", "pulse_brought"
CREATE = """
CREATE TABLE IF NOT EXISTS {positions} (
    pipe     text PRIMARY KEY,
    written  oid NOT NULL UNIQUE,
    log      text NOT NULL,
    updated  bigint NOT NULL,
    sweeps   boolean NOT NULL,
    moved_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE IF NOT EXISTS {listed} (pipe text, id text, PRIMARY KEY (pipe, id))
"""
TABLES_EXIST = "SELECT to_regclass({positions}) IS NOT NULL AND to_regclass({listed}) IS NOT NULL"
READ = "SELECT written = %s, log, updated, sweeps FROM {positions} WHERE pipe = %s"
OWNER = "SELECT pipe FROM {positions} WHERE written = %s"
ANY = "SELECT EXISTS (SELECT FROM {table})"
BEGIN = """
INSERT INTO {positions} (pipe, written, log, updated, sweeps) VALUES (%s, %s, %s, 0, %s)
ON CONFLICT (pipe) DO UPDATE SET written = EXCLUDED.written, log = EXCLUDED.log, updated = 0,
    sweeps = EXCLUDED.sweeps, moved_at = now()
"""
MOVE = """
UPDATE {positions} SET updated = %s, moved_at = now() WHERE pipe = %s AND log = %s AND updated = %s
"""
NOTE = """
INSERT INTO {listed} SELECT %s, id::text FROM pulse_rows WHERE NOT {gone} ON CONFLICT DO NOTHING
"""
NOTE_ONE = "INSERT INTO {listed} VALUES (%s, %s) ON CONFLICT DO NOTHING"
# The texts of keys, whose columns may ignore case, are compared as they are, by the collation of the index.
UNNOTE = """
DELETE FROM {listed} b USING pulse_rows r
WHERE b.pipe = %s AND r.{gone} AND b.id = r.id::text COLLATE "default"
"""
DELETE_MISSING = """
DELETE FROM {table} t
WHERE NOT EXISTS (SELECT FROM {listed} b WHERE b.pipe = %s AND b.id = t.id::text COLLATE "default")
"""
REMAINING = """
SELECT t.id::text FROM {table} t
WHERE NOT EXISTS (SELECT FROM {listed} b WHERE b.pipe = %s AND b.id = t.id::text COLLATE "default")
    AND t.id::text COLLATE "C" > %s ORDER BY t.id::text COLLATE "C" LIMIT %s
"""
FORGET = "DELETE FROM {listed} WHERE pipe = %s"
END_DELETIONS = "UPDATE {positions} SET sweeps = false WHERE pipe = %s AND log = %s AND updated = %s"
REFUSED = "pulse_set_aside"
REFUSED_EXISTS = "SELECT to_regclass({refused}) IS NOT NULL"
CREATE_REFUSED = """
CREATE TABLE IF NOT EXISTS {refused} (pipe text, id text, entity text NOT NULL, reason text NOT NULL,
    since timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (pipe, id))
"""
INSERT_REFUSED = """
INSERT INTO {refused} (pipe, id, entity, reason) VALUES (%s, %s, %s, %s)
ON CONFLICT (pipe, id) DO UPDATE SET entity = EXCLUDED.entity, reason = EXCLUDED.reason
"""
DELETE_REFUSED = "DELETE FROM {refused} WHERE pipe = %s AND id = ANY (%s)"
ALL_REFUSED = "SELECT id, entity, reason FROM {refused} WHERE pipe = %s ORDER BY since, id LIMIT %s"
EMPTY_REFUSED = "DELETE FROM {refused} WHERE pipe = %s"
