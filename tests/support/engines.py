"""Engines connected to the REST catalog by what `pulse lake connect` prints for them."""

import re
from typing import Any

import duckdb
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql.connect.session import SparkSession

from pulse_api.cli import connect
from pulse_api.cli.connect import Engine
from pulse_pipelines.query import duckdb_pool
from pulse_resources.settings import load_settings
from support.catalog import Guest
from support.http import Api


def rest(catalog: Api, guest: Guest, **how: str) -> RestCatalog:
    """PyIceberg's client, by what `pulse lake connect` prints, or otherwise."""
    if how:
        return RestCatalog("lake", uri=catalog.url, warehouse=guest.tenant.slug, **how)
    pasted: dict[str, Any] = {}
    exec(connect.written(Engine.PYICEBERG, guest.tenant.slug, guest.key.text, catalog.url), pasted)  # noqa: S102
    catalog_of_page: RestCatalog = pasted["catalog"]
    return catalog_of_page


def duck(catalog: Api, guest: Guest) -> duckdb.DuckDBPyConnection:
    """A DuckDB of its own, connected by what `pulse lake connect` prints."""
    connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": False})
    for extension in duckdb_pool.EXTENSIONS:
        connection.load_extension(duckdb_pool.extension(extension))
    pasted = connect.written(Engine.DUCKDB, guest.tenant.slug, guest.key.text, catalog.url)
    connection.execute(pasted.removeprefix("INSTALL iceberg; LOAD iceberg;\n"))
    connection.execute(f"USE {guest.tenant.slug}.events")
    return connection


def spark(catalog: Api, guest: Guest) -> tuple[SparkSession, str]:
    """The stack's Spark with a catalog by what `pulse lake connect` prints; by its name."""
    session = SparkSession.builder.remote(load_settings().spark.remote).getOrCreate()
    pasted = connect.written(Engine.SPARK, guest.tenant.slug, guest.key.text, catalog.url)
    for key, value in re.findall(r"--conf (\S+?)=(\S+)", pasted):
        session.conf.set(key, value)
    return session, guest.tenant.slug
