"""API keys: issued, stored hashed, rotated with overlap, and revoked together with the keys they issued.

A tenant's keys form a tree: a key may issue keys with at most its own scopes and lifetime, and revoking it
revokes them. Operators, and the command line, may grant anything.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pulse_pipelines.domain import key
from pulse_pipelines.domain.key import ApiKey, IssuedKey, KeyScope
from pulse_pipelines.domain.naming import check_name
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres
from pulse_resources.errors import Conflict, Forbidden, NotFound, QuotaExceeded, UserError
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.settings import load_settings
from pulse_resources.settings.service_settings import Role

FIELDS = "key_id, name, scopes, key_hash, created_at, expires_at, revoked_at, last_used_at, issued_by"
INSERT = f"""
INSERT INTO api_keys (tenant_id, key_id, name, scopes, key_hash, expires_at, issued_by)
VALUES (%s, %s, %s, %s, %s, %s, %s) RETURNING {FIELDS}
"""  # noqa: S608 - from a constant
_IN_FORCE = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())"
LISTED_ENDED = 1_000
"""Expired and revoked keys that a list has, the latest: their number only grows."""
LIST = f"""
SELECT {FIELDS} FROM api_keys WHERE tenant_id = app_tenant() AND {_IN_FORCE} UNION ALL (
    SELECT {FIELDS} FROM api_keys WHERE tenant_id = app_tenant() AND NOT ({_IN_FORCE})
    ORDER BY least(revoked_at, expires_at) DESC, key_id LIMIT {LISTED_ENDED})
ORDER BY created_at, key_id
"""  # noqa: S608
IN_FORCE = f"SELECT {FIELDS} FROM api_keys WHERE tenant_id = app_tenant() AND {_IN_FORCE}"  # noqa: S608
COUNT_IN_FORCE = f"SELECT count(*) FROM api_keys WHERE tenant_id = app_tenant() AND {_IN_FORCE}"  # noqa: S608
FIND = f"SELECT {FIELDS} FROM api_keys WHERE key_id = %s AND tenant_id = app_tenant()"  # noqa: S608
REVOKE = f"""
WITH RECURSIVE taken AS (
    SELECT key_id FROM api_keys WHERE key_id = %s AND tenant_id = app_tenant()
    UNION SELECT issued.key_id FROM api_keys issued JOIN taken ON issued.issued_by = taken.key_id
    WHERE issued.tenant_id = app_tenant())
UPDATE api_keys SET revoked_at = now() WHERE revoked_at IS NULL AND key_id IN (SELECT key_id FROM taken)
    AND tenant_id = app_tenant()
RETURNING {FIELDS}
"""  # noqa: S608
END_AFTER = """
UPDATE api_keys SET expires_at = least(expires_at, now() + make_interval(secs => %s))
WHERE key_id = %s AND tenant_id = app_tenant()
"""
TOUCH = """
UPDATE api_keys SET last_used_at = greatest(last_used_at, %s) WHERE key_id = %s AND tenant_id = app_tenant()
"""

OPERATOR_FIELDS = "key_id, name, '{}'::text[], key_hash, created_at, NULL, revoked_at, last_used_at, NULL"
INSERT_OPERATOR = f"""
INSERT INTO operator_keys (key_id, name, key_hash) VALUES (%s, %s, %s) RETURNING {OPERATOR_FIELDS}
"""  # noqa: S608
LIST_OPERATOR = f"SELECT {OPERATOR_FIELDS} FROM operator_keys ORDER BY created_at"  # noqa: S608
REVOKE_OPERATOR = f"""
UPDATE operator_keys SET revoked_at = coalesce(revoked_at, now()) WHERE key_id = %s
RETURNING {OPERATOR_FIELDS}
"""  # noqa: S608
TOUCH_OPERATOR = "UPDATE operator_keys SET last_used_at = greatest(last_used_at, %s) WHERE key_id = %s"


@dataclass(frozen=True)
class Revoked:
    """A revoked key, and the ids of the keys that were revoked with it."""

    key: ApiKey
    with_it: tuple[str, ...]


def issue_key(
    tenant: Tenant,
    name: str,
    scopes: Iterable[KeyScope],
    expires_at: datetime | None = None,
    issuer: str | None = None,
) -> IssuedKey:
    """Issue a key of the tenant; its text is only in the result.

    Args:
        issuer: id of the key that asks, None for an operator. The new key expires no later than the issuer.

    Raises:
        UserError: no scope, or no usable name.
        QuotaExceeded: the tenant has as many keys as it may have.
        Forbidden: a scope that the issuer lacks, or the issuer is not in force.
    """
    chosen = frozenset(scopes)
    if not chosen:
        raise UserError("a key needs at least one scope", fix=f"Choose from: {', '.join(KeyScope)}")
    check_name("key", name)
    with _changing(tenant) as connection:
        by = _granting(connection, tenant, issuer, chosen)
        _admit(connection, tenant)
        return _insert(
            connection, tenant, name, chosen, _earliest(expires_at, by.expires_at if by else None), issuer
        )


@contextmanager
def _changing(tenant: Tenant) -> Iterator[postgres.Connection]:
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        # Serialized, so that a key that is being revoked cannot issue another.
        locks.wait(connection, Lock.KEYS, tenant.tenant_id)
        yield connection


def _granting(
    connection: postgres.Connection, tenant: Tenant, issuer: str | None, scopes: frozenset[KeyScope]
) -> ApiKey | None:
    """The issuer, checked to be in force and to have these scopes; None for an operator."""
    if issuer is None:
        return None
    by = _find(connection, tenant, issuer)
    if not by.in_force(datetime.now(UTC)):
        raise Forbidden("the key of this request is no longer valid", tenant=tenant.slug, key=issuer)
    if lacking := sorted(scopes - by.scopes):
        raise Forbidden(
            f"a key can grant only what it has: this one lacks {', '.join(lacking)}",
            fix="Ask for fewer scopes, or have an operator issue the key",
            tenant=tenant.slug,
            key=issuer,
        )
    return by


def _insert(
    connection: postgres.Connection,
    tenant: Tenant,
    name: str,
    scopes: frozenset[KeyScope],
    expires_at: datetime | None,
    issuer: str | None,
) -> IssuedKey:
    key_id, secret = key.new_secret()
    values = [tenant.tenant_id, key_id, name, sorted(scopes), key.hash_of(secret), expires_at, issuer]
    (row,) = connection.execute(INSERT, values).fetchall()
    return IssuedKey(key.written(tenant.tenant_id, key_id, secret), _stored(row))


def _earliest(*moments: datetime | None) -> datetime | None:
    """The earliest moment; None (never) if none is given."""
    return min((moment for moment in moments if moment), default=None)


def _find(connection: postgres.Connection, tenant: Tenant, key_id: str) -> ApiKey:
    row = connection.execute(FIND, [key_id]).fetchone()
    if row is None:
        raise NotFound(
            "no such key",
            fix=f"List the keys: pulse key list {tenant.slug}",
            tenant=tenant.slug,
            key=key_id,
        )
    return _stored(row)


def list_keys(tenant: Tenant) -> list[ApiKey]:
    """List the tenant's keys, the oldest first, with the `LISTED_ENDED` that expired or were revoked last."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return [_stored(row) for row in connection.execute(LIST)]


def load_keys_in_force(connection: postgres.Connection) -> list[ApiKey]:
    """Read the keys in force of the session's tenant; the number of all others only grows."""
    return [_stored(row) for row in connection.execute(IN_FORCE)]


def _admit(connection: postgres.Connection, tenant: Tenant, factor: int = 1) -> None:
    """Admit one more key in this transaction, which holds the lock of the tenant's keys."""
    limit = factor * load_settings().api.max_keys
    ((count,),) = connection.execute(COUNT_IN_FORCE).fetchall()
    if limit >= 0 and count >= limit:
        raise QuotaExceeded(
            f"the tenant has {count:,} keys in force and may have {limit:,}",
            fix="Revoke those that are not used, or have the operator set PULSE_API__MAX_KEYS",
            tenant=tenant.slug,
        )


def rotate_key(tenant: Tenant, key_id: str, overlap_s: float, issuer: str | None = None) -> IssuedKey:
    """Issue a successor of a key, which expires after the overlap (seconds); keys that it issued stay valid.

    Args:
        issuer: id of the key that asks, None for an operator. It becomes the issuer of the new key, which
            expires no later than the old key would have, nor than the issuer, if that is another key.

    Raises:
        NotFound: the tenant has no such key.
        Conflict: the key was revoked.
        QuotaExceeded: the tenant has twice as many keys as it may issue: old ones stay in force for a while.
        Forbidden: the issuer has not all scopes of the key, or is not in force.
    """
    with _changing(tenant) as connection:
        old = _find(connection, tenant, key_id)
        if old.revoked_at is not None:
            raise Conflict("the key was revoked", fix="Issue a new one", tenant=tenant.slug, key=key_id)
        by = _granting(connection, tenant, issuer, old.scopes)
        _admit(connection, tenant, factor=2)
        connection.execute(END_AFTER, [overlap_s, key_id])
        ends = _earliest(old.expires_at, by.expires_at) if by else None
        return _insert(connection, tenant, old.name, old.scopes, ends, issuer)


def revoke_key(tenant: Tenant, key_id: str, issuer: str | None = None) -> Revoked:
    """Revoke a key and all keys issued by it, at once and permanently; safe to repeat.

    Args:
        issuer: id of the key that asks, None for an operator.

    Raises:
        NotFound: the tenant has no such key.
        Conflict: the key that asks was issued by this one, and would be revoked with it.
    """
    with _changing(tenant) as connection:
        ended = {row[0] for row in connection.execute(REVOKE, [key_id])}
        key = _find(connection, tenant, key_id)
        if issuer in ended - {key_id}:
            raise Conflict(
                "the key of this request was issued by this one, and would be revoked with it",
                fix="Use another key, or have an operator revoke it",
                tenant=tenant.slug,
                key=key_id,
            )
    return Revoked(key, tuple(sorted(ended - {key_id})))


def touch_keys(used: Mapping[UUID | None, Mapping[str, datetime]], role: Role = "pulse_api") -> None:
    """Record when keys were last used, by tenant (None: operators) and key id; safe to repeat, also late."""
    for tenant_id, times in used.items():
        rows = [(at, key_id) for key_id, at in times.items()]
        if tenant_id is None:
            with postgres.transaction(role) as connection:
                connection.cursor().executemany(TOUCH_OPERATOR, rows)
        else:
            with postgres.tenant_transaction(role, tenant_id) as connection:
                connection.cursor().executemany(TOUCH, rows)


def issue_operator_key(name: str) -> IssuedKey:
    """Issue an operator's key: it creates tenants, sets their limits and issues their keys.

    Raises:
        UserError: no usable name.
    """
    check_name("key", name)
    key_id, secret = key.new_secret()
    with postgres.transaction("pulse_owner") as connection:
        (row,) = connection.execute(INSERT_OPERATOR, [key_id, name, key.hash_of(secret)]).fetchall()
    return IssuedKey(key.written(None, key_id, secret), _stored(row))


def list_operator_keys() -> list[ApiKey]:
    """List all operators' keys, the oldest first."""
    with postgres.transaction("pulse_api") as connection:
        return [_stored(row) for row in connection.execute(LIST_OPERATOR)]


def revoke_operator_key(key_id: str) -> ApiKey:
    """Revoke an operator's key, at once and permanently; safe to repeat. Raises NotFound."""
    with postgres.transaction("pulse_owner") as connection:
        row = connection.execute(REVOKE_OPERATOR, [key_id]).fetchone()
    if row is None:
        raise NotFound("no such operator key", key=key_id)
    return _stored(row)


def _stored(row: Sequence[Any]) -> ApiKey:
    key_id, name, scopes, *columns = row
    return ApiKey(key_id, name, frozenset(KeyScope(scope) for scope in scopes), *columns)
