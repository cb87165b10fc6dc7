"""Attempts at a batch: begin, own, fence and time-limit one, and schedule the next.

While an attempt runs it holds a session advisory lock, its *lease*: when the process dies, the lock is
gone, whatever any clock says. An attempt that is paused beyond its lease is fenced at settle.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.batch import BatchKind, OffsetRange
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest.stages import PATIENCE, Plan
from pulse_pipelines.tables import dataset_rows
from pulse_resources import postgres
from pulse_resources.errors import Fenced
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.process import watchdog
from pulse_resources.settings import load_settings

OPEN_BATCHES = """
SELECT batch_id, attempt, state, kind, not_before <= now() AS ready, last_error
FROM ingest_batches WHERE state <> 'settled' ORDER BY planned_at
"""
BEGIN = """
UPDATE ingest_batches SET state = 'running', started_at = now()
WHERE batch_id = %s AND attempt = %s AND state = 'planned'
"""
NEXT_ATTEMPT = """
UPDATE ingest_batches
SET state = CASE WHEN attempt >= %(max_attempts)s THEN 'stuck' ELSE 'planned' END,
    attempt = CASE WHEN attempt >= %(max_attempts)s THEN attempt ELSE attempt + 1 END,
    not_before = now() + make_interval(secs => CASE WHEN attempt >= %(max_attempts)s THEN %(stuck_retry)s
                                               ELSE %(backoff)s * 2 ^ (attempt - 1) END),
    last_error = %(error)s || CASE WHEN %(is_cause)s OR last_cause IS NULL THEN ''
                                   ELSE '; before that: ' || last_cause END,
    last_cause = CASE WHEN %(is_cause)s THEN %(error)s ELSE last_cause END
WHERE batch_id = %(batch)s AND attempt = %(attempt)s AND state IN ('planned', 'running')
"""
UNSTICK = """
UPDATE ingest_batches SET state = 'planned', attempt = attempt + 1, not_before = now()
WHERE batch_id = %s AND state = 'stuck'
"""
FENCE = """
SELECT 1 FROM ingest_batches WHERE batch_id = %s AND attempt = %s AND state = 'running' FOR SHARE
"""
KIND = "SELECT kind FROM ingest_batches WHERE batch_id = %s"
UNSETTLED_RANGES = """
SELECT tenant_id, partition, start_offset AS start, end_offset AS "end" FROM ingest_ranges
WHERE batch_id = %s AND settled_at IS NULL
"""
WAITING_IN = """
SELECT slug, sum(end_offset - start_offset)::int8 FROM ingest_ranges JOIN pdm_tenants USING (tenant_id)
WHERE batch_id = %s AND settled_at IS NULL GROUP BY slug ORDER BY slug
"""
TENANTS = """
SELECT t.tenant_id, t.slug, max(p.topic_id), jsonb_object_agg(p.partition, p.base_offset), max(p.event_bytes)
FROM pdm_tenants t JOIN ingest_positions p USING (tenant_id)
WHERE t.tenant_id = ANY(%s) GROUP BY t.tenant_id, t.slug
"""


@dataclass(frozen=True)
class OpenBatch:
    batch_id: str
    attempt: int
    state: str
    kind: str
    """A `domain.batch.BatchKind`."""
    ready: bool
    """Whether its back-off is over."""
    last_error: str | None

    @property
    def stuck(self) -> bool:
        """Whether it failed more often than a short outage explains; also true while it is tried again."""
        return self.state == "stuck" or self.attempt > load_settings().ingest.max_attempts


def open_batches() -> list[OpenBatch]:
    """Batches that are not settled, oldest first."""
    with postgres.transaction("pulse_pipeline") as connection:
        return postgres.select(connection, OpenBatch, OPEN_BATCHES)


def waiting_in(batch: str) -> dict[str, int]:
    """The number of the batch's unsettled events, by tenant slug."""
    with postgres.transaction("pulse_pipeline") as connection:
        return dict(connection.execute(WAITING_IN, [batch]).fetchall())


def is_leased(batch: str) -> bool:
    """Whether a living process works on the batch."""
    with postgres.transaction("pulse_pipeline") as connection:
        return not locks.take(connection, Lock.BATCH, batch)


@contextlib.contextmanager
def hold_attempt(batch: str, number: int) -> Iterator[Plan]:
    """Own one attempt at a batch while the block runs.

    Raises:
        Fenced: another process works on it, or a newer attempt exists.
    """
    with locks.session(Lock.BATCH, batch) as lease:
        if lease is None or lease.execute(BEGIN, [batch, number]).rowcount != 1:
            raise Fenced("another attempt owns this batch", batch=batch, attempt=number)
        yield load_plan(batch, number)


def fence(connection: postgres.Connection, plan: Plan) -> None:
    """Check that this attempt owns the batch, and lock out newer ones until the transaction ends.

    Raises:
        Fenced: a newer attempt owns it.
    """
    if connection.execute(FENCE, [plan.batch_id, plan.attempt]).fetchone() is None:
        raise Fenced("a newer attempt owns this batch", batch=plan.batch_id, attempt=plan.attempt)


@contextlib.contextmanager
def bounded(batch: str, number: int) -> Iterator[None]:
    """Kill this process if the block takes longer than `ingest.attempt_seconds`; a later attempt has longer.

    A call that hangs (such as a client waiting for a wall clock that was set back) would hold the batch, and
    a slot for runs permanently. The sensor treats it like any attempt whose process died.
    """
    seconds = load_settings().ingest.attempt_seconds * min(number, PATIENCE)
    with watchdog.watched(f"attempt {number} at batch {batch}", seconds):
        yield


def load_plan(batch: str, number: int) -> Plan:
    """The unsettled ranges of a batch and the datasets of their tenants, as they are now."""
    with postgres.transaction("pulse_pipeline") as connection:
        ((kind,),) = connection.execute(KIND, [batch])
        ranges = tuple(postgres.select(connection, OffsetRange, UNSETTLED_RANGES, [batch]))
        tenant_ids = list({r.tenant_id for r in ranges})
        tenants = connection.execute(TENANTS, [tenant_ids]).fetchall()
        owned: dict[UUID, list[Dataset]] = defaultdict(list)
        for dataset in dataset_rows.read(connection, "d.tenant_id = ANY(%s)", [tenant_ids]):
            owned[dataset.tenant_id].append(dataset)
    scopes = {
        tenant_id: Scope(
            Tenant(tenant_id, slug),
            tuple(owned[tenant_id]),
            topic_id,
            {int(partition): base for partition, base in bases.items()},
            event_bytes=event_bytes,
        )
        for tenant_id, slug, topic_id, bases, event_bytes in tenants
    }
    return Plan(batch, number, ranges, scopes, kind != BatchKind.QUICK)


def next_attempt(batch: str, number: int, error: str, *, is_cause: bool = True) -> None:
    """Give up an unfinished attempt and schedule the next after a back-off (a longer one if it is stuck).

    Args:
        is_cause: whether the error is the cause; if not (the run vanished), the last cause stays.
    """
    settings = load_settings().ingest
    with postgres.transaction("pulse_pipeline") as connection:
        connection.execute(
            NEXT_ATTEMPT,
            {
                "batch": batch,
                "attempt": number,
                "error": error[:2000].replace("\0", ""),
                "is_cause": is_cause,
                "max_attempts": settings.max_attempts,
                "backoff": settings.retry_backoff_seconds,
                "stuck_retry": settings.stuck_retry_seconds,
            },
        )


def unstick(batch: str) -> bool:
    """Plan a stuck batch again, at once; False when it is not stuck."""
    with postgres.transaction("pulse_pipeline") as connection:
        return connection.execute(UNSTICK, [batch]).rowcount == 1
