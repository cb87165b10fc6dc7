"""Overdue dead letters: published by a run of their own when the batch's run died after settle."""

from collections.abc import Iterator

import dagster as dg

from pulse_pipelines import registry
from pulse_pipelines.defs.launches import tenant_tags, unfinished
from pulse_pipelines.defs.resources import Kafka, Postgres
from pulse_pipelines.ingest import dead_letter_topic
from pulse_pipelines.ingest.attempts import is_leased
from pulse_pipelines.registry import failed_work
from pulse_pipelines.registry.failed_work import Failed, Work
from pulse_resources.errors import Transient

JOB, TASK = "publish_dead_letters", "dead letters"
"""Job and task of a tenant's recorded failures."""
RETRY_S, RETRY_MAX_S = 60.0, 900.0
"""First and longest wait before a failed tenant is retried."""
PATIENCE_S = 30.0
"""A run publishes right after settling; dead letters still unpublished after this are overdue."""


class OverdueConfig(dg.Config):
    tenants: list[str]


@dg.op(
    description="Publish the unpublished dead letters of some tenants. A failure for a tenant becomes an "
    "alert, is tried again later, and fails the run after those of the other tenants are published.",
    tags={"kind": "kafka"},
)
def publish_overdue(
    context: dg.OpExecutionContext, config: OverdueConfig, kafka: Kafka, postgres: Postgres
) -> None:
    failed = []
    for tenant, outcome in dead_letter_topic.publish_by_tenant(map(registry.find_tenant, config.tenants)):
        work = Work(JOB, tenant, TASK)
        if isinstance(outcome, Exception):
            failed.append(Failed.by(work, outcome))
            failed_work.note(failed[-1:], first_s=RETRY_S, most_s=RETRY_MAX_S)
            context.log.error("%s", failed[-1])
        else:
            failed_work.forget(work)
            context.log.info("published %s dead letters of tenant %s", outcome, tenant.slug)
    if failed:
        raise Transient(
            f"{len(failed)} tenant(s) whose dead letters stay unpublished, the first: {failed[0]}",
            fix="They are safe, and tried again by themselves",
        )


@dg.job(
    description="Publish dead letters that settled but did not reach their topic. Launched by the sensor "
    "`dead_letter_sweep`.",
    executor_def=dg.in_process_executor,
    tags={"pulse/job": "dead_letters"},
)
def publish_dead_letters() -> None:
    publish_overdue()


@dg.sensor(
    name="dead_letter_sweep",
    job=publish_dead_letters,
    minimum_interval_seconds=15,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Looks for settled dead letters that no living run will publish.",
)
def overdue_dead_letters(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
    overdue = dead_letter_topic.overdue(PATIENCE_S)
    waiting = {failure.work.tenant for failure in failed_work.standing(JOB) if failure.backing_off}
    overdue_by_tenant = {
        tenant.slug: batches
        for tenant, batches in overdue.items()
        if tenant not in waiting and not any(is_leased(batch) for batch in batches)
    }
    if not overdue_by_tenant or unfinished(context.instance, publish_dead_letters):
        yield dg.SkipReason("every settled dead letter is published, being published, or tried again later")
        return
    yield dg.RunRequest(
        run_config={"ops": {"publish_overdue": {"config": {"tenants": sorted(overdue_by_tenant)}}}},
        tags=tenant_tags(overdue_by_tenant),
    )
