"""Metadata of a tenant's own table, overwritten by 60 MB that would become gigabytes in memory."""

from chaos import external
from chaos.harm import wire
from chaos.harm.attack import Attack, Attacker, may
from pulse_pipelines import registry
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import catalog
from pulse_pipelines.registry import keys
from pulse_resources import object_store
from pulse_resources.settings import load_settings

BOMB = b'{"snapshots": [' + b"{}," * (20 * 2**20) + b"{}]}"
NAMESPACE, TABLE = external.TABLE
AT_ONCE = 8


def _overwrite_metadata(tenant: Tenant) -> None:
    """Create a table, and replace its metadata file, as each holder of its vended key can."""
    external.create(tenant, load_settings().lake.linked_url)
    object_store.put(catalog.location(tenant, (NAMESPACE,), TABLE), BOMB)


async def _query(attacker: Attacker) -> None:
    body = {"sql": f"SELECT count(*) FROM {NAMESPACE}.{TABLE}"}
    await attacker.flood(wire.request("POST", "/v1/sql", attacker.key("lake:read"), body), AT_ONCE)


async def _register(attacker: Attacker) -> None:
    """Register the metadata as another table, which the catalog has to read each time."""
    tenant = registry.find_tenant(attacker.target.tenant)
    key = keys.issue_key(tenant, "engine", (KeyScope.LAKE_READ, KeyScope.LAKE_WRITE)).text
    location = catalog.location(tenant, (NAMESPACE,), TABLE)
    body = {"name": "again", "metadata-location": location, "overwrite": True}
    request = wire.request("POST", f"/v1/namespaces/{NAMESPACE}/register", key, body)
    await attacker.flood(request, AT_ONCE, port=load_settings().lake.port)


ATTACKS = (
    Attack(
        "a query of a table whose metadata is 60 MB of `{},{},…`",
        "lake:read, lake:write",
        _query,
        may(422, 429, 503),
        prepare=_overwrite_metadata,
    ),
    Attack(
        "such metadata registered as a table, in a loop",
        "lake:read, lake:write",
        _register,
        may(400, 429, 503),
        prepare=_overwrite_metadata,
    ),
)
