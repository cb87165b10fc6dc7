"""The registry sensor: a dataset slug that is new becomes an asset without anyone's hand."""

import dagster as dg
from dagster._grpc.client import DagsterGrpcClient

from pulse_pipelines import registry
from pulse_pipelines.defs.datasets.assets import asset_key, tenant_partitions
from pulse_resources.settings import load_settings


@dg.sensor(
    minimum_interval_seconds=15,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Compares the registry with the loaded assets: reloads this code location when a dataset "
    "slug is new, and adds each tenant to the partitions of the datasets that it owns.",
)
def registry_changes(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    owners = registry.dataset_owners()
    loaded = set(context.repository_def.asset_graph.get_all_asset_keys()) if context.repository_def else set()
    fresh = [slug for slug in owners if asset_key(slug) not in loaded]
    requests = []
    for slug, tenants in owners.items():
        name = tenant_partitions(slug).name or ""
        known = set(context.instance.get_dynamic_partitions(name))
        if missing := [tenant for tenant in tenants if tenant not in known]:
            requests.append(tenant_partitions(slug).build_add_request(missing))
    if fresh:
        settings = load_settings().dagster
        DagsterGrpcClient(port=settings.code_server_port, host=settings.host).reload_code(timeout=60)
        context.log.info("reloaded the code location for new datasets: %s", ", ".join(fresh))
    if not requests:
        return dg.SkipReason("the assets match the registry")
    return dg.SensorResult(dynamic_partitions_requests=requests)
