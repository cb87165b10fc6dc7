"""State of the REST catalog between requests: keys, turns, readiness."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from starlette.requests import Request

from pulse_api.http.admission.turns import turns
from pulse_api.http.auth import check_wait
from pulse_api.http.collect.body_memory import BodyMemory
from pulse_api.http.keyring import Keyring
from pulse_api.http.readiness import PATIENCE_S, CheckResult, Readiness
from pulse_api.http.workers import CHANGES, Workers
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake.catalog import ROLE
from pulse_pipelines.registry.tenant_view import load_lake_view
from pulse_resources.errors import UserError
from pulse_resources.settings import load_settings

INVALID = "invalid requests"
LARGE = 3
"""Processes for requests that parse much, one of a tenant; each begins with the first that needs it."""
LARGE_BYTES = 1024**3
"""Memory of such a process: the largest metadata takes a third of it."""


class LakeState(Keyring):
    """State of the catalog's app; one instance per process.

    Raises:
        UserError: the secret that signs tokens is not set.
    """

    def __init__(self) -> None:
        super().__init__(ROLE, load_lake_view)
        settings = load_settings()
        if settings.lake.token_secret is None:
            raise UserError(
                "the REST catalog has no secret to sign tokens with",
                fix="Set PULSE_LAKE__TOKEN_SECRET to many random characters, the same for all its processes",
            )
        self.token_secret = settings.lake.token_secret.get_secret_value()
        self.token_seconds = settings.lake.token_seconds
        api = settings.api
        self._invalid_per_second, self._burst_seconds = settings.lake.invalid_per_second, api.burst_seconds
        self.turns = turns("requests", running=api.parallelism, running_of_one=max(1, api.parallelism // 2))
        self.large_turns = turns("requests about large metadata", running=LARGE, running_of_one=1)
        self.workers = Workers(LARGE, os.getpid, CHANGES, memory_bytes=LARGE_BYTES)
        self.body_memory = BodyMemory(api.max_held_bytes, api.max_held_bytes_per_tenant)
        self.readiness = Readiness(_check_postgres)

    def check_valid_before(self, tenant: Tenant) -> None:
        """Raises ProblemError (429): the tenant's latest requests were invalid at more than their rate."""
        check_wait(self.rates.wait_s(tenant.tenant_id, INVALID), INVALID, self._invalid_per_second)

    def count_invalid(self, tenant: Tenant) -> None:
        """Count an invalid request of the tenant."""
        self.rates.take(tenant.tenant_id, INVALID, 1, self._invalid_per_second, self._burst_seconds)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Run all background services while the block runs."""
        try:
            async with self.keys_open():
                yield
        finally:
            self.readiness.stop()
            await asyncio.to_thread(self.workers.stop)


def _check_postgres() -> CheckResult:
    """Check Postgres; blocking, so call it in a thread."""
    began, missing = time.monotonic(), None
    url = load_settings().postgres.url(ROLE)
    try:
        with psycopg.connect(url, connect_timeout=PATIENCE_S, application_name="pulse-ready") as connection:
            connection.execute("SELECT 1")
    except psycopg.Error:
        missing = "Postgres"
    return CheckResult(began, missing)


def lake_state(request: Request) -> LakeState:
    """The state of this request's app."""
    lake: LakeState = request.app.state.lake
    return lake
