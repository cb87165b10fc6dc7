"""API keys: issued once, stored hashed, rotated with overlap, revoked at once."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from pulse_pipelines.domain import key
from pulse_pipelines.domain.key import ApiKey, IssuedKey, KeyScope
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres
from pulse_resources.errors import Conflict, NotFound, UserError

MAX_NAME = 200

FIELDS = "key_id, name, scopes, key_hash, created_at, expires_at, revoked_at, last_used_at"
INSERT = f"""
INSERT INTO api_keys (tenant_id, key_id, name, scopes, key_hash, expires_at)
VALUES (%s, %s, %s, %s, %s, %s) RETURNING {FIELDS}
"""  # noqa: S608 - from a constant
LIST = f"SELECT {FIELDS} FROM api_keys ORDER BY created_at, key_id"  # noqa: S608
FIND = f"SELECT {FIELDS} FROM api_keys WHERE key_id = %s"  # noqa: S608
REVOKE = f"""
UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE key_id = %s RETURNING {FIELDS}
"""  # noqa: S608
END_AFTER = """
UPDATE api_keys SET expires_at = least(expires_at, now() + make_interval(secs => %s)) WHERE key_id = %s
"""
TOUCH = "UPDATE api_keys SET last_used_at = greatest(last_used_at, %s) WHERE key_id = %s"

OPERATOR_FIELDS = "key_id, name, '{}'::text[], key_hash, created_at, NULL, revoked_at, last_used_at"
INSERT_OPERATOR = f"""
INSERT INTO operator_keys (key_id, name, key_hash) VALUES (%s, %s, %s) RETURNING {OPERATOR_FIELDS}
"""  # noqa: S608
LIST_OPERATOR = f"SELECT {OPERATOR_FIELDS} FROM operator_keys ORDER BY created_at"  # noqa: S608
REVOKE_OPERATOR = f"""
UPDATE operator_keys SET revoked_at = coalesce(revoked_at, now()) WHERE key_id = %s
RETURNING {OPERATOR_FIELDS}
"""  # noqa: S608
TOUCH_OPERATOR = "UPDATE operator_keys SET last_used_at = greatest(last_used_at, %s) WHERE key_id = %s"


def issue_key(
    tenant: Tenant, name: str, scopes: Iterable[KeyScope], expires_at: datetime | None = None
) -> IssuedKey:
    """Issue a key of the tenant; its text is in the answer and nowhere else.

    Raises:
        UserError: no scope, or no usable name.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return _issue(connection, tenant, name, scopes, expires_at)


def _issue(
    connection: postgres.Connection,
    tenant: Tenant,
    name: str,
    scopes: Iterable[KeyScope],
    expires_at: datetime | None,
) -> IssuedKey:
    chosen = sorted({scope.value for scope in scopes})
    if not chosen:
        raise UserError("a key needs a scope", fix=f"Choose from: {', '.join(KeyScope)}")
    if not 0 < len(name) <= MAX_NAME or "\0" in name:
        raise UserError(f"a key's name has 1 to {MAX_NAME} characters")
    key_id, secret = key.new_secret()
    values = [tenant.tenant_id, key_id, name, chosen, key.hash_of(secret), expires_at]
    (row,) = connection.execute(INSERT, values).fetchall()
    return IssuedKey(key.written(tenant.tenant_id, key_id, secret), _stored(row))


def list_keys(tenant: Tenant) -> list[ApiKey]:
    """The tenant's keys, the oldest first, those out of force too."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return load_keys(connection)


def load_keys(connection: postgres.Connection) -> list[ApiKey]:
    """The keys of the tenant whose session this is."""
    return [_stored(row) for row in connection.execute(LIST)]


def rotate_key(tenant: Tenant, key_id: str, overlap_s: float) -> IssuedKey:
    """A new key like this one, which itself ends after the overlap (seconds).

    Raises:
        NotFound: the tenant has no such key.
        Conflict: the key was revoked.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        row = connection.execute(FIND, [key_id]).fetchone()
        if row is None:
            raise NotFound("no such key", tenant=tenant.slug, key=key_id)
        old = _stored(row)
        if old.revoked_at is not None:
            raise Conflict("the key was revoked", fix="Issue a new one", tenant=tenant.slug, key=key_id)
        connection.execute(END_AFTER, [overlap_s, key_id])
        return _issue(connection, tenant, old.name, old.scopes, None)


def revoke_key(tenant: Tenant, key_id: str) -> ApiKey:
    """End a key at once, for good; safe to repeat. Raises NotFound."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        row = connection.execute(REVOKE, [key_id]).fetchone()
    if row is None:
        raise NotFound("no such key", tenant=tenant.slug, key=key_id)
    return _stored(row)


def touch_keys(used: Mapping[UUID | None, Mapping[str, datetime]]) -> None:
    """Note when keys were last used, by tenant (None: operators) and key id; safe to repeat, also late."""
    for tenant_id, times in used.items():
        rows = [(at, key_id) for key_id, at in times.items()]
        if tenant_id is None:
            with postgres.transaction("pulse_api") as connection:
                connection.cursor().executemany(TOUCH_OPERATOR, rows)
        else:
            with postgres.tenant_transaction("pulse_api", tenant_id) as connection:
                connection.cursor().executemany(TOUCH, rows)


def issue_operator_key(name: str) -> IssuedKey:
    """Issue an operator's key: it creates tenants, sets their limits and issues their keys."""
    key_id, secret = key.new_secret()
    with postgres.transaction("pulse_owner") as connection:
        (row,) = connection.execute(INSERT_OPERATOR, [key_id, name, key.hash_of(secret)]).fetchall()
    return IssuedKey(key.written(None, key_id, secret), _stored(row))


def list_operator_keys() -> list[ApiKey]:
    """Every operator's key, the oldest first."""
    with postgres.transaction("pulse_api") as connection:
        return [_stored(row) for row in connection.execute(LIST_OPERATOR)]


def revoke_operator_key(key_id: str) -> ApiKey:
    """End an operator's key at once, for good; safe to repeat. Raises NotFound."""
    with postgres.transaction("pulse_owner") as connection:
        row = connection.execute(REVOKE_OPERATOR, [key_id]).fetchone()
    if row is None:
        raise NotFound("no such operator key", key=key_id)
    return _stored(row)


def _stored(row: Sequence[Any]) -> ApiKey:
    key_id, name, scopes, *rest = row
    return ApiKey(key_id, name, frozenset(KeyScope(scope) for scope in scopes), *rest)
