"""`pulse lake connect`: configuration or code that connects an engine to a tenant's tables."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from pulse_api.cli.arguments import TenantSlug, duration
from pulse_api.cli.output import AsJson, emit, remark
from pulse_api.lake.connecting import Engine, written
from pulse_pipelines import registry
from pulse_pipelines.domain.key import KeyScope, Presented
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import settings
from pulse_resources.errors import UserError

app = typer.Typer(
    no_args_is_help=True, help="Access to the lake for other engines, through the REST catalog."
)


@app.callback()
def _group() -> None:
    """A group of its own, although it has one command."""


@app.command()
def connect(
    tenant: TenantSlug,
    engine: Annotated[Engine, typer.Option(help="The engine to connect.")],
    key: Annotated[
        str | None, typer.Option(help=r"A key with the scope lake:read. \[default: a new one]")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Let the new key write tables of the tenant's own, too.")
    ] = False,
    expires_in: Annotated[
        timedelta,
        typer.Option(parser=duration, metavar="DURATION", help="Let the new key expire after this time."),
    ] = "30d",  # type: ignore[assignment] # typer parses the default, too
    as_json: AsJson = False,
) -> None:
    """Print what an engine needs to read a tenant's tables, with a key that opens nothing else.

    Example: pulse lake connect acme --engine duckdb
    """
    owner, issued = registry.find_tenant(tenant), None
    if key is not None:
        if write:
            raise UserError("--write applies to a new key only", fix="Leave out --key, or --write")
        _check(owner, key)
    else:
        ends = datetime.now(UTC) + expires_in
        scopes = [KeyScope.LAKE_READ, *([KeyScope.LAKE_WRITE] if write else [])]
        issued = registry.keys.issue_key(owner, f"lake {engine}", scopes, ends)
        key = issued.text
        remark(f"With a new key, {issued.stored.key_id}: pulse key revoke {tenant} {issued.stored.key_id}")
    catalog = settings.load_settings().lake.linked_url
    text = written(engine, owner.slug, key, catalog)
    if as_json:
        emit({"engine": engine, "catalog": catalog, "key_id": issued and issued.stored.key_id, "paste": text})
    else:
        typer.echo(text)


def _check(owner: Tenant, key: str) -> None:
    """Refuse a key that no engine could read with."""
    fix = "Leave out --key: then a new key is issued"
    presented, now = Presented.parse(key), datetime.now(UTC)
    stored = next(
        (k for k in registry.keys.list_keys(owner) if presented and k.key_id == presented.key_id), None
    )
    if presented is None or stored is None or not presented.opens(stored, now):
        raise UserError("the key is not one of the keys in force", fix=fix, tenant=owner.slug)
    if KeyScope.LAKE_READ not in stored.scopes:
        raise UserError(f"the key {stored.key_id} lacks the scope lake:read", fix=fix, tenant=owner.slug)
