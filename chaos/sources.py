"""Sources of pipes: a database on the stack's server, one whose log says what changed; a folder of files."""

import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from chaos.surroundings import superuser
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes import addresses
from pulse_resources import object_store
from pulse_resources.home import pulse_home
from pulse_resources.local import accounts, postgres as local_postgres
from pulse_resources.local.layout import Layout
from pulse_resources.settings import load_settings

SOURCE = "shop"


@contextmanager
def capturing(tenant: Tenant, *settings: str) -> "Iterator[psycopg.Connection[Any]]":
    """A connection to a server of its own, whose log says what changed."""
    with _server() as (run, data):
        _initialize(run, data)
        of_test = (
            "wal_level = logical",
            "unix_socket_directories = ''",
            "fsync = off",
            "shared_buffers = 16MB",
        )
        with (data / "postgresql.conf").open("a") as file:
            file.write("\n".join((*of_test, "listen_addresses = '127.0.0.1'", *settings, "")))
        with _started(run, data, tenant) as connection:
            yield connection


@contextmanager
def promoted(tenant: Tenant, source: "psycopg.Connection[Any]") -> "Iterator[psycopg.Connection[Any]]":
    """A connection to a copy of a server that has taken its place."""
    with _server() as (run, data):
        run("pg_basebackup", "-R", "-X", "stream", "-c", "fast", "-d", source.info.dsn)
        with _started(run, data, tenant) as connection:
            connection.execute("SELECT pg_promote()")
            yield connection


@contextmanager
def copied(
    tenant: Tenant, source: "psycopg.Connection[Any]"
) -> "Iterator[Callable[[], AbstractContextManager[psycopg.Connection[Any]]]]":
    """A copy of a server's disk as it is now; what is yielded starts it in the server's place."""
    with _server() as (run, data):
        source.execute("CHECKPOINT")
        ((folder,),) = source.execute("SHOW data_directory").fetchall()
        _copy(folder, data)
        (data / "postmaster.pid").unlink()
        yield lambda: _started(run, data, tenant)


Run = Callable[..., None]
PORTS = 3
"""Ports to try for a server."""


@contextmanager
def _server() -> Iterator[tuple[Run, Path]]:
    """How to run a program of a server, and its folder, which is empty."""
    place = local_postgres.placement(Layout(pulse_home()))
    folder = Path(tempfile.mkdtemp(prefix="pulse-source-"))
    data = folder / "data"
    accounts.give(place.account, folder)

    def run(program: str, *arguments: str) -> None:
        done = accounts.run(place.account, str(place.binaries / "bin" / program), "-D", str(data), *arguments)
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        yield run, data
    finally:
        shutil.rmtree(folder)


def _initialize(run: Run, data: Path) -> None:
    """Fill the folder of a server: the first of a stack takes a second of a processor, others are copies."""
    template = pulse_home() / "source-template"
    if template.exists():
        _copy(template, data)
        return
    run("initdb", "-U", "postgres", "--auth=trust", "--no-sync", "--locale=C", "--encoding=UTF8")
    unfinished = template.with_suffix(f".{uuid.uuid4().hex}")
    _copy(data, unfinished)
    try:
        unfinished.rename(template)
    except OSError:  # another process was faster
        shutil.rmtree(unfinished)


def _copy(data: str | Path, to: Path) -> None:
    subprocess.run(["cp", "-a", data, to], check=True)  # noqa: S607 - with its owner


@contextmanager
def _started(run: Run, data: Path, tenant: Tenant) -> "Iterator[psycopg.Connection[Any]]":
    port = _start(run, data)
    try:
        address = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
        with stored_source(tenant, address), psycopg.connect(address, autocommit=True) as connection:
            yield connection
    finally:
        run("pg_ctl", "-w", "-m", "immediate", "stop")


def _start(run: Run, data: Path, attempts: int = PORTS) -> int:
    """Start a server; returns its port. Another process may take one that was free a moment ago."""
    log, port = data.parent / "log", free_port()
    try:
        run("pg_ctl", "-w", "-l", str(log), "-o", f"-p {port}", "start")
    except AssertionError as error:
        if attempts > 1 and "could not bind" in log.read_text():
            return _start(run, data, attempts - 1)
        raise AssertionError(f"{error}\n{log.read_text()}") from None
    return port


@contextmanager
def stored_source(tenant: Tenant, address: str, name: str = SOURCE) -> Iterator[None]:
    """Where a tenant's source is, is known while the block runs."""
    path = addresses.file(tenant, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text() if path.exists() else None
    path.touch(mode=0o600)
    path.write_text(address)
    try:
        yield
    finally:
        path.unlink() if before is None else path.write_text(before)


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def database(tenant: Tenant) -> "Iterator[psycopg.Connection[Any]]":
    """A connection to a fresh source of the tenant."""
    name = f"source_{uuid.uuid4().hex[:10]}"
    with superuser() as connection:
        parameters = connection.info.get_parameters() | {"password": connection.info.password}
    address = psycopg.conninfo.make_conninfo(
        **{key: value for key, value in parameters.items() if key in ("host", "port", "user", "password")},
        dbname=name,
    )
    with psycopg.connect(address, dbname="postgres", autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
        try:
            with stored_source(tenant, address), psycopg.connect(address, autocommit=True) as connection:
                yield connection
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")


class Folder:
    """A folder of the stack's object store."""

    def __init__(self) -> None:
        store = load_settings().object_store
        self._prefix = f"{store.bucket}/test-files/{uuid.uuid4().hex}"
        self._files = object_store.file_system()
        secret = quote(store.secret_key.get_secret_value(), safe="")
        key = quote(store.access_key, safe="")
        self.address = f"s3://{key}:{secret}@{self._prefix}?endpoint={store.endpoint}"

    def write(self, name: str, content: bytes) -> None:
        """Write a file, in place of the one that had the name."""
        with self._files.open_output_stream(f"{self._prefix}/{name}", compression=None) as file:
            file.write(content)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._files.delete_file(f"{self._prefix}/{name}")
