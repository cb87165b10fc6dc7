"""Vending accounts of tenants that exist when the API starts: a new tenant's is made with the tenant.

Each needs some 6 ms of MinIO. What exists is written again, which also follows a new secret in the settings.
"""

import asyncio
import logging

import psycopg

from pulse_pipelines import registry
from pulse_resources import vending_accounts
from pulse_resources.errors import PulseError
from pulse_resources.settings import load_settings

AGAIN_S = 10.0
"""Seconds between attempts while Postgres or MinIO does not answer."""
_log = logging.getLogger("pulse.api")


async def keep_accounts() -> None:
    """Make the accounts of all tenants, as soon as Postgres and MinIO answer. Never returns."""
    reported = ""
    while problem := await asyncio.to_thread(_make):
        if problem != reported:
            _log.warning("tenants' keys of the object store are vended later: %s", problem)
        reported = problem
        await asyncio.sleep(AGAIN_S)
    await asyncio.Event().wait()


def _make() -> str:
    """Make them; returns why it was impossible, or nothing."""
    settings = load_settings()
    if not settings.object_store.vending_by_tenant:
        return ""
    try:
        tenants = registry.list_tenants()
        vending_accounts.ensure_tenant_accounts(settings, [tenant.namespace for tenant in tenants])
    except (psycopg.Error, PulseError) as error:
        return str(error)
    return ""
