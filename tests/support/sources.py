"""A source: a database of its own on the test stack's server, whose address is where a tenant's are."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from chaos.surroundings import superuser
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources.home import pulse_home

SOURCE = "shop"


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
        path = pulse_home() / "sources" / tenant.slug / SOURCE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(address)
        try:
            with psycopg.connect(address, autocommit=True) as connection:
                yield connection
        finally:
            path.unlink()
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")
