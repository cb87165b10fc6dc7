"""Engines with nothing but a tenant's key write tables of its own, and read each other's."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from support.catalog import Guest
from support.engines import duck, rest, spark
from support.http import Api

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", None]})
Write = Callable[[Api, Guest, str], None]
"""Makes a table of three rows, and changes them until they are ROWS."""


def by_pyiceberg(catalog: Api, guest: Guest, name: str) -> None:
    client = rest(catalog, guest)
    client.create_namespace_if_not_exists("own")
    table = client.create_table(f"own.{name}", ROWS.schema)
    table.append(ROWS.slice(0, 2))
    table.append(pa.table({"id": pa.array([3, 4], pa.int64()), "name": pa.nulls(2, pa.string())}))
    table.delete("id = 4")


def by_duckdb(catalog: Api, guest: Guest, name: str) -> None:
    with duck(catalog, guest) as connection:
        lake = guest.tenant.slug
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {lake}.own")
        connection.execute(f"CREATE TABLE {lake}.own.{name} (id BIGINT, name VARCHAR)")
        connection.execute(f"INSERT INTO {lake}.own.{name} VALUES (1, 'a'), (2, 'b')")
        connection.execute(f"INSERT INTO {lake}.own.{name} VALUES (3, NULL)")


def by_spark(catalog: Api, guest: Guest, name: str) -> None:
    session, lake = spark(catalog, guest)
    session.sql(f"CREATE NAMESPACE IF NOT EXISTS {lake}.own").collect()
    session.sql(f"CREATE TABLE {lake}.own.{name} AS SELECT 1L AS id, 'a' AS name").collect()
    session.sql(f"INSERT INTO {lake}.own.{name} VALUES (2, 'b'), (3, NULL)").collect()


WRITERS: dict[str, Write] = {"pyiceberg": by_pyiceberg, "duckdb": by_duckdb, "spark": by_spark}


@pytest.mark.parametrize("engine", WRITERS)
def test_what_an_engine_writes_all_of_them_read(catalog: Api, writer: Guest, engine: str) -> None:
    name = f"by_{engine}"
    WRITERS[engine](catalog, writer, name)
    session, lake = spark(catalog, writer)
    with duck(catalog, writer) as connection:
        found = {
            "pyiceberg": rest(catalog, writer).load_table(f"own.{name}").scan().to_arrow(),
            "duckdb": connection.execute(f"FROM {lake}.own.{name}").to_arrow_table(),
            "spark": session.sql(f"SELECT * FROM {lake}.own.{name}").toArrow(),
        }
    for reader, rows in found.items():
        assert rows.sort_by("id").to_pylist() == ROWS.to_pylist(), reader
