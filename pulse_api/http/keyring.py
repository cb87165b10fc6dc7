"""State of API keys in a service: cached owners, turns for look-ups, and when each key was last used."""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID

import psycopg
from starlette.requests import Request

from pulse_api.http.admission.rates import Rates
from pulse_api.http.admission.turns import turns
from pulse_api.http.background import run_forever
from pulse_api.http.views import CachedTenant, Views
from pulse_pipelines.domain.key import ApiKey, Credential
from pulse_pipelines.registry import keys
from pulse_pipelines.registry.tenant_view import TenantView
from pulse_resources.settings.service_settings import Role

TOUCH_EVERY_S = 5.0
MAX_KEYS = 20_000
_log = logging.getLogger("pulse.api")


class Keyring:
    """Keys and their look-ups; one instance per process.

    Args:
        role: Postgres role for look-ups.
        load: reads the service's view of a tenant.
    """

    def __init__(
        self, role: Role = "pulse_api", load: Callable[[UUID], TenantView | None] | None = None
    ) -> None:
        self._role: Role = role
        self.views = Views(role, load)
        self.rates = Rates()
        self.lookups = turns("requests with a key that is not known", running=4, running_of_one=2)
        """Look-up turns by key or, for an unknown key, by address: guessing keys delays only that address."""
        self._opened: dict[str, None] = {}
        """Keys that were in force, by first use."""
        self._used: dict[UUID | None, dict[str, datetime]] = defaultdict(dict)

    def used(self, tenant_id: UUID | None, key_id: str) -> None:
        """Record that a key was used; written to Postgres every few seconds."""
        self._used[tenant_id][key_id] = datetime.now(UTC)
        self._opened[key_id] = None
        if len(self._opened) > MAX_KEYS:
            self._opened.pop(next(iter(self._opened)))

    def asking(self, request: Request, presented: Credential) -> str:
        """Whose turns a look-up takes: those of a key that was in force before, else those of its address."""
        if presented.key_id in self._opened or request.client is None:
            return presented.key_id
        return request.client.host

    async def find_tenant(
        self, request: Request, presented: Credential
    ) -> tuple[CachedTenant, ApiKey] | None:
        """The tenant of a key, and the key, if it is in force. A look-up takes the caller's turn."""
        tenant_and_key = self.views.cached(presented) or await self.views.coming(presented)
        if tenant_and_key is None:
            async with self.lookups.take(self.asking(request, presented)):
                tenant_and_key = await self.views.tenant(presented)
        return tenant_and_key

    async def find_operator(self, request: Request, presented: Credential) -> ApiKey | None:
        """An operator's key, if it is in force; as `find_tenant`."""
        async with self.lookups.take(self.asking(request, presented)):
            return await self.views.operator_key(presented)

    @asynccontextmanager
    async def keys_open(self) -> AsyncIterator[None]:
        """Listen for changes and write key uses to Postgres while the block runs."""
        self.views.start()
        touching = asyncio.create_task(run_forever(self._touch_keys))
        try:
            yield
        finally:
            touching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await touching
            await self._write_used()
            await asyncio.to_thread(self.views.stop)

    async def _touch_keys(self) -> None:
        while True:
            await asyncio.sleep(TOUCH_EVERY_S)
            await self._write_used()

    async def _write_used(self) -> None:
        used, self._used = self._used, defaultdict(dict)
        try:
            await asyncio.to_thread(keys.touch_keys, used, self._role)
        except psycopg.Error as error:
            _log.warning("the last use of keys is noted later: %s", error)
            for tenant_id, times in used.items():
                self._used[tenant_id] = times | self._used[tenant_id]
