"""A cache of tenants: keys, datasets with compiled validators, limits.

An entry is dropped as soon as Postgres notifies a change of its tenant, so a revoked key is refused at
once and a new event type needs no restart. While notifications cannot be received, nothing is served
from the cache.
"""

import asyncio
import logging
import pickle
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from uuid import UUID

import psycopg

from pulse_api.http.ttl_cache import TtlCache
from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.dataset import Dataset, DatasetKind
from pulse_pipelines.domain.key import ApiKey, Credential
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import keys
from pulse_pipelines.registry.tenant_view import CHANGES, OPERATOR, TenantView, is_outdated, load_view
from pulse_pipelines.validation.limits import event_limits
from pulse_pipelines.validation.validator import Validator
from pulse_resources.settings import load_settings
from pulse_resources.settings.service_settings import Role

MAX_TENANTS = 10_000
MAX_JUDGES = 1_000
RECONNECT_S = 1.0
MAX_SHARED_LOOKS = 5
"""Look-ups that a request waits for: each result may be invalidated again before it is cached."""

_log = logging.getLogger("pulse.api")


@dataclass(frozen=True)
class CachedTenant:
    """A tenant's view and the validators built from it."""

    view: TenantView

    def of(self, kind: DatasetKind) -> "ScopedValidator":
        """Validator of the tenant's datasets of this kind."""
        return self.of_entities if kind == DatasetKind.ENTITIES else self.of_events

    @cached_property
    def of_events(self) -> "ScopedValidator":
        elsewhere = frozenset(dataset.slug for dataset in self.view.datasets if dataset.of_entities)
        return self._validator_of(DatasetKind.EVENTS, elsewhere)

    @cached_property
    def of_entities(self) -> "ScopedValidator":
        return self._validator_of(DatasetKind.ENTITIES)

    def _validator_of(self, kind: DatasetKind, elsewhere: frozenset[str] = frozenset()) -> "ScopedValidator":
        datasets = tuple(dataset for dataset in self.view.datasets if dataset.kind == kind)
        return ScopedValidator(_validator_of(self.view.tenant, datasets, elsewhere))


@dataclass(frozen=True)
class ScopedValidator:
    """Validator of a tenant's datasets of one kind: records for datasets of another kind are refused."""

    validator: Validator

    @cached_property
    def packed_scope(self) -> bytes:
        """Pickled scope from which another process builds the same validator."""
        return pickle.dumps(self.validator.scope)


@lru_cache(MAX_JUDGES)
def _validator_of(tenant: Tenant, datasets: tuple[Dataset, ...], elsewhere: frozenset[str]) -> Validator:
    """Cached by the datasets: reloading a tenant's keys compiles no schema again."""
    return Validator(Scope(tenant, datasets, elsewhere=elsewhere), event_limits())


def _operators(_: str) -> Mapping[str, ApiKey]:
    return {key.key_id: key for key in keys.list_operator_keys()}


class Views:
    """Cache of tenants and keys. Use from the event loop; `start` and `stop` its listener to Postgres.

    Args:
        role: Postgres role that listens.
        load: reads the view of a tenant; by default all that the HTTP API needs.
    """

    def __init__(
        self, role: Role = "pulse_api", load: Callable[[UUID], TenantView | None] | None = None
    ) -> None:
        self._role: Role = role
        self._load = load
        seconds = load_settings().api.cache_seconds
        self._tenants = TtlCache(self._tenant, seconds, MAX_TENANTS)
        self._operators = TtlCache(_operators, seconds)
        self._listening = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="changes", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=5)

    def _tenant(self, tenant_id: UUID) -> CachedTenant | None:
        view = (self._load or load_view)(tenant_id)
        return None if view is None else CachedTenant(view)

    def cached(self, presented: Credential) -> tuple[CachedTenant, ApiKey] | None:
        """The tenant that this key opens, and the key, if both are cached."""
        if presented.tenant_id is None or not self._listening:
            return None
        view = self._tenants.cached(presented.tenant_id)
        key = view.view.keys.get(presented.key_id) if view else None
        return (view, key) if presented.opens(key, datetime.now(UTC)) and view and key else None

    async def coming(self, presented: Credential) -> tuple[CachedTenant, ApiKey] | None:
        """As `cached`, after waiting for the tenant's look-ups under way: waiting costs no look-up."""
        for _ in range(MAX_SHARED_LOOKS):
            if presented.tenant_id is None or not await self._tenants.coming(presented.tenant_id):
                return None
            if (view := self.cached(presented)) is not None:
                return view
        return None

    async def tenant(self, presented: Credential) -> tuple[CachedTenant, ApiKey] | None:
        """The tenant that this key opens, and the key; None when it opens none.

        A key that is not cached may be newly issued, its notification still on the way. A cached key with a
        wrong secret takes the same path, so that response times do not reveal which ids exist.
        """
        if presented.tenant_id is None:
            return None
        for afresh in (not self._listening, True):
            tenant = await self._tenants.get(presented.tenant_id, afresh=afresh)
            if tenant is None:
                return None
            key = tenant.view.keys.get(presented.key_id)
            if presented.opens(key, datetime.now(UTC)) and key:
                return tenant, key
        return None

    async def changed(self, cached: CachedTenant) -> CachedTenant | None:
        """The tenant, read now, if it created or deleted datasets since it was cached; None: it did not.

        For records whose dataset is not known: another process may have made it, its notification still on
        the way. Who sends unknown names without end costs a short query each.
        """
        if not await asyncio.to_thread(is_outdated, cached.view):
            return None
        return await self._tenants.get(cached.view.tenant.tenant_id, afresh=True)

    async def keys(self, tenant_id: UUID) -> Mapping[str, ApiKey]:
        """The keys of a tenant by id that were in force when they were read."""
        tenant = await self._tenants.get(tenant_id, afresh=not self._listening)
        return tenant.view.keys if tenant else {}

    async def operator_key(self, presented: Credential) -> ApiKey | None:
        """The operator's key that this is; None if it is not in force."""
        if presented.tenant_id is not None:
            return None
        for afresh in (not self._listening, True):
            operator_keys = await self._operators.get(OPERATOR, afresh=afresh) or {}
            key = operator_keys.get(presented.key_id)
            if presented.opens(key, datetime.now(UTC)):
                return key
        return None

    def forget(self, whom: str | None) -> None:
        """Invalidate a tenant (by id), the operators, or (None) everything."""
        if whom is None or whom == OPERATOR:
            self._operators.forget()
        if whom != OPERATOR:
            self._tenants.forget(None if whom is None else UUID(whom))

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                with psycopg.connect(
                    load_settings().postgres.url(self._role),
                    autocommit=True,
                    application_name="pulse-changes",
                ) as connection:
                    connection.execute(f"LISTEN {CHANGES}")
                    self.forget(None)
                    self._listening = True
                    while not self._stopping.is_set():
                        for notify in connection.notifies(timeout=0.5):
                            self.forget(notify.payload)
            except psycopg.Error as error:
                _log.warning("changes are not announced: %s", error)
            finally:
                self._listening = False
            self._stopping.wait(RECONNECT_S)
