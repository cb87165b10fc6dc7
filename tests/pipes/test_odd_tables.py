"""Tables that are not like others: brought exactly, or refused with words before a row is missing."""

from collections.abc import Iterator
from datetime import UTC, datetime
from tempfile import TemporaryFile
from typing import Any

import psycopg
import pytest
from psycopg import sql
from support.entities import as_model, pages
from support.faults import AtPoint
from support.ingest import Owner
from support.lake import spark
from support.pipes import bring

from chaos.sources import SOURCE, capturing, stored_source
from pulse_pipelines import pipes
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.entities import syncs
from pulse_pipelines.pipes import addresses
from pulse_pipelines.pipes.postgres import reading, sessions, tables
from pulse_pipelines.pipes.run import run
from pulse_resources.errors import UserError

PIPE: dict[str, Any] = {"pipe": "planes", "source": SOURCE, "table": "planes", "dataset": "planes"}
BY_CURSOR = PIPE | {"mode": "incremental", "cursor": "at"}
ROLE = "CREATE ROLE reader LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader"


@pytest.fixture
def source(owner: Owner) -> "Iterator[psycopg.Connection[Any]]":
    with capturing(owner.tenant) as connection:
        yield connection


def latest(owner: Owner) -> dict[str, dict[str, Any]]:
    contents = dict(as_model(pages(owner, slug="planes")))
    return {key: content for key, content in contents.items() if content is not None}


def as_reader(owner: Owner, source: Any) -> Any:
    source.execute(ROLE)
    return stored_source(owner.tenant, psycopg.conninfo.make_conninfo(source.info.dsn, user="reader"))


def refused(owner: Owner, why: str, pipe: dict[str, Any] = PIPE) -> None:
    with pytest.raises(UserError, match=why):
        pipes.create(owner.tenant, definition(pipe))


@pytest.mark.parametrize(("kind", "bits"), [("smallint", 16), ("integer", 32), ("bigint", 64)])
def test_an_overlap_begins_at_the_least_integer_of_a_type(source: Any, kind: str, bits: int) -> None:
    """The first run settles such a position, and each later one would fail: out of range."""
    for position, begin in ((-(2 ** (bits - 1)) + 5, -(2 ** (bits - 1))), (100, 90)):
        earlier = tables.less(sql.Literal(str(position)), kind, "10")
        assert source.execute(sql.SQL("SELECT {}").format(earlier)).fetchone() == (begin,)


def test_included_columns_of_a_key_are_not_part_of_it(owner: Owner, source: Any) -> None:
    source.execute("CREATE TABLE planes (id int, seats int, PRIMARY KEY (id) INCLUDE (seats))")
    source.execute("INSERT INTO planes VALUES (1, 180), (2, 4)")
    pipes.create(owner.tenant, definition(PIPE | {"mode": "changes"}))
    syncs.allow(owner.tenant, "planes", 1)
    bring(owner)
    assert {key: row["seats"] for key, row in latest(owner).items()} == {"1": 180, "2": 4}
    source.execute("UPDATE planes SET seats = 190 WHERE id = 1; DELETE FROM planes WHERE id = 2")
    assert not bring(owner).is_full
    assert {key: row["seats"] for key, row in latest(owner).items()} == {"1": 190}
    sync = syncs.list_syncs(owner.tenant, "planes")[0]
    assert (sync.created, sync.changed, sync.deleted) == (0, 1, 1)


@pytest.mark.slow
def test_a_row_whose_key_is_stored_apart_is_updated(owner: Owner, source: Any) -> None:
    """As the oversized attributes of a row are: an update has them in its old row only."""
    source.execute(
        "CREATE TABLE planes (id int, url text STORAGE EXTERNAL, note text, PRIMARY KEY (id, url))"
    )
    source.execute(
        "INSERT INTO planes SELECT n, repeat('u', 450), repeat('n', 3000) FROM generate_series(1, 2) n"
    )
    pipes.create(owner.tenant, definition(PIPE | {"mode": "changes"}))
    syncs.allow(owner.tenant, "planes", 1)
    bring(owner)
    source.execute("UPDATE planes SET note = 'short' WHERE id = 2")
    assert not bring(owner).is_full
    assert sorted(len(row["note"]) for row in latest(owner).values()) == [5, 3000]


@pytest.mark.slow
def test_a_row_whose_key_is_a_composite_with_a_null_is_there(owner: Owner, source: Any) -> None:
    """`IS NOT NULL` is false for such a composite: the row would count as deleted."""
    source.execute("CREATE TYPE place AS (line int, seat int)")
    source.execute("CREATE TABLE planes (at place PRIMARY KEY, note text)")
    source.execute("INSERT INTO planes VALUES (ROW(1, NULL)::place, 'a'), (ROW(2, 2)::place, 'b')")
    pipes.create(owner.tenant, definition(PIPE | {"mode": "changes"}))
    syncs.allow(owner.tenant, "planes", 1)
    bring(owner)
    source.execute("UPDATE planes SET note = upper(note)")
    assert not bring(owner).is_full
    assert sorted(row["note"] for row in latest(owner).values()) == ["A", "B"]


def test_a_named_key_must_equal_the_key_columns_of_a_unique_index(owner: Owner, source: Any) -> None:
    source.execute("CREATE TABLE planes (id int NOT NULL, seats int NOT NULL)")
    source.execute("CREATE UNIQUE INDEX ON planes (id) INCLUDE (seats)")
    refused(owner, "no unique index", PIPE | {"key": ["id", "seats"]})
    pipes.create(owner.tenant, definition(PIPE | {"key": ["id"]}))


def test_a_key_whose_earlier_rows_may_have_nulls_is_refused(owner: Owner, source: Any) -> None:
    """Since Postgres 18 a column may forbid nulls to new rows alone; a unique index allows many of them."""
    source.execute("CREATE TABLE planes (line text, seat int NOT NULL, UNIQUE (line, seat))")
    source.execute("INSERT INTO planes VALUES (NULL, 1), (NULL, 1), ('a', 1)")
    source.execute("ALTER TABLE planes ADD CONSTRAINT has_line NOT NULL line NOT VALID")
    of_both = PIPE | {"key": ["line", "seat"]}
    refused(owner, "no unique index", of_both)
    source.execute("DELETE FROM planes WHERE line IS NULL; ALTER TABLE planes VALIDATE CONSTRAINT has_line")
    pipes.create(owner.tenant, definition(of_both))


@pytest.mark.parametrize("mode", [PIPE, BY_CURSOR, PIPE | {"mode": "changes"}])
@pytest.mark.sample(1)
def test_a_table_with_children_is_refused(owner: Owner, source: Any, mode: dict[str, Any]) -> None:
    source.execute("CREATE TABLE planes (tail text PRIMARY KEY, at int)")
    source.execute("CREATE TABLE jets (PRIMARY KEY (tail)) INHERITS (planes)")
    source.execute("INSERT INTO planes VALUES ('N1', 1); INSERT INTO jets VALUES ('N2', 2)")
    refused(owner, "has children", mode)
    pipes.create(owner.tenant, definition(mode | {"table": "jets"}))
    bring(owner)
    assert set(latest(owner)) == {"N2"}
    source.execute("CREATE TABLE fast () INHERITS (jets)")
    with pytest.raises(UserError, match="has children"):
        run(spark(), owner.tenant, "planes", 2)


def test_a_partition_that_is_elsewhere_is_refused(owner: Owner, source: Any) -> None:
    source.execute("CREATE TABLE planes (tail text NOT NULL, at int NOT NULL) PARTITION BY LIST (at)")
    source.execute("CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER far FOREIGN DATA WRAPPER nowhere")
    source.execute("CREATE UNIQUE INDEX ON planes (tail, at)")
    source.execute("CREATE TABLE one PARTITION OF planes FOR VALUES IN (1)")
    pipes.create(owner.tenant, definition(PIPE | {"key": ["tail", "at"]}))
    source.execute("DROP TABLE planes; CREATE FOREIGN TABLE planes (tail text, at int) SERVER far")
    with pytest.raises(UserError, match="not a table"):
        run(spark(), owner.tenant, "planes", 2)


@pytest.mark.parametrize("table", ["planes", "one"])
@pytest.mark.sample(1)
def test_rows_that_a_policy_hides_are_not_deleted(owner: Owner, source: Any, table: str) -> None:
    source.execute("CREATE TABLE planes (tail text, at int, PRIMARY KEY (tail, at)) PARTITION BY LIST (at)")
    source.execute("CREATE TABLE one PARTITION OF planes FOR VALUES IN (1)")
    source.execute("INSERT INTO planes VALUES ('N1', 1), ('N2', 1)")
    with as_reader(owner, source):
        pipes.create(owner.tenant, definition(PIPE))
        bring(owner)
        source.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        source.execute(f"CREATE POLICY narrow ON {table} USING (tail = 'N1')")
        refused(owner, "row-level security", PIPE | {"pipe": "other", "dataset": "other"})
        with pytest.raises(UserError, match="row-level security"):
            run(spark(), owner.tenant, "planes", 2)
        source.execute("ALTER ROLE reader BYPASSRLS")
        bring(owner)
    assert len(latest(owner)) == 2


def test_a_table_that_the_role_may_not_read_is_refused(owner: Owner, source: Any) -> None:
    source.execute("CREATE TABLE planes (tail text, at int, PRIMARY KEY (tail, at)) PARTITION BY LIST (at)")
    with as_reader(owner, source):
        source.execute("CREATE TABLE one PARTITION OF planes FOR VALUES IN (1)")
        refused(owner, "may not read public.one")


SELDOM = ("boolean", "json", "point", "xml", "bit(3)")


@pytest.mark.parametrize(
    "kind",
    ["uuid", "jsonb", *(pytest.param(kind, marks=pytest.mark.slow) for kind in SELDOM)],
)
@pytest.mark.sample(1)
def test_a_cursor_without_an_order_is_refused(owner: Owner, source: Any, kind: str) -> None:
    source.execute(
        f"CREATE DOMAIN odd AS {kind}; CREATE TABLE planes (tail text PRIMARY KEY, at {kind}, d odd)"
    )
    refused(owner, "cannot order", BY_CURSOR)
    refused(owner, "cannot order", BY_CURSOR | {"cursor": "d"})


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("inet", ("10.0.0.9", "10.0.0.10", "::1")),
        pytest.param("interval", ("1 day", "25 hours", "1 mon"), marks=pytest.mark.slow),
        ('text COLLATE "POSIX"', ("B", "a", "é")),
        pytest.param("bytea", ("\\x01", "\\x0a", "\\xff"), marks=pytest.mark.slow),
        pytest.param("time", ("00:00", "23:59:59.999999", "24:00"), marks=pytest.mark.slow),
        ("mood", ("sad", "ok", "glad")),
        pytest.param("pg_lsn", ("0/9", "0/10", "1/0"), marks=pytest.mark.slow),
        pytest.param("character(4)", ("a", "b", "b  c"), marks=pytest.mark.slow),
        pytest.param("money", ("1", "9", "10"), marks=pytest.mark.slow),
    ],
)
@pytest.mark.sample(1)
def test_a_cursor_of_any_ordered_type_brings_later_rows(
    owner: Owner, source: Any, kind: str, values: tuple[str, ...]
) -> None:
    source.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad')")
    source.execute(f"CREATE TABLE planes (tail text PRIMARY KEY, at {kind})")
    pipes.create(owner.tenant, definition(BY_CURSOR))
    for number, value in enumerate(values):
        source.execute("INSERT INTO planes VALUES (%s, %s)", [f"N{number}", value])
        assert bring(owner).is_full is (number == 0)
        assert len(latest(owner)) == number + 1


@pytest.mark.slow
def test_a_renamed_enum_value_of_the_cursor_makes_the_run_full(owner: Owner, source: Any) -> None:
    source.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad')")
    source.execute("CREATE TABLE planes (tail text PRIMARY KEY, at mood)")
    source.execute("INSERT INTO planes VALUES ('N1', 'ok')")
    pipes.create(owner.tenant, definition(BY_CURSOR))
    bring(owner)
    source.execute("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'; INSERT INTO planes VALUES ('N2', 'sad')")
    assert bring(owner).is_full
    assert {key: row["at"] for key, row in latest(owner).items()} == {"N1": "fine", "N2": "sad"}


@pytest.mark.parametrize(
    "change",
    [
        'ALTER TABLE planes ALTER at TYPE text COLLATE "POSIX"',
        pytest.param(
            "ALTER TABLE planes RENAME TO old; CREATE TABLE planes (tail text PRIMARY KEY, at text)",
            marks=pytest.mark.slow,
        ),
        "TRUNCATE planes; INSERT INTO planes VALUES ('N3', 3)",
    ],
)
@pytest.mark.sample(1)
def test_a_pipe_reads_a_replaced_table_whole(owner: Owner, source: Any, change: str) -> None:
    source.execute("CREATE TABLE planes (tail text PRIMARY KEY, at text)")
    source.execute("INSERT INTO planes VALUES ('N1', 9)")
    pipes.create(owner.tenant, definition(BY_CURSOR))
    syncs.allow(owner.tenant, "planes", 1)
    bring(owner)
    assert not bring(owner).is_full
    source.execute(change)
    source.execute("INSERT INTO planes VALUES ('N2', 10), ('N4', 4)")
    assert bring(owner).is_full
    assert set(latest(owner)) == {row for (row,) in source.execute("SELECT tail FROM planes")}
    assert pipes.find(owner.tenant, "planes").position in ("9", "4")
    assert not bring(owner).is_full


def compares_partitions(owner: Owner, *, full: bool) -> bool:
    """Whether a run queries which partitions were attached or rewritten since the one before."""
    pipe = pipes.find(owner.tenant, "planes")
    with sessions.snapshot(addresses.url(owner.tenant, SOURCE)) as snapshot, TemporaryFile() as sent:
        snapshot.pgconn.trace(sent.fileno())
        reading.plan(snapshot, pipe, None, datetime.now(UTC), 2, full=full)
        snapshot.pgconn.untrace()
        sent.seek(0)
        return b"relfilenode <> c.oid" in sent.read()


def test_a_pipe_sends_rows_of_a_partition_that_is_attached_later(owner: Owner, source: Any) -> None:
    source.execute("CREATE TABLE planes (tail text, at int, PRIMARY KEY (tail, at)) PARTITION BY RANGE (at)")
    source.execute("CREATE TABLE later PARTITION OF planes FOR VALUES FROM (100) TO (200)")
    source.execute("CREATE TABLE early (tail text, at int, PRIMARY KEY (tail, at)) PARTITION BY RANGE (at)")
    source.execute("CREATE TABLE earliest PARTITION OF early FOR VALUES FROM (0) TO (50)")
    source.execute("INSERT INTO planes VALUES ('N1', 101), ('N2', 102); INSERT INTO early VALUES ('N3', 3)")
    pipes.create(owner.tenant, definition(BY_CURSOR))
    bring(owner)
    bring(owner)
    source.execute("ALTER TABLE planes ATTACH PARTITION early FOR VALUES FROM (0) TO (100)")
    sent = bring(owner)
    assert (sent.is_full, sent.rows) == (False, 2)
    assert {row["tail"] for row in latest(owner).values()} == {"N1", "N2", "N3"}
    assert bring(owner).rows == 1
    assert [compares_partitions(owner, full=full) for full in (False, True)] == [True, False]


@pytest.mark.parametrize(
    "change",
    [
        "TRUNCATE planes; INSERT INTO planes VALUES ('N3', 3), ('N4', 104)",
        "TRUNCATE early; INSERT INTO early VALUES ('N3', 3)",
        "ALTER TABLE planes ALTER twice SET EXPRESSION AS (tail || '!')",
    ],
)
@pytest.mark.sample(1)
def test_a_pipe_reads_a_table_with_a_changed_partition_whole(owner: Owner, source: Any, change: str) -> None:
    columns = "tail text, at int, twice text GENERATED ALWAYS AS (tail || tail) STORED"
    source.execute(f"CREATE TABLE planes ({columns}, PRIMARY KEY (tail, at)) PARTITION BY RANGE (at)")
    source.execute("CREATE TABLE early PARTITION OF planes FOR VALUES FROM (0) TO (100)")
    source.execute("CREATE TABLE later PARTITION OF planes FOR VALUES FROM (100) TO (200)")
    source.execute("INSERT INTO planes VALUES ('N1', 1), ('N2', 102)")
    pipes.create(owner.tenant, definition(BY_CURSOR))
    syncs.allow(owner.tenant, "planes", 1)
    bring(owner)
    assert not bring(owner).is_full
    source.execute(change)
    assert bring(owner).is_full
    twice = {row["tail"]: row["twice"] for row in latest(owner).values()}
    assert twice == dict(source.execute("SELECT tail, twice FROM planes").fetchall())
    source.execute("CREATE TABLE last PARTITION OF planes FOR VALUES FROM (200) TO (300); TRUNCATE last")
    assert not bring(owner).is_full


def test_a_partitioned_table_that_takes_the_name_of_another_is_read_whole(owner: Owner, source: Any) -> None:
    """Also if it had its partitions when the other one was last read, as one that is filled beforehand."""
    for table in ("planes", "filled"):
        columns = "tail text, at int, PRIMARY KEY (tail, at)"
        source.execute(f"CREATE TABLE {table} ({columns}) PARTITION BY RANGE (at)")
        source.execute(f"CREATE TABLE {table}_all PARTITION OF {table} FOR VALUES FROM (0) TO (1000)")
    source.execute("INSERT INTO planes VALUES ('N1', 100); INSERT INTO filled VALUES ('N1', 100), ('N2', 5)")
    pipes.create(owner.tenant, definition(BY_CURSOR))
    bring(owner)
    assert not bring(owner).is_full
    source.execute("ALTER TABLE planes RENAME TO old; ALTER TABLE filled RENAME TO planes")
    assert bring(owner).is_full
    assert {row["tail"] for row in latest(owner).values()} == {"N1", "N2"}
    assert not bring(owner).is_full


SETTINGS = {
    "extra_float_digits": "0",
    "datestyle": "'German, DMY'",
    "intervalstyle": "sql_standard",
    "timezone": "'America/New_York'",
    "bytea_output": "escape",
    "quote_all_identifiers": "on",
    "search_path": "odd, public, pg_catalog",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "statement_timeout": "'20ms'",
    "idle_in_transaction_session_timeout": "'20ms'",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "client_encoding": "'LATIN1'",
    "row_security": "off",
}
ZOO = """
CREATE TABLE planes (tail text PRIMARY KEY, real real, double float8, doubles float8[], span interval,
    at timestamptz, day date, days date[], moments tstzrange, bytes bytea[], note text, key regclass)
"""
ROW = r"""
INSERT INTO planes VALUES (
    'a\b', 1.1, 0.1::float8 + 0.2, '{0.1, 1234567890123456.5, 5e-324}', '1 day -2 hours',
    '2026-03-29 01:30:00.000001+02',
    '2026-12-11', '{2026-12-11}', '[2026-01-01 00:00Z, 2026-01-02 00:00Z)',
    '{"\\x00ff5c"}', 'don''t \n "x"', 'planes')
"""


@pytest.mark.parametrize("mode", ["full", "changes", "incremental"])
@pytest.mark.sample(1)
def test_values_do_not_depend_on_settings_of_the_role(owner: Owner, source: Any, mode: str) -> None:
    source.execute(ZOO)
    source.execute(ROW)
    source.execute("CREATE SCHEMA odd; CREATE FUNCTION odd.encode(bytea, text) RETURNS text RETURN 'odd'")
    source.execute("CREATE FUNCTION odd.octet_length(text) RETURNS int RETURN -1")
    pipe = PIPE | {"mode": mode} | ({"cursor": "double"} if mode == "incremental" else {})
    pipes.create(owner.tenant, definition(pipe))
    bring(owner)
    before = latest(owner)
    assert before["a\\b"]["double"] == 0.30000000000000004
    assert before["a\\b"]["doubles"] == [0.1, 1234567890123456.5, 5e-324]
    assert before["a\\b"]["moments"] == '["2026-01-01 00:00:00+00","2026-01-02 00:00:00+00")'
    for name, value in SETTINGS.items():
        source.execute(f"ALTER ROLE postgres SET {name} = {value}")
    if mode != "full":
        source.execute("UPDATE planes SET note = note")
    bring(owner, full=mode == "incremental")
    sync = syncs.list_syncs(owner.tenant, "planes")[0]
    assert (sync.created, sync.changed, sync.unchanged, sync.deleted) == (0, 0, 1, 0)
    assert latest(owner) == before


def test_a_table_that_is_truncated_while_it_is_read_is_read_as_it_was(
    owner: Owner, source: Any, at: AtPoint
) -> None:
    """A snapshot does not show rows that a rewrite has moved: the table would seem empty."""
    source.execute("CREATE TABLE planes (tail text PRIMARY KEY, seats int)")
    source.execute("INSERT INTO planes SELECT 'N' || n, n FROM generate_series(1, 9) n")
    pipes.create(owner.tenant, definition(PIPE))

    def rewrite() -> None:
        source.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            source.execute("ALTER TABLE planes ALTER seats TYPE bigint")

    at("pipe.begun", rewrite)
    bring(owner)
    assert len(latest(owner)) == 9
