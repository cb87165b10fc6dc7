"""Authentication: the tenant of a key, and whether the key's scopes allow the request.

The tenant is chosen by the key alone. The key is looked up in the session of the tenant that it
names, so a key of one tenant can never be checked against the keys of another.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from typing_extensions import override

from pulse_api.http.app_state import AppState, app_state
from pulse_api.http.keyring import Keyring
from pulse_api.http.problems import ProblemError
from pulse_api.http.views import CachedTenant
from pulse_pipelines.domain.key import ApiKey, Credential, KeyScope, Presented
from pulse_pipelines.domain.tenant import Tenant

KEY = HTTPBearer(
    auto_error=False,
    scheme_name="key",
    bearerFormat="pulse_<tenant>_<id>_<secret>",
    description="A tenant's API key. Its scopes: `collect` to send events, `read` to see schemas, "
    "datasets, rows, usage and dead letters, `manage` to change them; `lake:read` and `lake:write` are for "
    "the REST catalog, and `lake:read` for SQL.",
)
OPERATOR_KEY = HTTPBearer(
    auto_error=False,
    scheme_name="operator_key",
    bearerFormat="pulse_operator_<id>_<secret>",
    description="An operator's key: it creates tenants, sets their limits and issues their keys.",
)


@dataclass(frozen=True)
class Principal:
    """The calling tenant and the key that it used."""

    cached: CachedTenant
    key_id: str
    scopes: frozenset[KeyScope] = frozenset()

    @property
    def tenant(self) -> Tenant:
        return self.cached.view.tenant


LONGEST_WAIT_S = 3_600
"""Maximum of Retry-After: a slow rate, or a large debt, is asked again once an hour."""
_WRONG = "no key, or one that is not in force"
_ANY_KEY = (
    "Send the header Authorization: Bearer <key>, with an operator's key for /v1/tenants and /metrics, "
    "with a tenant's key for everything else"
)
_TENANTS_KEY = "Use a key of the tenant: POST /v1/tenants/{tenant}/keys issues one to an operator"
_OPERATORS_KEY = "Use an operator's key; what tenants may do is at the other paths"


def unauthorized(detail: str = _WRONG, fix: str = _ANY_KEY) -> ProblemError:
    """The same answer for every key that is not in force: a caller cannot learn why it was refused."""
    return ProblemError(401, "unauthorized", detail, fix=fix, headers={"WWW-Authenticate": "Bearer"})


def _presented(request: Request) -> Presented:
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    presented = Presented.parse(text.strip()) if scheme.lower() == "bearer" else None
    if presented is None:
        raise unauthorized()
    return presented


async def _of_the_wrong_kind(request: Request, presented: Presented) -> ProblemError:
    """The error for a key of the wrong kind for this path; its kind is revealed only if it is in force."""
    state = app_state(request)
    if presented.tenant_id is None and await state.find_operator(request, presented):
        return unauthorized("the key is an operator's, and this path takes a tenant's", _TENANTS_KEY)
    if presented.tenant_id is not None and await state.find_tenant(request, presented):
        return unauthorized("the key is a tenant's, and this path takes an operator's", _OPERATORS_KEY)
    return unauthorized()


async def find_caller(
    request: Request, keyring: Keyring, presented: Credential
) -> tuple[CachedTenant, ApiKey] | None:
    """The tenant and the key of a credential, noted for the log; None if it is not in force.

    Raises:
        ProblemError: as `Keyring.find_tenant`.
    """
    if (tenant_and_key := await keyring.find_tenant(request, presented)) is not None:
        tenant, key = tenant_and_key[0].view.tenant, tenant_and_key[1]
        request.state.tenant_id, request.state.tenant = str(tenant.tenant_id), tenant.slug
        request.state.key_id = key.key_id
        keyring.used(tenant.tenant_id, key.key_id)
    return tenant_and_key


async def authenticate(request: Request, *scopes: KeyScope) -> Principal:
    """The tenant whose key this request presents.

    Args:
        scopes: the key must have at least one of them.

    Raises:
        ProblemError: 401 without a key in force; 403 without a scope; 429 beyond the tenant's rate; 429 or
            503 when too many requests from this address present a key that has to be looked up.
    """
    presented, state = _presented(request), app_state(request)
    if presented.tenant_id is None:
        raise await _of_the_wrong_kind(request, presented)
    if (tenant_and_key := await find_caller(request, state, presented)) is None:
        raise unauthorized()
    cached, key = tenant_and_key
    if key.scopes.isdisjoint(scopes):
        detail = f"the key {key.key_id} lacks the scope {' or '.join(scopes)}"
        raise ProblemError(403, "forbidden", detail, fix="Use another key, or issue one with this scope")
    take(state, cached.view.tenant, "requests", 1, cached.view.limits.requests_per_second)
    return Principal(cached, key.key_id, frozenset(key.scopes))


async def check_still_in_force(state: AppState, principal: Principal) -> None:
    """Check a caller's key again, in work that takes long. Raises ProblemError (401): it is revoked."""
    key = (await state.views.keys(principal.tenant.tenant_id)).get(principal.key_id)
    if key is None or not key.in_force(datetime.now(UTC)):
        raise unauthorized()


def take(
    keyring: Keyring, tenant: Tenant, kind: str, count: int, per_second: float, burst_seconds: float = 1.0
) -> None:
    """Take `count` from a rate of the tenant. Raises ProblemError (429) beyond the rate."""
    check_wait(keyring.rates.take(tenant.tenant_id, kind, count, per_second, burst_seconds), kind, per_second)


def check_wait(wait_s: float, kind: str, per_second: float) -> None:
    """Raises ProblemError (429) unless the wait for a rate is over."""
    if wait_s > 0:
        raise ProblemError(
            429,
            "rate-exceeded",
            f"the tenant may send {per_second:g} {kind} per second",
            fix="Send fewer per second, and repeat this request after Retry-After",
            headers={"Retry-After": str(math.ceil(min(wait_s, LONGEST_WAIT_S)))},
        )


_Key = Annotated[object, Security(KEY)]  # for OpenAPI only: `authenticate` reads the header itself
_OperatorKey = Annotated[object, Security(OPERATOR_KEY)]


class Gate(ABC):
    """Dependency that authenticates a key. It runs before the body is read; the endpoint gets its result.

    FastAPI alone would read and decode the body first, even for an unauthenticated caller.
    """

    async def open(self, request: Request) -> None:
        """Authenticate the request. Raises ProblemError: 401, 403 or 429."""
        request.state.caller = await self._caller(request)

    @abstractmethod
    async def _caller(self, request: Request) -> object: ...


@dataclass(frozen=True)
class _TenantGate(Gate):
    scopes: tuple[KeyScope, ...]

    @override
    async def _caller(self, request: Request) -> Principal:
        return await authenticate(request, *self.scopes)

    async def __call__(self, request: Request, _: _Key) -> Principal:
        caller: Principal = request.state.caller
        return caller


class _OperatorGate(Gate):
    @override
    async def _caller(self, request: Request) -> str:
        return await operator(request)

    async def __call__(self, request: Request, _: _OperatorKey) -> str:
        caller: str = request.state.caller
        return caller


async def operator(request: Request) -> str:
    """The id of the operator's key that this request presents. Raises ProblemError (401)."""
    presented, state = _presented(request), app_state(request)
    if presented.tenant_id is not None:
        raise await _of_the_wrong_kind(request, presented)
    if (key := await state.find_operator(request, presented)) is None:
        raise unauthorized()
    request.state.key_id = key.key_id
    state.used(None, key.key_id)
    return key.key_id


Reader = Annotated[Principal, Depends(_TenantGate((KeyScope.READ,)))]
LakeReader = Annotated[Principal, Depends(_TenantGate((KeyScope.READ, KeyScope.LAKE_READ)))]
Manager = Annotated[Principal, Depends(_TenantGate((KeyScope.MANAGE,)))]
Operator = Annotated[str, Depends(_OperatorGate())]
