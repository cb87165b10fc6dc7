"""Registry sensor: keeps assets, their metadata and their partitions in step with the registry.

The loaded code location carries the version of the registry it was made from. While that is the current one,
and the cursor says that the partitions match it too, a tick is a query for one row. Otherwise only what has
changed since the cursor's version is compared.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

import dagster as dg

from pulse_pipelines import registry
from pulse_pipelines.defs.datasets.partitions import grid_start, tenant_partitions
from pulse_pipelines.runtime.dagster_internals import DagsterGrpcClient, DagsterUserCodeUnreachableError
from pulse_resources.settings import load_settings

LOADED = "pulse/registry"
"""Metadata of the code location: fingerprint of the registry it was made from."""

RELOAD_S = 120.0
"""The code location is reloaded again if the requested registry is not loaded by then."""

_Request = dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest


def registry_fingerprint(version: int | None = None) -> str:
    """Fingerprint of the inputs of the assets: the registry, and the first day of the grid.

    Args:
        version: of the registry; None: the current one.
    """
    return f"{registry.version() if version is None else version}.{grid_start()}"


@dg.sensor(
    minimum_interval_seconds=15,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Compares the registry with what is loaded. Reloads this code location when a dataset was "
    "created, moved to another schema or deleted, and once a month, when the grid of partitions moves. Each "
    "tenant becomes a partition of the datasets that it owns, and is removed from those that it deleted.",
)
def registry_changes(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    version = registry.version()  # before the owners: what changes in between is compared again
    now = registry_fingerprint(version)
    cursor = json.loads(context.cursor or "{}")
    loaded = (context.repository_def and context.repository_def.metadata) or {}
    stale = LOADED in loaded and loaded[LOADED].value != now
    reload = cursor.get("asked", {})
    if stale and (reload.get("for") != now or not 0 <= time.time() - reload["at"] < RELOAD_S):
        context.log.info("the registry has changed: reloading the code location")
        reload = {"for": now, "at": time.time()}
        _ask_to_reload()
    elif cursor.get("registry") == now:
        return dg.SkipReason(
            "the code location is being reloaded" if stale else "the assets match the registry"
        )
    matched = cursor.get("version", 0)
    owners = registry.list_owners(matched if matched <= version else 0)
    return dg.SensorResult(
        dynamic_partitions_requests=list(partition_requests(context.instance, owners)),
        cursor=json.dumps({"registry": now, "version": version, "asked": reload}),
    )


def _ask_to_reload() -> None:
    """Request a reload without waiting: a later tick sees its result."""
    with suppress(DagsterUserCodeUnreachableError):  # expected when not waiting
        DagsterGrpcClient(socket=str(load_settings().code_server_socket)).reload_code(timeout=1)


def partition_requests(
    instance: dg.DagsterInstance, owners: Mapping[str, frozenset[str]]
) -> Iterator[_Request]:
    """Requests that make the tenants' partitions match the registry.

    Args:
        owners: slugs of the tenants, by the datasets' slugs; none of a slug that was deleted.
    """
    for slug, tenants in owners.items():
        definition = tenant_partitions(slug)
        existing = set(instance.get_dynamic_partitions(str(definition.name)))
        if added := tenants - existing:
            yield definition.build_add_request(sorted(added))
        if removed := existing - tenants:
            yield definition.build_delete_request(sorted(removed))
