"""Syncs that no batch advances: decided by a person, without messages, or left by a run that died."""

from collections.abc import Iterator

import dagster as dg

from pulse_pipelines import registry
from pulse_pipelines.defs.launches import tenant_tags, unfinished
from pulse_pipelines.defs.resources import Kafka, Postgres
from pulse_pipelines.ingest import spans, sync_deletions
from pulse_resources.errors import Transient


class SyncsConfig(dg.Config):
    tenants: list[str]


@dg.op(
    description="Send the deletions of full syncs that have settled, or hold them for a person.",
    tags={"kind": "kafka"},
)
def move_on(context: dg.OpExecutionContext, config: SyncsConfig, kafka: Kafka, postgres: Postgres) -> None:
    failed = []
    with spans.exported():
        for tenant, outcome in sync_deletions.send(map(registry.find_tenant, config.tenants)):
            if isinstance(outcome, Exception):
                failed.append(f"tenant {tenant.slug}: {outcome}")
            else:
                context.log.info("sent %d deletions of tenant %s", outcome, tenant.slug)
    if failed:
        raise Transient(
            f"{len(failed)} tenant(s) whose syncs are blocked, the first: {failed[0]}",
            fix="Nothing is deleted by them meanwhile, and they are tried again by themselves",
        )


@dg.job(
    description="Advances full syncs that no batch advances. Launched by the sensor `syncs`.",
    executor_def=dg.in_process_executor,
    tags={"pulse/job": "syncs"},
)
def move_syncs_on() -> None:
    move_on()


@dg.sensor(
    job=move_syncs_on,
    minimum_interval_seconds=15,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Looks for full syncs that have settled, and whose deletions no living run has sent.",
)
def syncs(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
    due = [tenant.slug for tenant in sync_deletions.due()]
    if not due or unfinished(context.instance, move_syncs_on):
        yield dg.SkipReason("no sync waits to be moved on, or a run is at it")
        return
    yield dg.RunRequest(run_config={"ops": {"move_on": {"config": {"tenants": due}}}}, tags=tenant_tags(due))
