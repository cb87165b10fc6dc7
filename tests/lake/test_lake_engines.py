"""Engines with nothing but a tenant's key: equal rows, earlier snapshots, nobody else's."""

import re
from collections.abc import Callable
from typing import Any

import duckdb
import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyspark.errors import PySparkException
from support.catalog import ROWS, Guest
from support.engines import duck, rest, spark
from support.http import Api
from typer.testing import CliRunner

from pulse_api import cli
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.registry import keys
from pulse_resources import iceberg

Read = Callable[[Api, Guest, str, int | None], list[str]]
"""Ids of the rows of one of the tenant's tables; of a snapshot, if one is named."""


def by_pyiceberg(catalog: Api, guest: Guest, name: str, snapshot: int | None) -> list[str]:
    table = rest(catalog, guest).load_table(name)
    ids: list[str] = table.scan(snapshot_id=snapshot, selected_fields=("id",)).to_arrow()["id"].to_pylist()
    return sorted(ids)


def by_duckdb(catalog: Api, guest: Guest, name: str, snapshot: int | None) -> list[str]:
    at = f" AT (VERSION => {snapshot})" if snapshot else ""
    with duck(catalog, guest) as connection:
        cursor = connection.execute(f"SELECT id FROM {guest.tenant.slug}.{name}{at} ORDER BY id")
        return [row[0] for row in cursor.fetchall()]


def by_spark(catalog: Api, guest: Guest, name: str, snapshot: int | None) -> list[str]:
    session, lake = spark(catalog, guest)
    at = f" VERSION AS OF {snapshot}" if snapshot else ""
    ids: list[str] = session.sql(f"SELECT id FROM {lake}.{name}{at} ORDER BY id").toArrow()["id"].to_pylist()
    return ids


ENGINES: tuple[Read, ...] = (by_pyiceberg, by_duckdb, by_spark)


@pytest.mark.parametrize("read", ENGINES)
def test_an_engine_reads_its_tenant_s_rows(catalog: Api, guests: tuple[Guest, Guest], read: Read) -> None:
    for owner_name, guest in zip(("mine", "theirs"), guests, strict=True):
        assert read(catalog, guest, "events.orders", None) == [row.format(owner_name) for row in ROWS]


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
    answers: list[list[dict[str, Any]]] = []
    table = rest(catalog, guest).load_table("events.orders").scan().to_arrow()
    session, lake = spark(catalog, guest)
    with duck(catalog, guest) as connection:
        by_duck = connection.execute("SELECT * FROM orders").to_arrow_table()
    for rows in (table, by_duck, session.sql(f"SELECT * FROM {lake}.events.orders").toArrow()):
        assert rows.column_names == table.column_names
        answers.append(sorted(rows.to_pylist(), key=lambda row: str(row["id"])))
    assert answers[0] == answers[1] == answers[2]


def test_engines_list_the_existing_tables(catalog: Api, guests: tuple[Guest, Guest]) -> None:
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
        listed = connection.execute("SELECT table_name FROM duckdb_tables()")
        assert sorted(row[0] for row in listed.fetchall()) == ["orders", "secrets"]


def test_a_key_is_taken_as_a_bearer_token_too(catalog: Api, guest: Guest) -> None:
    assert rest(catalog, guest, token=guest.key.text).list_tables("events") == [("events", "orders")]


def test_no_engine_can_change_tables_of_events(catalog: Api, guest: Guest) -> None:
    before = rest(catalog, guest).load_table("events.orders")
    refused: tuple[type[Exception], ...] = (Exception,)
    with pytest.raises(refused, match=r"(?i)forbidden|unsupported|not supported|denied|405|403"):
        before.append(before.scan(limit=1).to_arrow())
    with duck(catalog, guest) as connection, pytest.raises(duckdb.Error):
        connection.execute("DELETE FROM orders")
    session, lake = spark(catalog, guest)
    with pytest.raises(PySparkException):
        session.sql(f"DELETE FROM {lake}.events.orders").collect()
    after = rest(catalog, guest).load_table("events.orders")
    assert after.metadata_location == before.metadata_location
    assert iceberg.load_table(("events", "orders"), after.metadata_location).current_snapshot()


def test_a_person_connects_an_engine_with_one_command(catalog: Api, guest: Guest) -> None:
    done = CliRunner().invoke(cli.app, ["lake", "connect", guest.tenant.slug, "--engine", "trino"])
    assert done.exit_code == 0
    key = re.search(r"oauth2\.token=(\S+)", done.stdout)
    assert key
    with catalog.client(key[1]) as client:
        assert client.get("/v1/namespaces/events/tables/orders").status_code == 200
    (issued,) = [entry for entry in keys.list_keys(guest.tenant) if entry.key_id == key[1].split("_")[2]]
    assert issued.scopes == {KeyScope.LAKE_READ}
    assert issued.expires_at
    done = CliRunner().invoke(cli.app, ["lake", "connect", guest.tenant.slug, "--engine", "trino", "--write"])
    key = re.search(r"oauth2\.token=(\S+)", done.stdout)
    assert key
    (issued,) = [entry for entry in keys.list_keys(guest.tenant) if entry.key_id == key[1].split("_")[2]]
    assert issued.scopes == {KeyScope.LAKE_READ, KeyScope.LAKE_WRITE}
    arguments = ["lake", "connect", guest.tenant.slug, "--engine", "duckdb", "--key", guest.key.text]
    before = len(keys.list_keys(guest.tenant))
    assert guest.key.text in CliRunner().invoke(cli.app, arguments).stdout
    done = CliRunner().invoke(cli.app, [*arguments, "--write"])
    assert done.exit_code == 2
    assert "Leave out --key" in done.stderr
    assert len(keys.list_keys(guest.tenant)) == before
    blind = keys.issue_key(guest.tenant, "shop", [KeyScope.COLLECT, KeyScope.READ]).text
    for text, fault in ((blind, "lacks the scope lake:read"), (blind[:-1], "not one of"), ("", "not one of")):
        done = CliRunner().invoke(cli.app, [*arguments[:-1], text])
        assert (done.exit_code, done.stdout) == (2, "")
        assert fault in done.stderr
        assert "Leave out --key" in done.stderr
