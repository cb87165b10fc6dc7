"""`pulse key`: keys of the HTTP API. A new key is alone on stdout, so that a shell can capture it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from pulse_api.cli import complete
from pulse_api.cli.arguments import TenantSlug, duration
from pulse_api.cli.output import AsJson, cell, emit, remark, say, show_table
from pulse_pipelines import registry
from pulse_pipelines.domain.key import ApiKey, IssuedKey, KeyScope

app = typer.Typer(no_args_is_help=True, help="API keys of a tenant, for the HTTP API.")
operator = typer.Typer(
    no_args_is_help=True, help="Operator keys: they create tenants, set limits and issue keys over HTTP."
)
app.add_typer(operator, name="operator")

KeyId = Annotated[
    str,
    typer.Argument(help="Id from `list`: 12 digits of the key.", autocompletion=complete.key_ids),
]
OperatorKeyId = Annotated[str, typer.Argument(help="Id from `pulse key operator list`.")]


@app.command("create")
def create_key(
    tenant: TenantSlug,
    name: Annotated[str, typer.Option(help="Name of the person or service that will use the key.")] = "cli",
    scope: Annotated[
        list[KeyScope] | None,
        typer.Option(
            metavar="SCOPE",
            help="What the key may do: collect, read, manage, lake:read, lake:write; "
            r"repeat the option for more than one. \[default: collect and read]",
        ),
    ] = None,
    expires_in: Annotated[
        timedelta | None,
        typer.Option(
            parser=duration, metavar="DURATION", help="Let the key expire after this time, such as 30d."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Issue a key of a tenant. It is shown once: Pulse stores only its hash.

    Example: KEY=$(pulse key create acme --name shop --scope collect --expires-in 30d)
    """
    expires = datetime.now(UTC) + expires_in if expires_in else None
    scopes = scope or [KeyScope.COLLECT, KeyScope.READ]
    _show_new(registry.keys.issue_key(registry.find_tenant(tenant), name, scopes, expires), as_json)


@app.command("list")
def list_keys(tenant: TenantSlug, as_json: AsJson = False) -> None:
    """List a tenant's keys, expired and revoked ones included, without their secrets.

    Example: pulse key list acme
    """
    _show(registry.keys.list_keys(registry.find_tenant(tenant)), as_json)


@app.command("rotate")
def rotate_key(
    tenant: TenantSlug,
    key_id: KeyId,
    overlap: Annotated[
        timedelta,
        typer.Option(parser=duration, metavar="DURATION", help="How long the old key still works."),
    ] = "1h",  # type: ignore[assignment] # typer parses the default, too
    as_json: AsJson = False,
) -> None:
    """Issue a key with the same name and scopes; the old one expires after the overlap.

    Example: KEY=$(pulse key rotate acme 4bf92f3577b3 --overlap 15m)
    """
    issued = registry.keys.rotate_key(registry.find_tenant(tenant), key_id, overlap.total_seconds())
    _show_new(issued, as_json)


@app.command("revoke")
def revoke_key(tenant: TenantSlug, key_id: KeyId, as_json: AsJson = False) -> None:
    """Revoke a key, and every key that it issued, at once and permanently. Safe to repeat.

    Example: pulse key revoke acme 4bf92f3577b3
    """
    done = registry.keys.revoke_key(registry.find_tenant(tenant), key_id)
    _show_revoked(done.key, as_json, done.with_it)


@operator.command("create")
def create_operator_key(
    name: Annotated[str, typer.Option(help="Name of the person or service that will use the key.")] = "cli",
    as_json: AsJson = False,
) -> None:
    """Issue an operator's key. It is shown once: Pulse stores only its hash.

    Example: OPERATOR=$(pulse key operator create --name terraform)
    """
    _show_new(registry.keys.issue_operator_key(name), as_json)


@operator.command("list")
def list_operator_keys(as_json: AsJson = False) -> None:
    """List the operators' keys, revoked ones included, without their secrets.

    Example: pulse key operator list --json
    """
    _show(registry.keys.list_operator_keys(), as_json)


@operator.command("revoke")
def revoke_operator_key(key_id: OperatorKeyId, as_json: AsJson = False) -> None:
    """Revoke an operator's key at once and permanently. Safe to repeat.

    Example: pulse key operator revoke 4bf92f3577b3
    """
    _show_revoked(registry.keys.revoke_operator_key(key_id), as_json)


def first_operator_key() -> str | None:
    """A new operator key if the installation has never had one, else None."""
    return None if registry.keys.list_operator_keys() else registry.keys.issue_operator_key("pulse up").text


def _document(key: ApiKey) -> dict[str, Any]:
    return {
        "key_id": key.key_id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "last_used_at": key.last_used_at,
        "issued_by": key.issued_by,
        "in_force": key.in_force(datetime.now(UTC)),
    }


def _show_new(issued: IssuedKey, as_json: bool) -> None:
    if as_json:
        emit({"key": issued.text} | _document(issued.stored))
        return
    typer.echo(issued.text)
    scopes = ", ".join(sorted(issued.stored.scopes)) or "operator"
    expires = issued.stored.expires_at
    until = f", in force until {cell(expires)}" if expires else ""
    remark(f"Key {issued.stored.key_id} ({scopes}{until}). It is shown once: save it now.")


def _show(issued: list[ApiKey], as_json: bool) -> None:
    if as_json:
        emit([_document(key) for key in issued])
        return
    now = datetime.now(UTC)
    rows = [
        (
            key.key_id,
            key.name,
            ", ".join(sorted(key.scopes)) or "operator",
            _state(key, now),
            key.issued_by or "operator",
            key.created_at,
            key.expires_at,
            key.last_used_at,
        )
        for key in issued
    ]
    columns = ("id", "name", "scopes", "state", "issued by", "created", "expires", "last used")
    spare = ("issued by", "created", "last used", "expires")
    show_table(columns, rows, empty="No keys yet. Issue one with: pulse key create", spare=spare)


def _state(key: ApiKey, now: datetime) -> str:
    if key.revoked_at:
        return "revoked"
    return "in force" if key.in_force(now) else "expired"


def _show_revoked(key: ApiKey, as_json: bool, with_it: Sequence[str] = ()) -> None:
    if as_json:
        emit(_document(key) | {"revoked_with_it": with_it})
    else:
        successors = f", and so are the keys that it issued: {', '.join(with_it)}" if with_it else ""
        say(f"key {key.key_id} is revoked{successors}")
