"""Lag sensor: launches due batches, and new attempts of batches whose run failed or vanished.

Dagster never forgets a run key, so every attempt has its own key. Yielding a key repeatedly until the
batch is running is harmless, and survives a daemon that died between planning and launching.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

import dagster as dg

from pulse_pipelines.defs.ingest.job import LIMIT_TAG, ingest
from pulse_pipelines.defs.launches import tenant_tags, vanished
from pulse_pipelines.domain.batch import divide, due, plan, share_out
from pulse_pipelines.ingest import attempts, costs, plan as planning
from pulse_pipelines.ingest.attempts import OpenBatch
from pulse_pipelines.ingest.plan import IngestStatus
from pulse_resources.errors import PulseError
from pulse_resources.settings import load_settings

OVERLAP = 2
"""Concurrent batches of a kind; dagster.yaml limits the runs to the same number."""
WORTH_A_RUN = 100_000
"""Events that justify a run of their own."""


@dg.sensor(
    job=ingest,
    minimum_interval_seconds=load_settings().ingest.sensor_seconds,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Watches the lag of every tenant's topic. A topic is due at 10,000 waiting events (fewer, if "
    "they are larger than 8 KiB) or 30 s after its first one may have come (settings), and at once when a "
    "pipe has sent a sync to its end. All that are due by time go into one batch; those due by number go "
    "into another, which runs beside it. A tenant whose batches have many files or columns has batches of "
    "its own. Batches whose run failed or vanished get a new attempt after a back-off; after five they are "
    "stuck, which is an alert, and tried less often.",
)
def ingest_lag(context: dg.SensorEvaluationContext) -> dg.SensorResult:
    for batch in attempts.open_batches():
        try:
            _give_up_dead_attempt(context, batch)
        except Exception:  # one batch must not keep the others, and waiting events, from being planned
            context.log.exception("batch %s, attempt %s was not looked at", batch.batch_id, batch.attempt)
    evaluated_at = time.time()
    status = planning.ingest_status()
    for alarm in status.alarms:
        where = alarm.tenant.slug, alarm.partition
        context.log.error("tenant %s, partition %s: %s. %s", *where, alarm.problem, alarm.fix)
    waiting = _plan_due(status, LagCursor.of(context.cursor, evaluated_at), evaluated_at)
    return dg.SensorResult(
        run_requests=list(_run_requests(attempts.open_batches())),
        cursor=LagCursor(evaluated_at, waiting).cursor(),
    )


@dataclass(frozen=True)
class LagCursor:
    """Cursor of the sensor: its last evaluation, and since when topics wait, in Unix seconds."""

    evaluated_at: float
    waiting: Mapping[UUID, float]
    """By tenant: the earliest time at which its first waiting event can have arrived."""

    @staticmethod
    def of(cursor: str | None, now: float) -> "LagCursor":
        """Parse a cursor; a clock that was set back does not lengthen any wait."""
        stored = json.loads(cursor or "{}")
        waiting = {UUID(hex=key): min(since, now) for key, since in stored.get("waiting", {}).items()}
        return LagCursor(min(stored.get("looked", now), now), waiting)

    def cursor(self) -> str:
        """Serialize the cursor for Dagster."""
        waiting = {tenant_id.hex: since for tenant_id, since in self.waiting.items()}
        return json.dumps({"looked": self.evaluated_at, "waiting": waiting})


def _plan_due(status: IngestStatus, last: LagCursor, now: float) -> dict[UUID, float]:
    """Plan batches for due topics; returns since when the topics left over have waited."""
    settings = load_settings().ingest
    # Events first seen now may have arrived right after the last evaluation.
    waiting = {tenant_id: last.waiting.get(tenant_id, last.evaluated_at) for tenant_id in status.waiting}
    since = waiting | dict.fromkeys(status.sent_whole, 0.0)
    rows, seconds = settings.flush_rows, settings.flush_seconds
    for kind in due(status.backlogs, since, now, flush_rows=rows, flush_seconds=seconds):
        cost = costs.tenant_costs([backlog.tenant_id for backlog in kind])
        shared = share_out([b for b in kind if b.tenant_id not in cost.costly], OVERLAP, WORTH_A_RUN)
        groups = [
            part
            for group in shared
            for part in divide(group, cost.schema_bytes, costs.MOST_BATCH_SCHEMA_BYTES)
        ]
        for group in (*groups, *([b] for b in kind if b.tenant_id in cost.costly)):
            planning.plan_batch(plan(group, settings.batch_max_rows), status, cost)
            for backlog in group:
                del waiting[backlog.tenant_id]
    return waiting


def _run_requests(batches: list[OpenBatch]) -> Iterator[dg.RunRequest]:
    for batch in batches:
        if batch.state == "planned" and batch.ready:
            yield dg.RunRequest(
                run_key=run_key(batch),
                run_config=run_config(batch.batch_id, batch.attempt),
                tags={
                    "pulse/batch": batch.batch_id,
                    "pulse/attempt": str(batch.attempt),
                    LIMIT_TAG: batch.kind,
                }
                | tenant_tags(attempts.waiting_in(batch.batch_id)),
            )


def run_key(batch: OpenBatch) -> str:
    return f"{batch.batch_id}:{batch.attempt}"


def run_config(batch_id: str, attempt: int) -> dict[str, object]:
    """Run config of `ingest` for one attempt at one batch."""
    return {"resources": {"attempt": {"config": {"batch_id": batch_id, "attempt": attempt}}}}


def _give_up_dead_attempt(context: dg.SensorEvaluationContext, batch: OpenBatch) -> None:
    if batch.state == "running":
        if not attempts.is_leased(batch.batch_id):
            _give_up(context, batch, "the run died: its lease on the batch is gone")
    elif batch.state == "planned" and batch.ready:
        if (status := vanished(context.instance, run_key(batch), batch.attempt)) is not None:
            _give_up(context, batch, f"the run ended before it began the batch: {status.value}")
    elif batch.state == "stuck" and batch.ready:
        attempts.unstick(batch.batch_id)
    elif batch.state == "stuck":
        error = PulseError(
            f"batch is stuck: {batch.last_error}",
            fix=f"It is tried again from time to time; at once by: pulse batch retry {batch.batch_id}",
            batch=batch.batch_id,
        )
        context.log.error("%s", error)


def _give_up(context: dg.SensorEvaluationContext, batch: OpenBatch, why: str) -> None:
    context.log.warning("batch %s, attempt %s: %s", batch.batch_id, batch.attempt, why)
    attempts.next_attempt(batch.batch_id, batch.attempt, why, is_cause=False)
