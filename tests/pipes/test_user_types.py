"""Types of extensions, and of a source's own: each value is its text, as Postgres writes it."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from support.ingest import Owner

from chaos.sources import SOURCE, capturing, database
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.pipes.postgres import queries, reading, sessions, shapes, tables
from pulse_resources.errors import UserError

MEMBERS: dict[str, Any] = {"pipe": "planes", "source": SOURCE, "table": "planes", "dataset": "planes"}
PIPE = definition(MEMBERS)
MOMENT = "2026-11-28T00:00:00Z"
TYPES = """
CREATE DOMAIN short AS varchar(5); CREATE DOMAIN shorter AS short CHECK (length(value) < 5);
CREATE DOMAIN "Odd Name" AS int; CREATE DOMAIN numbers AS int[]; CREATE DOMAIN price AS numeric(12, 2);
CREATE TYPE mood AS ENUM ('sad', 'not, "ok"'); ALTER TYPE mood RENAME VALUE 'sad' TO 'unhappy';
CREATE TYPE place AS (line int, "at" text, feeling mood);
CREATE DOMAIN here AS place; CREATE TYPE moods AS RANGE (subtype = mood, multirange_type_name = moodses);
CREATE TYPE prices AS RANGE (subtype = price); CREATE TYPE nested AS (place place, all_places place[])
"""
VALUES = {
    "shorter": ("'ab'", "ab"),
    '"Odd Name"': ("7", 7),
    "numbers": ("'{1,NULL,3}'", [1, None, 3]),
    '"Odd Name"[]': ("'{1,2}'", ["1", "2"]),
    "mood": ("'not, \"ok\"'", 'not, "ok"'),
    "mood[]": ("'{unhappy,NULL}'", ["unhappy", None]),
    "place": ("ROW(1, 'a, \"b\"', 'unhappy')", '(1,"a, ""b""",unhappy)'),
    "here": ("ROW(NULL, NULL, NULL)", "(,,)"),
    "place[]": ("ARRAY[ROW(1, 'x', NULL)::place, NULL]", ["(1,x,)", None]),
    "nested": ("ROW(ROW(1, '', NULL), '{}')", '("(1,"""",)",{})'),
    "moods": ("'[unhappy,unhappy]'", "[unhappy,unhappy]"),
    "prices": ("'[1.10,2)'", "[1.10,2.00)"),
    "moodses": ("'{[unhappy,unhappy]}'", "{[unhappy,unhappy]}"),
    "int4multirange": ("'{[1,3),[5,)}'", "{[1,3),[5,)}"),
    "bit(3)": ("B'010'", "010"),
    "varbit": ("B''", ""),
    "bit(2)[]": ("'{01,10}'", ["01", "10"]),
    "pg_lsn": ("'16/B374D848'", "16/B374D848"),
    "tsvector": ("'''it''''s'':1A fat:2'", "'fat':2 'it''s':1A"),
    "tsquery": ("'fat & !(cat | dog:*)'", "'fat' & !( 'cat' | 'dog':* )"),
    "txid_snapshot": ("'10:20:10,14'", "10:20:10,14"),
    "money": ("-1234.5", "-$1,234.50"),
    "money[]": ("'{1,2}'", ["$1.00", "$2.00"]),
    "macaddr8": ("'08:00:2b:01:02:03:04:05'", "08:00:2b:01:02:03:04:05"),
    "jsonpath": ("'$.a[*] ? (@ > 1)'", '$."a"[*]?(@ > 1)'),
    "regtype": ("'int4'", "integer"),
    "oidvector": ("'1 2'", ["1", "2"]),
    "int2vector": ("'1 2'", [1, 2]),
    "tid": ("'(1,2)'", "(1,2)"),
    "xid": ("'7'", "7"),
    "oid": ("4294967295", "4294967295"),
    '"char"': ("'x'", "x"),
}
EXTENSIONS = {
    "citext": {"citext": ("'ÄbC '", "ÄbC "), "citext[]": ("'{a,B}'", ["a", "B"])},
    "hstore": {"hstore": ("'b=>NULL, a=>\"1,\"'", '"a"=>"1,", "b"=>NULL')},
    "ltree": {"ltree": ("'Top.Sci'", "Top.Sci"), "lquery": ("'*.a{1,2}'", "*.a{1,2}")},
}
AVAILABLE = "SELECT FROM pg_available_extensions WHERE name = %s"

# A type with operators of its own, as `ltree`, in a schema that no search path has.
ELSEWHERE = """
CREATE SCHEMA ext; CREATE TYPE ext.word;
CREATE FUNCTION ext.read(cstring) RETURNS ext.word LANGUAGE internal IMMUTABLE STRICT AS 'int4in';
CREATE FUNCTION ext.written(ext.word) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'int4out';
CREATE TYPE ext.word (INPUT = ext.read, OUTPUT = ext.written, LIKE = int4);
CREATE FUNCTION ext.same(ext.word, ext.word) RETURNS bool LANGUAGE internal IMMUTABLE STRICT AS 'int4eq';
CREATE FUNCTION ext.compared(ext.word, ext.word) RETURNS int
    LANGUAGE internal IMMUTABLE STRICT AS 'btint4cmp';
CREATE OPERATOR ext.= (FUNCTION = ext.same, LEFTARG = ext.word, RIGHTARG = ext.word);
CREATE OPERATOR CLASS ext.words DEFAULT FOR TYPE ext.word USING btree AS
    OPERATOR 3 ext.=, FUNCTION 1 ext.compared(ext.word, ext.word);
"""


@pytest.fixture
def source(owner: Owner) -> "Iterator[psycopg.Connection[Any]]":
    with database(owner.tenant) as connection:
        connection.execute("SET lc_monetary = 'C'")
        yield connection


def data(source: Any, key: str | None) -> list[dict[str, Any]]:
    """The data of what is sent of the table `planes`: of all rows, or of a key."""
    with source.transaction():
        source.execute(sessions.SETTINGS)
        table = tables.inspect(source, PIPE)
        if key is None:
            query = queries.events(table, table.parts[0], "planes", MOMENT, sql.SQL("true"))
        else:
            types = [tables.type_of(source, table.parts[0], column) for column in table.key]
            query = queries.changed(table, types, [(key,)], "planes", MOMENT)
        return [json.loads(event)["data"] for _, event in source.execute(query)]


def test_values_are_their_texts(owner: Owner, source: Any) -> None:
    """Of a snapshot, and by their key."""
    source.execute(TYPES)
    values = dict(VALUES)
    for extension, more in EXTENSIONS.items():
        if source.execute(AVAILABLE, [extension]).fetchone():
            source.execute(f"CREATE EXTENSION {extension}")
            values |= more
    columns = {f"c{place}": kind for place, kind in enumerate(values)}
    source.execute(
        f"CREATE TABLE planes (id int PRIMARY KEY, {', '.join(' '.join(pair) for pair in columns.items())})"
    )
    source.execute(f"INSERT INTO planes VALUES (1, {', '.join(value for value, _ in values.values())})")
    for key in (None, "1"):
        (row,) = data(source, key)
        assert {kind: row[column] for column, kind in columns.items()} == {
            kind: text for kind, (_, text) in values.items()
        }


def test_a_change_of_column_texts_changes_the_shape_of_the_table(owner: Owner, source: Any) -> None:
    source.execute(TYPES)
    names = ("plain", "moodses", "money")
    for name, column in zip(names, ("text", "moodses", "money[]"), strict=True):
        source.execute(f"CREATE TABLE {name}_table (id int PRIMARY KEY, c {column})")
    source.execute("ALTER TABLE plain_table ADD d text GENERATED ALWAYS AS (c || 'a') VIRTUAL")
    for change, changed in (
        ("ALTER TABLE plain_table ALTER d SET EXPRESSION AS (c || 'b')", "plain"),
        ("ALTER TYPE mood RENAME VALUE 'unhappy' TO 'sad'", "moodses"),
        ("SET lc_monetary = 'C.UTF-8'", "money"),
    ):
        before = {name: shapes.shape(source, f"{name}_table") for name in names}
        source.execute(change)
        after = {name: shapes.shape(source, f"{name}_table") for name in names}
        assert [name for name in names if before[name] != after[name]] == [changed]


def test_a_key_that_the_source_cannot_compare_is_refused_for_changes(owner: Owner) -> None:
    by_log = definition(MEMBERS | {"mode": "changes"})
    with capturing(owner.tenant) as source:
        source.execute(f"{ELSEWHERE} CREATE TABLE planes (id ext.word PRIMARY KEY)")
        source.execute(sessions.SETTINGS)
        source.execute("SET search_path = public")
        assert reading.checked(source, PIPE).key == ("id",)
        with pytest.raises(UserError, match="refuses to read it: operator does not exist"):
            reading.checked(source, by_log)
        source.execute("SET search_path = public, ext")
        assert reading.checked(source, by_log).key == ("id",)
