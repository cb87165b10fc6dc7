"""DuckDB over the lake: connections that know Iceberg and the object store.

Only queries that Pulse builds run here, never a caller's SQL: DuckDB's own limits are no tenant
boundary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from pathlib import Path

import duckdb

from pulse_resources.errors import Terminal, Transient
from pulse_resources.settings import load_settings

EXTENSIONS = ("avro", "httpfs", "iceberg")
SCAN = "iceberg_scan(?, allow_moved_paths = false)"
MEMORY = "1GB"
THREADS = 2
_NOT_FOUND = 404


@contextmanager
def connect() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection of its own to this process's DuckDB, which knows Iceberg and the object store.

    Raises:
        Terminal: a file that the block reads is gone or damaged.
        Transient: the object store does not answer.
    """
    store = load_settings().object_store
    secret = store.secret_key.get_secret_value()
    connection = _database(store.endpoint, store.region, store.access_key, secret).cursor()
    try:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection
    except duckdb.IOException as error:
        if getattr(error, "status_code", None) == _NOT_FOUND:
            raise Terminal(f"a file of the table is gone: {_first_line(error)}") from error
        raise Transient(
            f"the object store does not answer: {_first_line(error)}", endpoint=store.endpoint
        ) from error
    except duckdb.InvalidInputException as error:
        raise Terminal(f"a file of the table is damaged: {_first_line(error)}") from error
    finally:
        connection.close()


@lru_cache(maxsize=1)
def _database(endpoint: str, region: str, access_key: str, secret_key: str) -> duckdb.DuckDBPyConnection:
    """In memory, with the extensions from their wheels: loading those takes 0.2 s, so it is kept."""
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": MEMORY,
        "threads": THREADS,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    database = duckdb.connect(":memory:", config=config)
    for name in EXTENSIONS:
        database.load_extension(_extension(name))
    scheme, _, address = endpoint.partition("://")
    database.execute("SET GLOBAL s3_endpoint = ?", [address])
    database.execute("SET GLOBAL s3_use_ssl = ?", [scheme == "https"])
    database.execute("SET GLOBAL s3_url_style = 'path'")
    database.execute("SET GLOBAL s3_region = ?", [region])
    database.execute("SET GLOBAL s3_access_key_id = ?", [access_key])
    database.execute("SET GLOBAL s3_secret_access_key = ?", [secret_key])
    return database


def _first_line(error: duckdb.Error) -> str:
    return str(error).partition("\n")[0]  # what follows quotes Pulse's own query


def _extension(name: str) -> str:
    package = import_module(f"duckdb_extension_{name}")
    folder = Path(str(package.__file__)).parent / "extensions" / f"v{duckdb.__version__}"
    return str(folder / f"{name}.duckdb_extension")
