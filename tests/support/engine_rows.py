"""The same three rows, written to a table of a tenant's own by each engine, and read by each."""

from collections.abc import Callable, Collection
from typing import Any

import pyarrow as pa

from support.catalog import Guest
from support.engines import duck, rest, spark
from support.http import Api

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", None]})
Write = Callable[[Api, Guest, str], None]
"""Makes a table in the namespace `own` of three rows, and changes them until they are ROWS."""
Rows = list[dict[str, Any]]


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


def read(catalog: Api, guest: Guest, name: str, engines: Collection[str] = WRITERS) -> dict[str, Rows]:
    """The rows of a table in `own` as each engine reads them, by `id`."""
    tables: dict[str, pa.Table] = {}
    if "pyiceberg" in engines:
        tables["pyiceberg"] = rest(catalog, guest).load_table(f"own.{name}").scan().to_arrow()
    if "duckdb" in engines:
        with duck(catalog, guest) as connection:
            tables["duckdb"] = connection.execute(f"FROM {guest.tenant.slug}.own.{name}").to_arrow_table()
    if "spark" in engines:
        session, lake = spark(catalog, guest)
        session.sql(f"REFRESH TABLE {lake}.own.{name}").collect()  # it remembers tables for half a minute
        tables["spark"] = session.sql(f"SELECT * FROM {lake}.own.{name}").toArrow()
    return {reader: rows.sort_by("id").to_pylist() for reader, rows in tables.items()}
