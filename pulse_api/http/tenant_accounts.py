"""Vending accounts of tenants that lack one when the API starts: a new tenant's is made with the tenant.

Earlier versions of Pulse made none, and another vending secret in the settings takes other accounts.
"""

import asyncio
import logging

import psycopg

from pulse_pipelines import registry
from pulse_resources.errors import PulseError
from pulse_resources.settings import load_settings
from pulse_resources.store_keys import vending_accounts

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
        namespaces = [tenant.namespace for tenant in registry.list_tenants()]
        missing = vending_accounts.find_missing(settings, namespaces)
        vending_accounts.ensure_tenant_accounts(settings, missing)
    except (psycopg.Error, PulseError) as error:
        return str(error)
    return ""
