"""Pools of DuckDB instances, configured for Iceberg and the object store.

Each instance has a memory limit, threads and a cache of its own, and is lent to one user at a time. Only
queries that Pulse builds run here, never a caller's SQL: DuckDB's own limits are not a tenant boundary.
"""

import math
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import duckdb

from pulse_resources.errors import FileGone, Terminal, Transient, UserError, first_line
from pulse_resources.settings import load_settings
from pulse_resources.store_keys import store_key

EXTENSIONS = ("avro", "httpfs", "iceberg")
SCAN = "iceberg_scan(?, allow_moved_paths = false)"
WHOLE_SCAN = f"(SELECT * FROM {SCAN} OFFSET 0)"  # noqa: S608 - from a constant
"""A scan to which no condition is passed on: for one that begins before 1970, DuckDB leaves out files."""
_NAG_S = 0.05


@dataclass(frozen=True)
class Limits:
    """Limits of each instance of a pool."""

    purpose: str
    """Name of its users in errors, in the plural: "previews"."""
    memory: str
    threads: int
    instances: int | None = None
    """Maximum instances lent at a time; None: unlimited, and one idle instance is kept."""
    seconds: float | None = None
    """Time limit for waiting for an instance and using it; None: unlimited."""
    spill: bool = False
    """Whether it may spill to disk when memory is short."""
    trust_cache: bool = False
    """Whether to answer from cached bytes without checking that the file exists; else nothing is cached."""

    def too_late(self) -> Transient:
        """The error for exceeding the time limit."""
        return Transient(
            f"it took longer than the {self.seconds:g} s that {self.purpose} have",
            fix="Ask for fewer rows, fewer columns or a shorter time range, or try again later",
        )


PROOFS = Limits("proofs", memory="1GB", threads=2, spill=True)
"""For users that must see the current state of the object store: reconciliation, checks, reports."""


class _Store(NamedTuple):
    endpoint: str
    region: str
    access_key: str
    secret_key: str
    session_token: str
    ca_file: str


@contextmanager
def connect(limits: Limits = PROOFS, until: float | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Lend an instance of this process's pool for `limits` to the block.

    Args:
        limits: which pool.
        until: deadline by `time.monotonic()`, for a caller that began earlier; None: `limits.seconds` from
            now.

    Raises:
        Gone: a file that the block reads is gone.
        Terminal: a file is damaged.
        Transient: the object store does not answer, all instances are busy, or time is up.
        UserError: the block's query needs more memory than the limit.
    """
    if until is None and limits.seconds is not None:
        until = time.monotonic() + limits.seconds
    store = _store()
    with (
        _pool(limits, store).lend(until) as connection,
        _explained(limits, store),
        _interrupted(connection, limits, until),
    ):
        yield connection


def warm(limits: Limits) -> None:
    """Make all instances of a pool of fixed size, so that no user waits for extensions to load."""
    _pool(limits, _store()).fill()


def _store() -> _Store:
    store = load_settings().object_store
    key = store_key.of(store)
    return _Store(
        store.endpoint,
        store.region,
        key.access_key,
        key.secret_key,
        key.session_token or "",
        str(store.ca_file or ssl.get_default_verify_paths().cafile or ""),
    )


@contextmanager
def _explained(limits: Limits, store: _Store) -> Iterator[None]:
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise UserError(
            f"the query needs more than the {limits.memory} of memory that {limits.purpose} have",
            fix="Ask for fewer rows, fewer columns or a shorter time range",
        ) from error
    except duckdb.IOException as error:  # further lines of its message quote Pulse's own query
        if getattr(error, "status_code", None) == HTTPStatus.NOT_FOUND:
            raise FileGone(f"a file of the table is gone: {first_line(error)}") from error
        raise Transient(
            f"the object store does not answer: {first_line(error)}", endpoint=store.endpoint
        ) from error
    except duckdb.InvalidInputException as error:
        raise Terminal(f"a file of the table is damaged: {first_line(error)}") from error


@contextmanager
def _interrupted(
    connection: duckdb.DuckDBPyConnection, limits: Limits, until: float | None
) -> Iterator[None]:
    """Interrupt the block's queries when time is up, repeatedly until the block ends."""
    if until is None:
        yield
        return
    remaining = until - time.monotonic()
    done, late = threading.Event(), threading.Event()

    def watch() -> None:
        if not done.wait(remaining):
            late.set()
            while not done.wait(_NAG_S):  # repeated: one interrupt may fall between two queries
                connection.interrupt()

    watcher = threading.Thread(target=watch, name="duck-watch", daemon=True)
    watcher.start()
    try:
        yield
    except duckdb.Error as error:
        if late.is_set():  # an interrupted request to the object store is not a failure of the store
            raise limits.too_late() from error
        raise
    finally:
        done.set()
        watcher.join()


class _Pool:
    """Instances for one set of limits; an instance whose use failed is closed.

    The instance returned last is lent first: its cache is the warmest.
    """

    def __init__(self, limits: Limits, store: _Store) -> None:
        self._limits = limits
        self._store = store
        self._idle: list[duckdb.DuckDBPyConnection] = []
        self._free = threading.Semaphore(limits.instances or 0)

    @contextmanager
    def lend(self, until: float | None) -> Iterator[duckdb.DuckDBPyConnection]:
        fixed = self._limits.instances
        remaining = None if until is None else max(0.0, until - time.monotonic())
        if fixed and not self._free.acquire(timeout=remaining):
            raise Transient(
                f"{self._limits.purpose} are busy: all {fixed} instances are in use", fix="Try again later"
            )
        try:
            connection = self._take()
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            self._put_back(connection)
        finally:
            if fixed:
                self._free.release()

    def fill(self) -> None:
        for _ in range((self._limits.instances or 0) - len(self._idle)):
            self._put_back(_instance(self._limits, self._store))

    def _take(self) -> duckdb.DuckDBPyConnection:
        with suppress(IndexError):
            return self._idle.pop()
        return _instance(self._limits, self._store)

    def _put_back(self, connection: duckdb.DuckDBPyConnection) -> None:
        if len(self._idle) < (self._limits.instances or 1):
            self._idle.append(connection)
        else:
            connection.close()


@cache
def _pool(limits: Limits, store: _Store) -> _Pool:
    return _Pool(limits, store)


def _instance(limits: Limits, store: _Store) -> duckdb.DuckDBPyConnection:
    """A new in-memory instance with the extensions from their wheels, which take 0.2 s to load."""
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": limits.memory,
        "threads": limits.threads,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    if not limits.spill:
        config["max_temp_directory_size"] = "0B"
    database = duckdb.connect(":memory:", config=config)
    for name in EXTENSIONS:
        database.load_extension(extension(name))
    scheme, _, address = store.endpoint.partition("://")
    database.execute("SET TimeZone = 'UTC'")
    database.execute("SET GLOBAL s3_endpoint = ?", [address])
    database.execute("SET GLOBAL s3_use_ssl = ?", [scheme == "https"])
    database.execute("SET GLOBAL s3_url_style = 'path'")
    database.execute("SET GLOBAL s3_region = ?", [store.region])
    database.execute("SET GLOBAL s3_access_key_id = ?", [store.access_key])
    database.execute("SET GLOBAL s3_secret_access_key = ?", [store.secret_key])
    database.execute("SET GLOBAL s3_session_token = ?", [store.session_token])
    if scheme == "https":
        database.execute("SET GLOBAL enable_server_cert_verification = true")
        database.execute("SET GLOBAL ca_cert_file = ?", [store.ca_file])
    if limits.seconds is not None:  # an interrupt does not reach a request that hangs
        database.execute("SET GLOBAL http_timeout = ?", [math.ceil(limits.seconds)])
        database.execute("SET GLOBAL http_retries = 1")
    if limits.trust_cache:
        database.execute("SET GLOBAL validate_external_file_cache = 'NO_VALIDATION'")
        database.execute("SET GLOBAL parquet_metadata_cache = true")
    else:  # validation does not suffice: `iceberg_scan` exempts its files from it, whatever the setting is
        database.execute("SET GLOBAL enable_external_file_cache = false")
    return database


def extension(name: str) -> str:
    """The path of an extension of DuckDB, in its wheel."""
    package = import_module(f"duckdb_extension_{name}")
    folder = Path(str(package.__file__)).parent / "extensions" / f"v{duckdb.__version__}"
    return str(folder / f"{name}.duckdb_extension")
