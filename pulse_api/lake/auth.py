"""Authentication: a tenant's key as bearer token or password (Basic), or an access token issued for a key.

The client chooses between them; the tenant is always that of the key.
"""

import base64
import binascii
from dataclasses import dataclass

from starlette.requests import Request

from pulse_api.http.auth import find_caller, take
from pulse_api.http.problems import ProblemError
from pulse_api.lake.state import LakeState, lake_state
from pulse_pipelines.domain import token
from pulse_pipelines.domain.key import ApiKey, Credential, KeyScope, Presented
from pulse_pipelines.domain.tenant import Tenant

LONGEST = 4_096


@dataclass(frozen=True)
class Caller:
    """The calling tenant and the key that it used."""

    tenant: Tenant
    key: ApiKey


def unauthorized() -> ProblemError:
    """The same answer for every credential that is not in force: a caller cannot learn why it was refused."""
    return ProblemError(
        401,
        "unauthorized",
        "Not authorized: no key, or one that is not in force",
        headers={"WWW-Authenticate": "Bearer"},
    )


def passwords(header: str) -> list[str]:
    """Secrets in an Authorization header: with Basic the password, or the user where that is empty."""
    scheme, _, text = header[:LONGEST].partition(" ")
    text = text.strip()
    if scheme.lower() == "bearer":
        return [text]
    if scheme.lower() == "basic":
        try:
            user, _, password = base64.b64decode(text, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return []
        return [password or user]
    return []


def credential(state: LakeState, text: str) -> Credential | None:
    """A tenant's key, or an access token of this service; None when the text is neither."""
    presented = Presented.parse(text)
    if presented is not None:
        return presented if presented.tenant_id is not None else None  # operators have no lake
    return token.parse(state.token_secret, text)


async def identify(request: Request, text: str) -> Caller:
    """The caller that a key or access token identifies.

    Raises:
        ProblemError: 401 where it is not in force; 429 beyond the tenant's rate; 429 or 503 when too many
            requests of this address present a key that has to be looked up.
    """
    state = lake_state(request)
    presented = credential(state, text)
    if presented is None or (tenant_and_key := await find_caller(request, state, presented)) is None:
        raise unauthorized()
    cached, key = tenant_and_key
    take(state, cached.view.tenant, "requests", 1, cached.view.limits.requests_per_second)
    return Caller(cached.view.tenant, key)


async def authenticate(request: Request, *scopes: KeyScope) -> Caller:
    """The caller of a request, if its key has all these scopes.

    Raises:
        ProblemError: as `identify`, and 403 without one of the scopes.
    """
    candidates = passwords(request.headers.get("authorization", ""))
    if not candidates:
        raise unauthorized()
    caller = await identify(request, candidates[0])
    for scope in scopes:
        if scope not in caller.key.scopes:
            detail = f"the key {caller.key.key_id} lacks the scope {scope.value}"
            raise ProblemError(403, "forbidden", detail, fix="Use another key, or issue one with this scope")
    return caller
