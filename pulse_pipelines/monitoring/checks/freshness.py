"""Check `freshness`: how long each tenant's events wait, and what keeps them from settling."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

from confluent_kafka import KafkaException

from pulse_pipelines.ingest import plan
from pulse_pipelines.ingest.plan import IngestStatus
from pulse_pipelines.monitoring.checks.subject import CheckResult
from pulse_pipelines.monitoring.status import FRESHNESS, WAITING
from pulse_resources import kafka, postgres
from pulse_resources.settings import load_settings

LONGEST = timedelta(days=7)
"""Longer waits are not measured exactly."""

STUCK = """
SELECT DISTINCT r.tenant_id, b.batch_id, b.last_error
FROM ingest_batches b JOIN ingest_ranges r USING (batch_id)
WHERE (b.state = 'stuck' OR b.attempt > %s) AND b.state <> 'settled' AND r.settled_at IS NULL
"""
POSITIONS = """
SELECT tenant_id, partition, settled_offset - base_offset FROM ingest_positions WHERE tenant_id = ANY(%s)
"""


def check_freshness(*, ask_broker: bool) -> Mapping[UUID, CheckResult]:
    """Freshness of each tenant; tenants without data are left out.

    Args:
        ask_broker: include events that are in no batch yet, and topics that cannot be ingested.
    """
    limits = load_settings().checks
    with postgres.transaction("pulse_pipeline") as connection:
        latest = connection.execute(FRESHNESS).fetchall()
        waiting: dict[UUID, float] = dict(connection.execute(WAITING).fetchall())
        stuck = connection.execute(STUCK, [load_settings().ingest.max_attempts]).fetchall()
    results: dict[UUID, CheckResult] = defaultdict(lambda: CheckResult(grave=False))
    if ask_broker:
        _ask_broker(results, waiting)
    for tenant_id, seconds, ago in latest:
        results[tenant_id].numbers["longest_batch_seconds"] = round(seconds, 1)
        # A slow batch counts only while it is recent.
        if seconds > limits.late_seconds > ago:
            results[tenant_id].problems.append(
                f"the latest batch took {seconds:.0f} s from its oldest event to the table"
            )
    for tenant_id, seconds in waiting.items():
        result = results[tenant_id]
        result.numbers["longest_wait_seconds"] = round(seconds, 1)
        result.grave |= seconds > limits.very_late_seconds
        if seconds > limits.late_seconds:
            result.problems.append(f"its oldest event that is not settled has waited {seconds:.0f} s or more")
    for tenant_id, batch, error in stuck:
        _fail(results[tenant_id], f"batch {batch} is stuck: {error}; then run: pulse batch retry {batch}")
    return results


def _fail(result: CheckResult, problem: str) -> None:
    result.grave = True
    result.problems.append(problem)


def _ask_broker(results: Mapping[UUID, CheckResult], waiting: dict[UUID, float]) -> None:
    try:
        status = plan.ingest_status()
        for tenant_id, seconds in _waits(status):
            waiting[tenant_id] = max(seconds, waiting.get(tenant_id, 0.0))
    except KafkaException as error:
        with postgres.transaction("pulse_pipeline") as connection:
            for (tenant_id,) in connection.execute("SELECT tenant_id FROM pdm_tenants"):
                _fail(results[tenant_id], f"the broker does not answer: {error.args[0].str()}")
        return
    for alarm in status.alarms:
        problem = f"partition {alarm.partition}: {alarm.problem}. {alarm.fix}"
        _fail(results[alarm.tenant.tenant_id], problem)


def _waits(status: IngestStatus) -> Iterator[tuple[UUID, float]]:
    """Lower bound of the wait of each late tenant's oldest event.

    The broker is asked for offsets by time, at moments that lie twice as far back each time: one request for
    all partitions, without reading an event.
    """
    late = [tenant_id for tenant_id, lag in status.lag.items() if lag]
    with postgres.transaction("pulse_pipeline") as connection:
        rows = connection.execute(POSITIONS, [late]).fetchall()
    where = {(status.tenants[t].topic, partition): (t, settled) for t, partition, settled in rows}
    ends = kafka.offsets(where, "latest")
    late_partitions = {
        pair: position for pair, position in where.items() if _has_messages_after(ends[pair], position[1])
    }
    age = timedelta(seconds=load_settings().checks.late_seconds)
    now = datetime.now(UTC)
    while late_partitions and age < LONGEST:
        firsts = kafka.offsets(late_partitions, now - age)
        # -1: every event in the partition is older.
        late_partitions = {
            pair: position
            for pair, position in late_partitions.items()
            if firsts[pair] == -1 or _has_messages_after(firsts[pair], position[1])
        }
        for tenant_id in {tenant_id for tenant_id, _ in late_partitions.values()}:
            yield tenant_id, age.total_seconds()
        age *= 2


def _has_messages_after(offset: int | KafkaException, position: int) -> bool:
    return isinstance(offset, int) and offset > position
