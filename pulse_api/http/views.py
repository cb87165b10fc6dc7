"""A cache of tenants: keys, datasets with compiled validators, limits.

An entry is dropped as soon as Postgres announces a change of its tenant, so a revoked key is refused at
once and a new event type needs no restart. While announcements cannot be heard, nothing is served from
the cache.
"""

import asyncio
import logging
import threading
import time
from dataclasses import dataclass
from functools import cached_property
from uuid import UUID

import psycopg

from pulse_pipelines.domain.key import ApiKey
from pulse_pipelines.registry import keys
from pulse_pipelines.registry.view import CHANGES, OPERATOR, TenantView, load_view
from pulse_pipelines.stages.handles import Scope
from pulse_pipelines.stages.judge import Judge
from pulse_resources.settings import load_settings

MAX_TENANTS = 10_000
RECONNECT_S = 1.0

_log = logging.getLogger("pulse.api")


@dataclass(frozen=True)
class CachedTenant:
    """A tenant's view and what is made ready from it."""

    view: TenantView
    loaded_at: float

    @cached_property
    def judge(self) -> Judge:
        settings = load_settings().ingest
        scope = Scope(self.view.tenant, self.view.datasets)
        return Judge(scope, settings.max_event_bytes, settings.max_event_depth)


class Views:
    """Use from the event loop; `start` and `stop` the thread that listens to Postgres."""

    def __init__(self) -> None:
        self._ttl = load_settings().api.cache_seconds
        self._tenants: dict[UUID, CachedTenant] = {}
        self._operators: dict[str, ApiKey] | None = None
        self._generation = 0
        """Counts announcements: what was read before one is not kept after it."""
        self._lock = threading.Lock()
        self._loading: dict[UUID, asyncio.Task[CachedTenant | None]] = {}
        self._listening = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="changes", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=5)

    async def tenant(self, tenant_id: UUID, *, afresh: bool = False) -> CachedTenant | None:
        """The tenant, from the cache or (at once, if `afresh`) from Postgres; None when there is none."""
        found = None if afresh else self._tenants.get(tenant_id)
        if found is not None and self._listening and time.monotonic() - found.loaded_at < self._ttl:
            return found
        task = self._loading.get(tenant_id)
        if task is None:  # one reader for all who wait
            task = asyncio.create_task(asyncio.to_thread(self._load, tenant_id))
            self._loading[tenant_id] = task
            task.add_done_callback(lambda _: self._loading.pop(tenant_id, None))
        return await asyncio.shield(task)

    def _load(self, tenant_id: UUID) -> CachedTenant | None:
        generation = self._generation
        view = load_view(tenant_id)
        if view is None:
            return None
        loaded = CachedTenant(view, time.monotonic())
        with self._lock:
            if generation == self._generation:
                if len(self._tenants) >= MAX_TENANTS:
                    self._tenants.pop(next(iter(self._tenants)))
                self._tenants[tenant_id] = loaded
        return loaded

    async def operator_key(self, key_id: str) -> ApiKey | None:
        """An operator's key by its id."""
        known = self._operators if self._listening else None
        if known is None:
            known = await asyncio.to_thread(self._load_operators)
        return known.get(key_id)

    def _load_operators(self) -> dict[str, ApiKey]:
        generation = self._generation
        found = {key.key_id: key for key in keys.list_operator_keys()}
        with self._lock:
            if generation == self._generation:
                self._operators = found
        return found

    def forget(self, whom: str | None) -> None:
        """Drop what is kept of a tenant (by id), of the operators, or (None) of all."""
        with self._lock:
            self._generation += 1
            if whom is None:
                self._tenants.clear()
                self._operators = None
            elif whom == OPERATOR:
                self._operators = None
            else:
                self._tenants.pop(UUID(whom), None)

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                with psycopg.connect(
                    load_settings().postgres.url("pulse_api"),
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
