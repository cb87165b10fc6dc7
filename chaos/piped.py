"""Oracle of pipes: what a dataset, or a table that is a sink, has, against the rows of the source."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import orjson

from chaos.oracle import Finding
from chaos.sources import Folder
from chaos.writer import Source, entity_id
from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.query import duckdb_pool, versions

Content = Mapping[str, Any]
SUNK = """
CREATE TABLE sunk (id text PRIMARY KEY, fleet int, tail text, seats int, notes text);
CREATE TABLE sunk_gone (id text);
CREATE FUNCTION note_gone() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO sunk_gone VALUES (OLD.id); RETURN OLD; END';
CREATE TRIGGER gone AFTER DELETE ON sunk FOR EACH ROW EXECUTE FUNCTION note_gone();
"""
"""A table that is a sink; it notes what was ever deleted."""
NOTED = """
CREATE TABLE noted (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(), what text, fleet int, tail text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO noted (what, fleet, tail) VALUES (TG_OP, coalesce(NEW.fleet, OLD.fleet),
        coalesce(NEW.tail, OLD.tail)); RETURN NULL; END';
CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON copied FOR EACH ROW EXECUTE FUNCTION note();
"""
"""A table that is only appended to: each row that is written in another one is noted."""


def export(source: Source, table: str, folder: Folder) -> None:
    """Write the rows of a table as two files, by the parity of their fleets."""
    files: dict[int, list[bytes]] = {0: [], 1: []}
    for row in rows(source, table).values():
        files[row["fleet"] % 2].append(orjson.dumps(row) + b"\n")
    for parity, lines in files.items():
        folder.write(f"{parity}.ndjson", b"".join(lines))


def rows(source: Source, table: str) -> dict[str, Content]:
    """The rows of a table of the source, by the `_id` that each has in Pulse; without nulls."""
    query = f"SELECT fleet, tail, to_json(t) FROM {table} t"
    return {entity_id(fleet, tail): _without_nulls(row) for fleet, tail, row in source.execute(query)}


def compare(
    tenant: Tenant, source: Source, name: str, expected: Mapping[str, Content], deleted: Collection[str]
) -> list[Finding]:
    """Differences between the source and the rows that a pipe of this name brought."""
    if name == "noted":
        return compare_events(tenant, source)
    if name == "sunk":
        return compare_table(tenant, source, expected, deleted)
    return compare_log(tenant, name, expected, deleted)


def size(tenant: Tenant, name: str) -> int:
    """Versions, or events, of a dataset."""
    return len(events(tenant, name, "id") if name == "noted" else log(tenant, name))


def compare_log(
    tenant: Tenant, slug: str, expected: Mapping[str, Content], deleted: Collection[str]
) -> list[Finding]:
    """Differences of a dataset's latest state, deletions of what was there all along, doubled versions."""
    findings = []
    states: dict[str, Content | None] = {}
    hashes: dict[str, Any] = {}
    for version in log(tenant, slug):
        name = version["_id"]
        if name in hashes and hashes[name] == version["_hash"]:
            findings.append(Finding("a version that is as the one before", tenant.slug, f"{slug} {name}"))
        if version["_deleted"] and name not in deleted:
            findings.append(Finding("deleted, and was there all along", tenant.slug, f"{slug} {name}"))
        hashes[name] = version["_hash"]
        content = {key: value for key, value in version.items() if not key.startswith("_")}
        states[name] = None if version["_deleted"] else content
    return findings + _differing(tenant, slug, expected, states)


def compare_table(
    tenant: Tenant, sink: Source, expected: Mapping[str, Content], deleted_ids: Collection[str]
) -> list[Finding]:
    """Differences of a table that is a sink, and deletions of what was there all along."""
    query = "SELECT id, to_jsonb(s) - 'id' FROM sunk s"
    has = {key: _without_nulls(row) for key, row in sink.execute(query)}
    deleted = {key for (key,) in sink.execute("SELECT id FROM sunk_gone")}
    return [
        *(
            Finding("deleted, and was there all along", tenant.slug, f"sunk {key}")
            for key in deleted - set(deleted_ids)
        ),
        *_differing(tenant, "sunk", expected, has),
    ]


def compare_events(tenant: Tenant, source: Source) -> list[Finding]:
    """Notes of the source without an event, with several, or with a different one."""
    query = "SELECT number::text, at, number, what, fleet, tail FROM noted"
    noted = Counter(source.execute(query).fetchall())
    has = Counter(events(tenant, "noted", "id, timestamp, number, what, fleet, tail"))
    return [
        *(Finding("no event", tenant.slug, f"noted {row[0]}") for row in noted - has),
        *(Finding("an event too many", tenant.slug, f"noted {row[0]}") for row in has - noted),
    ]


def events(tenant: Tenant, slug: str, columns: str) -> list[tuple[Any, ...]]:
    """Columns of all rows of a dataset of events."""
    location = registry.current_table(tenant, slug).metadata_location
    with duckdb_pool.connect() as connection:
        return connection.execute(f"SELECT {columns} FROM {duckdb_pool.SCAN}", [location]).fetchall()


def log(tenant: Tenant, slug: str) -> list[dict[str, Any]]:
    """All versions of a dataset."""
    entries: list[dict[str, Any]] = []
    since = None
    while (page := versions.page(tenant, slug, since, 1_000, packed=False)).following != since:
        entries += [orjson.loads(line) for line in page.lines.splitlines()]
        since = page.following
    return entries


def _differing(
    tenant: Tenant, where: str, expected: Mapping[str, Content], has: Mapping[str, Content | None]
) -> list[Finding]:
    return [
        Finding("differs from the source", tenant.slug, f"{where} {name}")
        for name in expected.keys() | has.keys()
        if expected.get(name) != has.get(name)
    ]


def _without_nulls(row: Content) -> Content:
    return {key: value for key, value in row.items() if value is not None}
