"""The steps of an attempt at a batch, in their order, as plain functions.

The ops of Dagster's job `ingest` call them one by one; `run` takes one attempt through all of them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest import (
    attempts,
    dead_letter_topic,
    dedup,
    drain,
    land as landing,
    late_dead_letters,
    settle as settling,
    spans,
    staging,
    sync_deletions,
)
from pulse_pipelines.ingest.stages import Drained, Failure, Gated, Landed, Plan, Settled
from pulse_resources.errors import Transient
from pulse_resources.process.faults import fail_point
from pulse_resources.settings import load_settings

SentDeletions = Sequence[tuple[Tenant, int | Exception]]
"""By tenant: the number of deletions that were sent, or the error that kept them."""


@contextmanager
def owned(batch_id: str, attempt: int) -> Iterator[Plan]:
    """Own an attempt while the block runs; gives the plan that it has to settle."""
    with (
        spans.exported(),
        attempts.bounded(batch_id, attempt),
        attempts.hold_attempt(batch_id, attempt) as plan,
        staging.tables(plan),
        spans.attempt(plan) as traced,
    ):
        yield traced


def drain_and_conform(session: SparkSession, plan: Plan) -> Drained:
    """Read the plan's ranges and write candidate files."""
    with spans.stage("drain_and_conform", plan) as tell:
        drained = drain.drain(session, plan, load_settings().spark.parallelism)
        tell(drained.plan, drained.failures)
    fail_point("after.drain_and_conform")
    return drained


def dedup_gate(drained: Drained) -> Gated:
    """Separate duplicates, and events that exceed a quota, from those that may land."""
    with spans.stage("dedup_gate", drained.plan) as tell:
        gated = dedup.gate(drained)
        tell(gated.plan, gated.failures)
    fail_point("after.dedup_gate")
    return gated


def land(session: SparkSession, gated: Gated) -> Landed:
    """Drop duplicates from candidate files, and stage the next metadata of every table."""
    with spans.stage("land", gated.plan) as tell:
        landed = landing.land(session, gated, load_settings().spark.parallelism)
        tell(landed.plan, landed.failures)
    fail_point("after.land")
    return landed


def settle(landed: Landed) -> Settled:
    """Commit everything, in one transaction per tenant."""
    with spans.stage("settle", landed.plan) as tell:
        settled = settling.settle(*late_dead_letters.stage(landed))
        tell(settled.plan, settled.failures)
    spans.settled(settled)
    fail_point("after.settle")
    return settled


def send_deletions(settled: Settled) -> SentDeletions:
    """Send the deletions of full syncs that have settled, for the batch's tenants."""
    tenant_ids = {tenant.tenant_id for tenant in settled.tenants}
    outcomes = list(
        sync_deletions.send(tenant for tenant in sync_deletions.due() if tenant.tenant_id in tenant_ids)
    )
    fail_point("after.send_deletions")
    return outcomes


def route_dead_letters(settled: Settled) -> tuple[int, tuple[Failure, ...]]:
    """Publish the dead letters of the batch's tenants; returns their number, and the failures."""
    with spans.stage("route_dead_letters", settled.plan) as tell:
        published, failures = dead_letter_topic.publish(settled)
        tell(settled.plan, failures)
    fail_point("after.route_dead_letters")
    return published, failures


def check_settled(settled: Settled) -> None:
    """Raise Transient if a tenant's part is not settled, so that another attempt follows."""
    if settled.failures:
        raise Transient(
            f"{len(settled.failures)} tenant(s) not settled: {sentences(settled.plan, settled.failures)}",
            batch=settled.plan.batch_id,
            attempt=settled.plan.attempt,
        )


def sentences(plan: Plan, failures: Sequence[Failure]) -> str:
    """Failures in words, each with its tenant and step."""
    owners = ((plan.scopes[failure.tenant_id].tenant.slug, failure) for failure in failures)
    return "; ".join(f"tenant {slug} at {failure.step}: {failure.error}" for slug, failure in owners)


def run(session: SparkSession, batch_id: str, attempt: int) -> Settled:
    """Take one attempt through all steps. One that fails is given up, so that the next may follow."""
    with owned(batch_id, attempt) as plan:
        try:
            settled = settle(land(session, dedup_gate(drain_and_conform(session, plan))))
            send_deletions(settled)
            route_dead_letters(settled)
            check_settled(settled)
        except Exception as error:
            attempts.next_attempt(batch_id, attempt, str(error))
            raise
    return settled
