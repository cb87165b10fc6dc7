"""The dead-letter sweep: publishes what a run that died after settle left unpublished."""

from collections.abc import Iterator

import dagster as dg

from pulse_pipelines import registry
from pulse_pipelines.defs.tags import tenant_tags
from pulse_pipelines.stages import dead_letter
from pulse_pipelines.stages.attempts import lease_held
from pulse_resources import kafka

PATIENCE_S = 30.0
"""A run publishes right after it settled; what it has not published by then may be the sweep's."""


UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]


class SweepConfig(dg.Config):
    tenants: list[str]


@dg.op(description="Publish the unpublished dead letters of some tenants.", tags={"kind": "kafka"})
def publish_overdue(context: dg.OpExecutionContext, config: SweepConfig) -> None:
    producer = kafka.producer()
    for slug in config.tenants:
        count = dead_letter.publish_tenant(producer, registry.find_tenant(slug))
        context.log.info("published %s dead letters of tenant %s", count, slug)


@dg.job(
    description="Publish dead letters that settled but did not reach their topic. Launched by the sensor "
    "`dead_letter_sweep`.",
    executor_def=dg.in_process_executor,
    tags={"pulse/job": "dead_letters"},
)
def publish_dead_letters() -> None:
    publish_overdue()


@dg.sensor(
    job=publish_dead_letters,
    minimum_interval_seconds=15,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Looks for settled dead letters that no living run is going to publish.",
)
def dead_letter_sweep(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
    overdue = dead_letter.overdue(PATIENCE_S)
    left = {
        tenant.slug: batches
        for tenant, batches in overdue.items()
        if not any(lease_held(batch) for batch in batches)
    }
    running = context.instance.get_runs(
        dg.RunsFilter(job_name=publish_dead_letters.name, statuses=UNFINISHED), limit=1
    )
    if not left or running:
        yield dg.SkipReason("every settled dead letter is published, or being published")
        return
    yield dg.RunRequest(
        run_config={"ops": {"publish_overdue": {"config": {"tenants": sorted(left)}}}},
        tags=tenant_tags(left),
    )
