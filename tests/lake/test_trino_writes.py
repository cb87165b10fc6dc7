"""Trino with nothing but a tenant's key writes tables of its own, which other engines and upkeep take up."""

import json
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from support.catalog import Guest
from support.engine_rows import ROWS, WRITERS, read
from support.engines import rest
from support.http import Api
from support.maintenance import objects
from support.rest_catalog import OWN, SCHEMA, VIEW
from support.trino import Trino, TrinoError
from typer.testing import CliRunner

from pulse_api import cli
from pulse_pipelines.lake import metadata
from pulse_pipelines.maintenance.own_tables import Keeper

pytestmark = pytest.mark.slow
PAGE = (Path(__file__).parents[2] / "docs" / "open-lake.md").read_text()
NOW = {
    "iceberg.expire-snapshots.min-retention": "0s",
    "iceberg.remove-orphan-files.min-retention": "0s",
}


@pytest.fixture(scope="module")
def own(catalog: Api, writers: tuple[Guest, Guest], trino: Trino) -> Trino:
    """The writer's catalog, with the schema `own`."""
    connection = trino.connect(catalog, writers[0], more=NOW)
    connection.rows("CREATE SCHEMA IF NOT EXISTS own")
    return connection


def loaded(catalog: Api, writer: Guest, name: str) -> Table:
    return rest(catalog, writer).load_table(f"own.{name}")


def test_all_engines_read_a_table_written_by_trino(catalog: Api, writer: Guest, own: Trino) -> None:
    own.rows("CREATE TABLE own.by_trino (id bigint, name varchar)")
    own.rows("INSERT INTO own.by_trino VALUES (1, 'x'), (2, 'y'), (4, 'z')")
    own.rows("UPDATE own.by_trino SET name = 'a' WHERE id = 1")
    own.rows("DELETE FROM own.by_trino WHERE id = 4")
    assert own.rows(
        "MERGE INTO own.by_trino t USING (VALUES (2, 'b'), (3, NULL)) s (id, name) ON t.id = s.id"
        " WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.name)"
    ) == [(2,)]
    kinds = {content for (content,) in own.rows('SELECT content FROM own."by_trino$files"')}
    assert kinds == {0, 1}, "files with rows, and files with deletes"
    for reader, rows in read(catalog, writer, "by_trino").items():
        assert rows == ROWS.to_pylist(), reader
    assert own.dicts("SELECT * FROM own.by_trino ORDER BY id") == ROWS.to_pylist()


@pytest.mark.parametrize("engine", WRITERS)
def test_trino_reads_and_changes_tables_of_other_engines(
    catalog: Api, writer: Guest, own: Trino, engine: str
) -> None:
    name = f"of_{engine}"
    WRITERS[engine](catalog, writer, name)
    assert own.dicts(f"SELECT * FROM own.{name} ORDER BY id") == ROWS.to_pylist()
    own.rows(f"DELETE FROM own.{name} WHERE id = 2")
    own.rows(f"UPDATE own.{name} SET name = 'new' WHERE id = 3")
    own.rows(f"INSERT INTO own.{name} VALUES (5, 'five')")
    expected = [{"id": 1, "name": "a"}, {"id": 3, "name": "new"}, {"id": 5, "name": "five"}]
    for reader, rows in read(catalog, writer, name).items():
        assert rows == expected, reader


VALUES: dict[str, tuple[str, str, Any]] = {
    # Of a column: its type and a value in SQL, and that value.
    "yes": ("boolean", "true", True),
    "small": ("integer", "-2147483648", -(2**31)),
    "whole": ("bigint", "9223372036854775807", 2**63 - 1),
    "single": ("real", "REAL '0.5'", 0.5),
    "ratio": ("double", "1e300", 1e300),
    "price": ("decimal(9, 2)", "1234567.89", Decimal("1234567.89")),
    "large": ("decimal(38, 10)", "-1.0000000001", Decimal("-1.0000000001")),
    "label": ("varchar", "U&'\\00e4 '''", "ä '"),
    "raw": ("varbinary", "X'00FF'", b"\0\xff"),
    "day": ("date", "DATE '1582-10-04'", date(1582, 10, 4)),
    "local": ("timestamp(6)", "TIMESTAMP '2026-01-02 03:04:05.000006'", datetime(2026, 1, 2, 3, 4, 5, 6)),
    "moment": (
        "timestamp(6) with time zone",
        "TIMESTAMP '2026-01-02 03:04:05.000006 +01:00'",
        datetime(2026, 1, 2, 2, 4, 5, 6, UTC),
    ),
    "list": ("array(integer)", "ARRAY[1, NULL]", [1, None]),
    "pairs": ("map(varchar, decimal(5, 1))", "MAP(ARRAY['k'], ARRAY[2.5])", [("k", Decimal("2.5"))]),
    "parts": (
        "row(mail varchar, more array(row(n integer)))",
        "ROW('m', ARRAY[ROW(1), NULL])",
        {"mail": "m", "more": [{"n": 1}, None]},
    ),
}
OTHERS: dict[str, tuple[str, str, Any]] = {
    # Of a table that Spark, which has no such types, cannot read.
    "noon": ("time(6)", "TIME '12:00:00.000001'", time(12, 0, 0, 1)),
    "token": (
        "uuid",
        "UUID '12151fd2-7586-11e9-8f9e-2a86e4085a59'",
        uuid.UUID("12151fd2-7586-11e9-8f9e-2a86e4085a59"),
    ),
}


@pytest.mark.parametrize(("name", "values"), [("kinds", VALUES), ("others", OTHERS)])
def test_engines_read_columns_of_every_type_written_by_trino(
    catalog: Api, writer: Guest, own: Trino, name: str, values: dict[str, tuple[str, str, Any]]
) -> None:
    columns = ", ".join(f"{column} {kind}" for column, (kind, _, _) in values.items())
    own.rows(f"CREATE TABLE own.{name} (id bigint NOT NULL, {columns})")
    written = ", ".join(value for _, value, _ in values.values())
    own.rows(f"INSERT INTO own.{name} VALUES (1, {written}), (2{', NULL' * len(values)})")
    expected = [
        {"id": 1} | {column: value for column, (_, _, value) in values.items()},
        {"id": 2} | dict.fromkeys(values),
    ]
    assert own.dicts(f"SELECT * FROM own.{name} ORDER BY id") == expected
    for reader, rows in read(catalog, writer, name, WRITERS if values is VALUES else {"pyiceberg"}).items():
        assert rows == expected, reader


def test_trino_reads_columns_of_every_type(catalog: Api, writer: Guest, own: Trino) -> None:
    """As PyIceberg writes them, fixed bytes too."""
    fields = [
        ("yes", pa.bool_(), True),
        ("small", pa.int32(), 7),
        ("whole", pa.int64(), -(2**63)),
        ("single", pa.float32(), 0.5),
        ("ratio", pa.float64(), float("-inf")),
        ("price", pa.decimal128(20, 3), Decimal("0.125")),
        ("label", pa.string(), ""),
        ("raw", pa.binary(), b"\xff"),
        ("three", pa.binary(3), b"\0\1\2"),
        ("day", pa.date32(), date(9999, 12, 31)),
        ("noon", pa.time64("us"), time(23, 59, 59, 999999)),
        ("local", pa.timestamp("us"), datetime(1900, 1, 1, 0, 0, 0, 1)),
        ("at", pa.timestamp("us", "UTC"), datetime(2026, 1, 2, 3, 4, 5, 6, UTC)),
        ("list", pa.list_(pa.string()), ["a", None]),
        ("pairs", pa.map_(pa.string(), pa.int64()), [("k", 1)]),
        (
            "parts",
            pa.struct([("n", pa.int64()), ("more", pa.list_(pa.float64()))]),
            {"n": None, "more": [0.5]},
        ),
    ]
    schema = pa.schema([(name, kind) for name, kind, _ in fields])
    rows = [{name: value for name, _, value in fields}, {name: None for name, _, _ in fields}]
    rest(catalog, writer).create_table("own.given", schema).append(pa.Table.from_pylist(rows, schema))
    assert own.dicts("SELECT * FROM own.given ORDER BY yes NULLS LAST") == rows


def test_a_table_evolves(catalog: Api, writer: Guest, own: Trino) -> None:
    own.rows(
        "CREATE TABLE own.evolving (id integer, land varchar, at timestamp(6) with time zone, gone integer)"
        " WITH (partitioning = ARRAY['land', 'day(at)', 'bucket(id, 4)'], sorted_by = ARRAY['id'])"
    )
    at = "TIMESTAMP '2026-01-02 03:04:05 UTC'"
    own.rows(
        f"INSERT INTO own.evolving VALUES (1, 'de', {at}, 0), (2, 'fr/..%', {at}, 0), (3, NULL, NULL, 0)"
    )
    ((first,),) = own.rows(
        """SELECT snapshot_id FROM own."evolving$snapshots" WHERE summary['total-records'] = '3'"""
    )
    for change in (
        "ALTER TABLE own.evolving ADD COLUMN parts row(n integer)",
        "ALTER TABLE own.evolving ADD COLUMN parts.more varchar",
        "ALTER TABLE own.evolving RENAME COLUMN land TO country",
        "ALTER TABLE own.evolving ALTER COLUMN id SET DATA TYPE bigint",
        "ALTER TABLE own.evolving DROP COLUMN gone",
        "ALTER TABLE own.evolving SET PROPERTIES partitioning = ARRAY['country']",
        "COMMENT ON TABLE own.evolving IS 'changed'",
        "COMMENT ON COLUMN own.evolving.country IS 'where'",
        "ALTER TABLE own.evolving RENAME TO own.evolved",
        "INSERT INTO own.evolved VALUES (4294967296, 'it', NULL, ROW(1, 'x'))",
    ):
        own.rows(change)
    table = loaded(catalog, writer, "evolved")
    rows = table.scan().to_arrow().sort_by("id").to_pylist()
    assert [row["country"] for row in rows] == ["de", "fr/..%", None, "it"]
    assert (rows[3]["id"], rows[3]["parts"]) == (2**32, {"n": 1, "more": "x"})
    assert own.dicts("SELECT * FROM own.evolved ORDER BY id") == rows
    assert own.rows("SELECT id FROM own.evolved WHERE country = 'fr/..%' AND at IS NOT NULL") == [(2,)]
    assert (table.properties["comment"], table.schema().find_field("country").doc) == ("changed", "where")
    past = own.dicts(f"SELECT * FROM own.evolved FOR VERSION AS OF {first} ORDER BY id")
    assert [(row["land"], row["gone"]) for row in past] == [("de", 0), ("fr/..%", 0), (None, 0)]
    own.rows(f"ALTER TABLE own.evolved EXECUTE rollback_to_snapshot({first})")
    assert len(loaded(catalog, writer, "evolved").scan().to_arrow()) == 3
    replaced = "CREATE OR REPLACE TABLE own.evolved AS SELECT 1 AS id, 'x' AS country, {} AS at"
    with pytest.raises(TrinoError, match="could no longer read the table"):
        own.rows(replaced.format("true"))
    assert own.rows("SELECT count(*) FROM own.evolved") == [(3,)]
    own.rows(replaced.format("TIMESTAMP '2026-01-02 03:04:05 UTC'"))
    assert loaded(catalog, writer, "evolved").scan().to_arrow()["country"].to_pylist() == ["x"]


def test_upkeep_by_trino_keeps_the_rows(catalog: Api, writer: Guest, own: Trino) -> None:
    own.rows("CREATE TABLE own.kept (id bigint, name varchar)")
    for number in range(4):
        own.rows(f"INSERT INTO own.kept VALUES ({number}, 'n'), ({10 + number}, 'm')")
    own.rows("DELETE FROM own.kept WHERE id = 0")
    before = objects(loaded(catalog, writer, "kept").location())
    for work in (
        "optimize",
        "optimize_manifests",
        "expire_snapshots(retention_threshold => '0s')",
        "remove_orphan_files(retention_threshold => '0s')",
    ):
        own.rows(f"ALTER TABLE own.kept EXECUTE {work}")
    own.rows("ANALYZE own.kept")
    table = loaded(catalog, writer, "kept")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 10, 11, 12, 13]
    assert (len(table.metadata.snapshots), len(list(table.scan().plan_files()))) == (1, 1)
    assert len(before - objects(table.location())) > 8, "it removed files by the keys that it was given"
    assert own.rows("SHOW STATS FOR own.kept")[0][:3] == ("id", None, 7.0)


def test_views_are_made_and_changed(catalog: Api, writer: Guest, own: Trino) -> None:
    own.rows("CREATE VIEW own.seen AS SELECT id FROM events.orders")
    assert own.rows("SELECT count(*) FROM own.seen") == [(0,)]
    own.rows("CREATE OR REPLACE VIEW own.seen AS SELECT 1 AS id, 'x' AS name")
    own.rows("COMMENT ON VIEW own.seen IS 'of one row'")
    own.rows("ALTER VIEW own.seen RENAME TO own.shown")
    assert own.dicts("SELECT * FROM own.shown") == [{"id": 1, "name": "x"}]
    assert ("own", "shown") in rest(catalog, writer).list_views("own")
    with pytest.raises(TrinoError, match="already exists"):
        own.rows("CREATE TABLE own.shown (id bigint)")
    own.rows("DROP VIEW own.shown")
    assert ("own", "shown") not in rest(catalog, writer).list_views("own")


def test_concurrent_writes_lose_no_rows(catalog: Api, writer: Guest, own: Trino) -> None:
    own.rows("CREATE TABLE own.busy (id integer)")

    def write(number: int) -> None:
        for turn in range(3):
            own.rows(f"INSERT INTO own.busy VALUES {10 * number + turn}")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    expected = [10 * number + turn for number in range(3) for turn in range(3)]
    assert [number for (number,) in own.rows("SELECT id FROM own.busy ORDER BY id")] == expected
    assert sorted(loaded(catalog, writer, "busy").scan().to_arrow()["id"].to_pylist()) == expected


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE MATERIALIZED VIEW own.m AS SELECT 1 AS id", "not supported for Iceberg REST catalog"),
        ("ALTER SCHEMA own RENAME TO other", "not supported for Iceberg REST catalog"),
        ("GRANT SELECT ON own.plain TO nobody", "does not support grants"),
        ("CALL system.register_table('own', 'm', 's3://pulse/x')", "is disabled"),
        ("CREATE TABLE own.m (id integer) WITH (format_version = 3)", "must be between 1 and 2"),
        ("SELECT * FROM own.of_spark_s_dialect", "(?i)dialect"),
        ("CREATE OR REPLACE TABLE own.plain AS SELECT 1 AS id", "Type cannot be null"),
    ],
    ids=lambda text: None if " " not in text else text.partition(" (")[0][:30],
)
def test_statements_that_the_page_excludes_fail(
    catalog: Api, writer: Guest, own: Trino, statement: str, message: str
) -> None:
    """A newer Trino may: then the page is to be changed."""
    own.rows(
        "CREATE TABLE IF NOT EXISTS own.plain WITH (partitioning = ARRAY['land'])"
        " AS SELECT 1 AS id, 'x' AS land"
    )
    with catalog.client(writer.key.text) as client:
        view = {"name": "of_spark_s_dialect", "schema": SCHEMA, "view-version": VIEW}
        client.post(f"{OWN}/views", json=view)
    with pytest.raises(TrinoError, match=message):
        own.rows(statement)
    assert own.rows("SELECT * FROM own.plain") == [(1, "x")]


def test_show_create_table_recreates_the_table(own: Trino) -> None:
    own.rows("CREATE TABLE own.first (id bigint, at date) WITH (partitioning = ARRAY['month(at)'])")
    ((shown,),) = own.rows("SHOW CREATE TABLE own.first")
    again = re.sub(r"\n *data_location = .*", "", shown).replace(".first", ".second")
    own.rows(again)
    ((second,),) = own.rows("SHOW CREATE TABLE own.second")
    plain = (re.sub(r"\n *(data_)?location = .*", "", definition) for definition in (again, second))
    assert len(set(plain)) == 1


def test_a_setting_reads_names_of_others_in_upper_case(catalog: Api, writer: Guest, trino: Trino) -> None:
    client = rest(catalog, writer)
    client.create_namespace_if_not_exists("own")
    client.create_table("own.Daily", ROWS.schema).append(ROWS)
    setting = {"iceberg.rest-catalog.case-insensitive-name-matching": "true"}
    connection = trino.connect(catalog, writer, "anycase", setting)
    assert connection.dicts("SELECT * FROM own.daily ORDER BY id") == ROWS.to_pylist()
    with pytest.raises(TrinoError, match="does not exist"):
        trino.connect(catalog, writer).rows("SELECT * FROM own.daily")


def test_schemas_may_be_within_schemas(catalog: Api, writer: Guest, own: Trino) -> None:
    own.rows('CREATE SCHEMA "own.inner"')
    own.rows('CREATE TABLE "own.inner".t AS SELECT 1 AS id')
    assert ("own.inner",) in own.rows("SHOW SCHEMAS")
    assert own.rows('SHOW TABLES FROM "own.inner"') == [("t",)]
    assert rest(catalog, writer).load_table(("own", "inner", "t")).scan().to_arrow()["id"].to_pylist() == [1]
    own.rows('DROP SCHEMA "own.inner" CASCADE')
    assert ("own.inner",) not in own.rows("SHOW SCHEMAS")


def test_dropping_a_table_removes_its_files(catalog: Api, writer: Guest, own: Trino) -> None:
    for name in ("dropped", "stays"):
        own.rows(f"CREATE TABLE own.{name} AS SELECT 1 AS id")
    dropped, stays = (loaded(catalog, writer, name) for name in ("dropped", "stays"))
    own.rows("DROP TABLE own.dropped")
    assert not objects(dropped.location())
    own.rows("CALL system.unregister_table('own', 'stays')")
    assert rest(catalog, writer).list_tables("own").count(("own", "stays")) == 0
    rest(catalog, writer).register_table("own.stays", stays.metadata_location)
    assert own.rows("SELECT id FROM own.stays") == [(1,)]


def asking(own: Trino, columns: str, **properties: str) -> str:
    """A table that asks for what Pulse does to own tables."""
    name = f"t{uuid.uuid4().hex[:8]}"
    keys, values = (", ".join(f"'{item}'" for item in side) for side in (properties, properties.values()))
    extra = f"MAP(ARRAY[{keys}], ARRAY[{values}])"
    own.rows(f"CREATE TABLE own.{name} ({columns}) WITH (extra_properties = {extra})")
    return name


def test_upkeep_merges_files_written_by_trino(catalog: Api, writer: Guest, own: Trino) -> None:
    name = asking(own, "id bigint, land varchar, price decimal(12, 2)", **{"pulse.upkeep": "true"})
    for number in range(6):
        own.rows(f"INSERT INTO own.{name} VALUES ({number}, 'de', 0.25), ({10 + number}, NULL, NULL)")
    before = own.dicts(f"SELECT * FROM own.{name} ORDER BY id")
    metadata.forget()
    upkeep = Keeper(writer.tenant).keep()
    assert [line for line in upkeep.skipped if name in line] == []
    assert upkeep.numbers["merged"] >= 6
    assert own.rows(f'SELECT count(*) FROM own."{name}$files"') == [(1,)]
    assert own.dicts(f"SELECT * FROM own.{name} ORDER BY id") == before
    own.rows(f"DELETE FROM own.{name} WHERE land = 'de'")
    assert len(loaded(catalog, writer, name).scan().to_arrow()) == 6
    assert own.rows(f"SELECT count(*) FROM own.{name}") == [(6,)]
    own.rows(
        f"ALTER TABLE own.{name} SET PROPERTIES extra_properties = MAP(ARRAY['pulse.upkeep'], ARRAY['false'])"
    )
    assert loaded(catalog, writer, name).properties["pulse.upkeep"] == "false"


def test_a_person_is_erased_from_a_table_written_by_trino(writer: Guest, own: Trino) -> None:
    ada = "ada-lovelace@example.org"
    name = asking(own, "id bigint, email varchar", **{"pulse.erasure": "true"})
    own.rows(f"INSERT INTO own.{name} VALUES (1, 'b@x'), (2, '{ada}')")
    own.rows(f"INSERT INTO own.{name} VALUES (3, '{ada}'), (4, '{ada}')")
    own.rows(f"DELETE FROM own.{name} WHERE id = 4")
    own.rows(f"ALTER TABLE own.{name} EXECUTE optimize")  # Pulse erases where there are no delete files
    metadata.forget()
    arguments = ["erase", writer.tenant.slug, "--where", f"data.email={ada}", "--yes", "--json"]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    (receipt,) = json.loads(done.stdout)["datasets"]
    (erased,) = (removal for removal in receipt["own_tables"] if removal["table"] == f"own.{name}")
    assert erased["rows"] == 2
    assert own.rows(f"SELECT id FROM own.{name}") == [(1,)]
    assert own.rows(f'SELECT count(*) FROM own."{name}$snapshots"') == [(1,)]


def test_the_sql_of_the_page_runs(catalog: Api, guest: Guest, trino: Trino) -> None:
    block = re.findall(r"^```sql\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[2]
    snapshots = rest(catalog, guest).load_table("events.orders").metadata.snapshots
    first = min(snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    text = block.replace("acme", guest.tenant.slug).replace("{snapshot}", str(first.snapshot_id))
    connected = trino.connect(catalog, guest)
    answers = [connected.rows(statement) for statement in text.strip().removesuffix(";").split(";\n")]
    assert answers[:2] == [[("DE", 6)], [(3,)]]
    assert answers[-2:] == [[("DE", 7), ("FR", 2)], []]
