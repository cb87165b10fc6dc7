"""Moves of datasets to a newer schema, here: as an attempt does it, or as the sensor and the job do."""

from typing import Any

import dagster as dg

from chaos import inside
from chaos.surroundings import superuser
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from support.ingest import Owner
from support.lake import spark


def moved(tenant: Tenant, slug: str, schema_uri: str) -> Dataset:
    """Move a dataset, whether or not that writes data files again; nothing of it is recorded."""
    return inside.move(spark, tenant, slug, schema_uri)


def requested_runs(owner: Owner, instance: dg.DagsterInstance) -> list[dg.RunRequest]:
    """What the sensor asks for the tenant in one tick."""
    from pulse_pipelines.defs.moves.sensor import dataset_moves

    requests = dataset_moves.evaluate_tick(dg.build_sensor_context(instance)).run_requests or []
    return [request for request in requests if request.tags["pulse/tenant"] == owner.tenant.slug]


def run(request: dg.RunRequest, instance: dg.DagsterInstance, **how: Any) -> dg.ExecuteInProcessResult:
    """Run what the sensor asked for."""
    from pulse_pipelines.definitions import defs

    tags = {**request.tags, "dagster/run_key": str(request.run_key)}
    job = defs().get_job_def("move")
    return job.execute_in_process(run_config=request.run_config, instance=instance, tags=tags, **how)


def ready(owner: Owner) -> None:
    """The back-off of the tenant's moves is over."""
    with superuser() as connection:
        over = "UPDATE dataset_moves SET not_before = now() WHERE tenant_id = %s"
        connection.execute(over, [owner.tenant.tenant_id])
