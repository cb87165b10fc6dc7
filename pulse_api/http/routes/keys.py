"""/v1/keys: the tenant's API keys."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Path, Request
from pydantic import BaseModel, Field

from pulse_api.http.app_state import app_state
from pulse_api.http.auth import Manager, Reader, unauthorized
from pulse_api.http.models import Body, Name
from pulse_api.http.problems import documented
from pulse_api.http.routing import resource
from pulse_pipelines.domain.key import ApiKey, IssuedKey, KeyScope
from pulse_pipelines.registry import keys

router = resource("keys", "/v1/keys")
DAY_S = 86_400
KeyId = Annotated[str, Path(pattern=r"^[0-9a-f]{12}$")]


class NewKey(Body):
    name: Name = Field(
        description="Name of the person or service that uses the key.", examples=["checkout service"]
    )
    scopes: Annotated[
        list[Annotated[KeyScope, Field(strict=False)]], Field(min_length=1, max_length=len(KeyScope))
    ]
    expires_in_days: Annotated[int, Field(ge=1, le=3650)] | None = Field(
        default=None, description="When the key expires; never by default."
    )


class Rotate(Body):
    overlap_seconds: int = Field(
        default=DAY_S, ge=0, le=365 * DAY_S, description="How long the old key still works."
    )


class KeyInfo(BaseModel):
    key_id: str
    name: str
    scopes: list[KeyScope]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="Noted every few seconds.")
    issued_by: str | None = Field(description="Id of the key that issued it; null: an operator did.")


class NewKeyInfo(KeyInfo):
    key: str = Field(description="The key itself: shown only here, stored nowhere.")


class RevokedInfo(KeyInfo):
    revoked_with_it: list[str] = Field(
        description="Ids of the keys that it had issued, which are revoked with it."
    )


class CurrentKey(KeyInfo):
    tenant: str = Field(description="Slug of the key's tenant.")
    topic: str = Field(description="The tenant's topic, to which events are published.")


class KeyList(BaseModel):
    keys: list[KeyInfo]


def info(key: ApiKey) -> KeyInfo:
    return KeyInfo(
        key_id=key.key_id,
        name=key.name,
        scopes=sorted(key.scopes),
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        last_used_at=key.last_used_at,
        issued_by=key.issued_by,
    )


def issued(key: IssuedKey) -> NewKeyInfo:
    return NewKeyInfo(key=key.text, **info(key.stored).model_dump())


def expiry(days: int | None) -> datetime | None:
    return datetime.now(UTC) + timedelta(days=days) if days else None


@router.post(
    "", status_code=201, summary="Issue a key", responses=documented(400, 401, 403, 413, 422, 429, 503)
)
def create_key(principal: Manager, body: NewKey) -> NewKeyInfo:
    """Issue a key of this tenant. Only this answer shows it.

    It has no scope that the key which asks has not, and ends no later. Revoking that one revokes this one.
    """
    expires_at = expiry(body.expires_in_days)
    return issued(keys.issue_key(principal.tenant, body.name, body.scopes, expires_at, principal.key_id))


@router.get("", summary="List keys", responses=documented(401, 403, 429, 503))
def list_keys(principal: Manager) -> KeyList:
    """The tenant's keys without their secrets, with the 1,000 that expired or were revoked last."""
    return KeyList(keys=[info(key) for key in keys.list_keys(principal.tenant)])


@router.get("/current", summary="Get the key of this request", responses=documented(401, 403, 429, 503))
async def get_current_key(request: Request, principal: Reader) -> CurrentKey:
    """The tenant and the scopes of the key that this request presents, and when it expires."""
    tenant = principal.tenant
    key = (await app_state(request).views.keys(tenant.tenant_id)).get(principal.key_id)
    if key is None:
        raise unauthorized()
    return CurrentKey(tenant=tenant.slug, topic=tenant.topic, **info(key).model_dump())


@router.post(
    "/{key_id}/rotate",
    status_code=201,
    summary="Rotate a key",
    responses=documented(400, 401, 403, 404, 409, 413, 422, 429, 503),
)
def rotate_key(principal: Manager, key_id: KeyId, body: Rotate) -> NewKeyInfo:
    """Issue a key with the same name and scopes; the old one ends after the overlap.

    The new one is of the issuing of the key that asks, which has all these scopes itself, and ends no later
    than the old one would have.
    """
    return issued(keys.rotate_key(principal.tenant, key_id, body.overlap_seconds, principal.key_id))


@router.delete("/{key_id}", summary="Revoke a key", responses=documented(401, 403, 404, 409, 422, 429, 503))
def revoke_key(principal: Manager, key_id: KeyId) -> RevokedInfo:
    """Revoke a key, and every key that it issued, at once and permanently. Safe to repeat."""
    done = keys.revoke_key(principal.tenant, key_id, principal.key_id)
    return RevokedInfo(revoked_with_it=list(done.with_it), **info(done.key).model_dump())
