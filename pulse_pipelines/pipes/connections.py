"""Addresses of the sources of a tenant: store, try, list and remove them (see `addresses`)."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import httpx

from pulse_pipelines.domain.pipe_sources import source_name
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes import addresses, registry, web
from pulse_pipelines.pipes.files.stores import S3
from pulse_pipelines.pipes.postgres import sessions
from pulse_resources.errors import Conflict, NotFound, UserError
from pulse_resources.home import write_atomically

MAX_ADDRESS_BYTES = 8_192


class Kind(StrEnum):
    """The kind of service at an address."""

    POSTGRES = "postgres"
    S3 = "s3"
    WEB = "web"


@dataclass(frozen=True)
class Connection:
    """A named address, without the address."""

    name: str
    kind: Kind
    stored_in: str
    """`file`, or `environment`."""
    pipes: tuple[str, ...]
    """Names of the pipes that read it, or write to it."""


def kind_of(address: str) -> Kind:
    """The kind of an address, by its scheme."""
    if address.startswith("s3://"):
        return Kind.S3
    return Kind.WEB if address.startswith(("http://", "https://")) else Kind.POSTGRES


def answer_of(address: str) -> str:
    """Connect to an address, and describe in a few words what answered. Nothing is written there.

    Raises:
        UserError: the address is malformed, or its credentials are refused.
        NotFound: there is no such bucket.
        Transient: nothing answers.
    """
    kind = kind_of(address)
    if kind is Kind.S3:
        bucket = S3(address)
        return (
            f"a bucket, {'without files' if bucket.is_empty() else 'with files'}, at {bucket.place.strip()}"
        )
    if kind is Kind.WEB:
        site = web.site(address)
        with web.client(site) as client:
            try:
                status = client.head(f"{site.base}/").status_code
            except httpx.TransportError as error:
                raise web.unreachable("source", error) from None
        if status == httpx.codes.UNAUTHORIZED:
            raise UserError("the web server does not take the credentials of the address", status=status)
        return f"a web server, by status {status} for {site.base}/"
    with sessions.connect(address) as connection:
        version, database, role = connection.execute(
            "SELECT current_setting('server_version'), current_database(), current_user"
        ).fetchone() or ("?", "?", "?")
    return f"Postgres {version}, database {database}, as {role}"


def store(tenant: Tenant, name: str, address: str) -> bool:
    """Store the address of a source in a file that only this user may read; returns whether it replaces one.

    Raises:
        UserError: the name or the address is invalid, or the environment has the source, which comes first.
    """
    path = addresses.file(tenant, source_name(name))
    if not address or "\0" in address or "\n" in address or len(address.encode()) > MAX_ADDRESS_BYTES:
        raise UserError(
            "the address is not a connection string or URL on one line",
            fix='Write it on standard input: printf %s "$SHOP" | pulse source set acme shop',
        )
    _check_environment(tenant, name)
    replaced = path.exists()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(path, address)
    return replaced


def remove(tenant: Tenant, name: str) -> None:
    """Remove the address of a source.

    Raises:
        NotFound: there is none.
        Conflict: pipes use it.
        UserError: the environment has it.
    """
    path = addresses.file(tenant, source_name(name))
    _check_environment(tenant, name)
    if used := _pipes_by_source(tenant).get(name):
        raise Conflict(
            f"pipes use the source: {', '.join(used)}",
            fix=f"Delete them first: pulse pipe delete {tenant.slug} {used[0]}",
            tenant=tenant.slug,
            source=name,
        )
    try:
        path.unlink()
    except FileNotFoundError:
        raise NotFound("the tenant has no such source", tenant=tenant.slug, source=name) from None


def list_connections(tenant: Tenant) -> list[Connection]:
    """List the sources of a tenant by name, without their addresses."""
    used = _pipes_by_source(tenant)
    prefix = addresses.variable(tenant, "")
    places = {
        name.removeprefix(prefix).lower(): "environment" for name in os.environ if name.startswith(prefix)
    }
    places = dict.fromkeys(_names(addresses.folder(tenant)), "file") | places
    return [
        Connection(name, kind_of(addresses.url(tenant, name)), place, tuple(used.get(name, ())))
        for name, place in sorted(places.items())
    ]


def _check_environment(tenant: Tenant, name: str) -> None:
    variable = addresses.variable(tenant, name)
    if os.environ.get(variable):
        raise UserError(
            f"the environment has this source, and comes first: {variable}",
            fix="Change it there, or remove it from the environment of Pulse",
        )


def _names(folder: Path) -> Iterator[str]:
    with suppress(FileNotFoundError):
        yield from (path.name for path in folder.iterdir() if not path.name.startswith("."))


def _pipes_by_source(tenant: Tenant) -> dict[str, list[str]]:
    used: dict[str, list[str]] = {}
    for pipe in registry.list_pipes(tenant):
        if name := getattr(pipe.definition.other_end, "source", None):  # a transform has none
            used.setdefault(name, []).append(pipe.name)
    return used
