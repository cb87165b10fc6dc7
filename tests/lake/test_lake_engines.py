"""Engines with nothing but a tenant's key: equal rows, earlier snapshots, nobody else's."""

from collections.abc import Callable
from typing import Any

import duckdb
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession
from support.catalog import Guest, fresh
from support.http import Api

from pulse_pipelines.query import duckdb_pool
from pulse_resources import iceberg
from pulse_resources.settings import load_settings

Read = Callable[[Api, Guest, str, int | None], list[str]]
"""Ids of the rows of one of the tenant's tables; of a snapshot, if one is named."""


def rest(catalog: Api, guest: Guest, **how: str) -> RestCatalog:
    """PyIceberg's client."""
    given = how or {"credential": guest.key.text}
    return RestCatalog("lake", uri=catalog.url, warehouse=guest.tenant.slug, **given)


def by_pyiceberg(catalog: Api, guest: Guest, name: str, snapshot: int | None) -> list[str]:
    table = rest(catalog, guest).load_table(name)
    found: list[str] = table.scan(snapshot_id=snapshot, selected_fields=("id",)).to_arrow()["id"].to_pylist()
    return sorted(found)


def duck(catalog: Api, guest: Guest) -> duckdb.DuckDBPyConnection:
    """A DuckDB of its own, with the catalog attached as `lake`."""
    connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": False})
    for extension in duckdb_pool.EXTENSIONS:
        connection.load_extension(duckdb_pool._extension(extension))
    connection.execute(f"""
        CREATE SECRET pulse (TYPE iceberg, CLIENT_ID 'any', CLIENT_SECRET '{guest.key.text}',
            OAUTH2_SERVER_URI '{catalog.url}/v1/oauth/tokens')
    """)
    connection.execute(
        f"ATTACH '{guest.tenant.slug}' AS lake (TYPE iceberg, SECRET pulse, ENDPOINT '{catalog.url}')"
    )
    return connection


def by_duckdb(catalog: Api, guest: Guest, name: str, snapshot: int | None) -> list[str]:
    at = f" AT (VERSION => {snapshot})" if snapshot else ""
    with duck(catalog, guest) as connection:
        return [
            row[0] for row in connection.execute(f"SELECT id FROM lake.{name}{at} ORDER BY id").fetchall()
        ]


def spark(catalog: Api, guest: Guest) -> tuple[SparkSession, str]:
    """The stack's Spark with a catalog of its own, by its name; nothing of the session's own opens files."""
    session, name = SparkSession.builder.remote(load_settings().spark.remote).getOrCreate(), fresh("lake")
    prefix = f"spark.sql.catalog.{name}"
    for key, value in {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "rest",
        f"{prefix}.uri": catalog.url,
        f"{prefix}.warehouse": guest.tenant.slug,
        f"{prefix}.credential": guest.key.text,
        f"{prefix}.oauth2-server-uri": f"{catalog.url}/v1/oauth/tokens",
        f"{prefix}.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
    }.items():
        session.conf.set(key, value)
    return session, name


def by_spark(catalog: Api, guest: Guest, name: str, snapshot: int | None) -> list[str]:
    session, lake = spark(catalog, guest)
    at = f" VERSION AS OF {snapshot}" if snapshot else ""
    found: list[str] = (
        session.sql(f"SELECT id FROM {lake}.{name}{at} ORDER BY id").toArrow()["id"].to_pylist()
    )
    return found


ENGINES: tuple[Read, ...] = (by_pyiceberg, by_duckdb, by_spark)
ROWS = [f"{{}}-{turn}-{number}" for turn in (1, 2) for number in range(3)]


@pytest.mark.parametrize("read", ENGINES)
def test_an_engine_reads_its_tenant_s_rows(catalog: Api, guests: tuple[Guest, Guest], read: Read) -> None:
    for who, guest in zip(("mine", "theirs"), guests, strict=True):
        assert read(catalog, guest, "events.orders", None) == [row.format(who) for row in ROWS]


@pytest.mark.parametrize("read", ENGINES)
def test_an_engine_goes_back_in_time(catalog: Api, guest: Guest, read: Read) -> None:
    snapshots = rest(catalog, guest).load_table("events.orders").metadata.snapshots
    first = min(snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    assert read(catalog, guest, "events.orders", first.snapshot_id) == [
        row.format("mine") for row in ROWS[:3]
    ]


@pytest.mark.parametrize("read", ENGINES)
def test_an_engine_finds_nothing_of_others(catalog: Api, guests: tuple[Guest, Guest], read: Read) -> None:
    missing: tuple[type[Exception], ...] = (NoSuchTableError, duckdb.Error, PySparkException)
    for name in (
        "events.secrets",
        f"{guests[1].tenant.namespace}.orders",
        f"{guests[1].tenant.namespace}.secrets",
    ):
        with pytest.raises(missing, match=r"(?i)not.*exist|not found|cannot be found"):
            read(catalog, guests[0], name, None)


def test_all_engines_read_equal_columns(catalog: Api, guest: Guest) -> None:
    found: list[list[dict[str, Any]]] = []
    table = rest(catalog, guest).load_table("events.orders").scan().to_arrow()
    session, lake = spark(catalog, guest)
    with duck(catalog, guest) as connection:
        by_duck = connection.execute("SELECT * FROM lake.events.orders").to_arrow_table()
    for rows in (table, by_duck, session.sql(f"SELECT * FROM {lake}.events.orders").toArrow()):
        assert rows.column_names == table.column_names
        found.append(sorted(rows.to_pylist(), key=lambda row: str(row["id"])))
    assert found[0] == found[1] == found[2]


def test_engines_list_what_there_is(catalog: Api, guests: tuple[Guest, Guest]) -> None:
    client = rest(catalog, guests[1])
    assert client.list_namespaces() == [("events",)]
    assert client.list_tables("events") == [("events", "orders"), ("events", "secrets")]
    assert client.table_exists("events.orders")
    assert not client.table_exists("events.absent")
    assert client.namespace_exists("events")
    session, lake = spark(catalog, guests[1])
    shown = session.sql(f"SHOW TABLES IN {lake}.events").toArrow()["tableName"].to_pylist()
    assert sorted(shown) == ["orders", "secrets"]
    with duck(catalog, guests[1]) as connection:
        listed = connection.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'lake'")
        assert sorted(row[0] for row in listed.fetchall()) == ["orders", "secrets"]


def test_a_key_is_taken_as_a_bearer_token_too(catalog: Api, guest: Guest) -> None:
    assert rest(catalog, guest, token=guest.key.text).list_tables("events") == [("events", "orders")]


def test_what_is_in_events_no_engine_changes(catalog: Api, guest: Guest) -> None:
    before = rest(catalog, guest).load_table("events.orders")
    refused: tuple[type[Exception], ...] = (Exception,)
    with pytest.raises(refused, match=r"(?i)forbidden|unsupported|not supported|denied|405|403"):
        before.append(before.scan(limit=1).to_arrow())
    with duck(catalog, guest) as connection, pytest.raises(duckdb.Error):
        connection.execute("DELETE FROM lake.events.orders")
    session, lake = spark(catalog, guest)
    with pytest.raises(PySparkException):
        session.sql(f"DELETE FROM {lake}.events.orders").collect()
    after = rest(catalog, guest).load_table("events.orders")
    assert after.metadata_location == before.metadata_location
    assert iceberg.load_table(("events", "orders"), after.metadata_location).current_snapshot()
