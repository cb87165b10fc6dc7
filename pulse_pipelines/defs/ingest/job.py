"""Job `ingest`: one run takes all due datasets of all due tenants along the path of an event."""

from collections.abc import Mapping, Sequence
from uuid import UUID

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from pulse_pipelines.defs.datasets.report import report_batch
from pulse_pipelines.defs.ingest.attempt import BatchAttempt
from pulse_pipelines.defs.resources import Catalog, Kafka, ObjectStore, Postgres
from pulse_pipelines.ingest import priority, steps
from pulse_pipelines.ingest.stages import Drained, Failure, Gated, Landed, Plan, Positions, Settled
from pulse_resources.errors import Terminal


@dg.op(
    description="Read the batch's offset ranges from Kafka in Spark tasks, keep the raw zone, validate "
    "against each dataset's schema, and write candidate Parquet files that no table refers to yet. "
    "Events that cannot land become dead letters with a reason.",
    tags={"kind": "pyspark"},
)
def drain_and_conform(
    context: dg.OpExecutionContext,
    attempt: BatchAttempt,
    pyspark: LazyPySparkResource,
    kafka: Kafka,
    object_store: ObjectStore,
) -> Drained:
    drained = steps.drain_and_conform(pyspark.spark_session, attempt.plan)
    counts = [count for topic in drained.topics for count in topic.partitions.values()]
    context.add_output_metadata(
        {
            "batch": attempt.batch_id,
            "attempt": attempt.attempt,
            "tenants": len({r.tenant_id for r in attempt.plan.ranges}),
            "drained": sum(count.drained for count in counts),
            "dead_letters": sum(count.dead_letters for count in counts),
            "candidate_files": sum(len(topic.candidates) for topic in drained.topics),
            "raw_objects": len({part.path for topic in drained.topics for part in topic.raw}),
        }
        | _failed(drained.plan, drained.failures)
    )
    return drained


@dg.op(
    description="Look every event id up among the dataset's claims. An event whose id has landed, or comes "
    "earlier in the batch, is a duplicate: counted and dropped. One beyond its tenant's monthly quota "
    "becomes a dead letter.",
    tags={"kind": "postgres"},
)
def dedup_gate(context: dg.OpExecutionContext, drained: Drained, postgres: Postgres) -> Gated:
    gated = steps.dedup_gate(drained)
    copies, over = _count(gated.verdicts.duplicates), _count(gated.verdicts.over_quota)
    context.add_output_metadata(
        {"duplicates": copies, "over_quota": over} | _failed(gated.plan, gated.failures)
    )
    return gated


@dg.op(
    description="Rewrite candidate files that hold duplicates, and stage the next metadata of all "
    "touched Iceberg tables in Spark tasks. Still invisible to readers.",
    tags={"kind": "iceberg"},
)
def land(
    context: dg.OpExecutionContext, gated: Gated, pyspark: LazyPySparkResource, object_store: ObjectStore
) -> Landed:
    landed = steps.land(pyspark.spark_session, gated)
    context.add_output_metadata(
        {"tables": len(landed.tables), "refused_datasets": len(landed.refused)}
        | _failed(landed.plan, landed.failures)
    )
    return landed


@dg.op(
    name="settle",
    description="Per tenant, one Postgres transaction makes the batch real: fence, swap the table "
    "pointers, claim the event ids, advance the positions, write dead letters and the ledger.",
    tags={"kind": "postgres"},
)
def settle_batch(
    context: dg.OpExecutionContext, landed: Landed, postgres: Postgres, catalog: Catalog
) -> Settled:
    settled = steps.settle(landed)
    context.add_output_metadata(
        {
            "landed": sum(tenant.landed for tenant in settled.tenants),
            "duplicates": sum(tenant.duplicates for tenant in settled.tenants),
            "dead_letters": sum(tenant.dead_letters for tenant in settled.tenants),
        }
        | _failed(settled.plan, settled.failures)
    )
    return settled


@dg.op(
    description="Send the deletions of full syncs that have settled: of the entities that they did not "
    "contain. A later batch settles them. A sync that would delete too much is held until a person "
    "decides.",
    tags={"kind": "kafka"},
)
def send_deletions(
    context: dg.OpExecutionContext, settled: Settled, kafka: Kafka, postgres: Postgres
) -> Settled:
    outcomes = steps.send_deletions(settled)
    for tenant, outcome in outcomes:
        if isinstance(outcome, Exception):  # the sensor `syncs` tries again
            context.log.warning("deletions of tenant %s were not all sent: %s", tenant.slug, outcome)
    sent = sum(outcome for _, outcome in outcomes if isinstance(outcome, int))
    context.add_output_metadata({"sent": sent})
    return settled


@dg.op(
    description="Publish settled dead letters to each tenant's events.dlq topic, keyed by their origin; "
    "repeated until the broker acknowledged.",
    tags={"kind": "kafka"},
)
def route_dead_letters(
    context: dg.OpExecutionContext, settled: Settled, kafka: Kafka, postgres: Postgres
) -> Settled:
    published, failures = steps.route_dead_letters(settled)
    context.add_output_metadata({"published": published} | _failed(settled.plan, failures))
    if failures:  # unpublished dead letters stay in Postgres; the sensor `dead_letter_sweep` retries
        context.log.warning("dead letters stay unpublished: %s", steps.sentences(settled.plan, failures))
    return settled


LIMIT_TAG, REPORTING = "pulse/lane", "reporting"
"""Tag by which dagster.yaml limits concurrent batches of a kind, and its value for runs without a limit."""
MOST_REPORTING = 2
"""Maximum number of runs that report while others ingest."""


@dg.op(
    description="Report what settled to Dagster: a materialization per dataset, tenant and day, and the "
    "checks of the datasets that were touched. The rows are queryable by then, so the run frees its slot "
    "for the next batch. Fails the run when a tenant could not be settled, so that the sensor "
    "starts another attempt for the rest."
)
def report(context: dg.OpExecutionContext, settled: Settled) -> None:
    if settled.plan.bulk:
        priority.lower_for_good()
    _free_slot(context.instance, context.run_id)
    unreported = report_batch(context, settled)
    steps.check_settled(settled)
    if unreported:
        raise Terminal(
            f"what settled of {len(unreported)} table(s) is not shown, the first: {unreported[0]}",
            fix="It is in the tables; materialize its partitions to show them",
            batch=settled.plan.batch_id,
        )


def _free_slot(instance: dg.DagsterInstance, run_id: str) -> None:
    """Free this run's slot for the next batch, unless `MOST_REPORTING` runs are reporting already."""
    reporting = dg.RunsFilter(tags={LIMIT_TAG: REPORTING}, statuses=[dg.DagsterRunStatus.STARTED])
    if instance.get_runs_count(reporting) < MOST_REPORTING:
        instance.add_run_tags(run_id, {LIMIT_TAG: REPORTING})


@dg.failure_hook(required_resource_keys={"attempt"})
def plan_next_attempt(context: dg.HookContext) -> None:
    attempt: BatchAttempt = context.resources.attempt
    attempt.give_up(str(context.op_exception))


@dg.job(
    description="One micro-batch: Kafka → validated rows → dedup → Iceberg, exactly once. Launched by the "
    "sensor `ingest_lag`; the run's tags name the batch and the attempt.",
    hooks={plan_next_attempt},
    executor_def=dg.in_process_executor,
    tags={"pulse/job": "ingest"},
)
def ingest() -> None:
    report(route_dead_letters(send_deletions(settle_batch(land(dedup_gate(drain_and_conform()))))))


def _count(positions: Mapping[UUID, Positions]) -> int:
    return sum(len(offsets) for partitions in positions.values() for offsets in partitions.values())


def _failed(plan: Plan, failures: Sequence[Failure]) -> dict[str, str]:
    return {"failures": steps.sentences(plan, failures)} if failures else {}
