"""Planning of batches: compare positions with the broker's offsets, and record batches of offset ranges.

A batch is planned in one transaction that moves `planned_offset`; two planners can therefore never
take the same offsets. A tenant has one open batch at a time.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, TypeGuard
from uuid import UUID

from confluent_kafka import KafkaException

from pulse_pipelines.domain.batch import Backlog, OffsetRange, batch_id
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest.costs import TenantCosts, batch_kind, tenant_costs
from pulse_pipelines.tables import ledger
from pulse_resources import kafka, postgres
from pulse_resources.errors import Terminal
from pulse_resources.process.faults import fail_point

_log = logging.getLogger("pulse.plan")

# The last column: a ledger range at or beyond the planned position, which must not exist (an alarm).
POSITIONS = """
SELECT t.tenant_id, t.slug, p.partition, p.planned_offset AS planned, p.settled_offset AS settled, p.topic_id,
    p.base_offset AS base, p.event_bytes, (
    SELECT min(r.start_offset) FROM ingest_ranges r
    WHERE (r.tenant_id, r.partition) = (p.tenant_id, p.partition) AND r.start_offset >= p.planned_offset
    ) AS ahead
FROM pdm_tenants t JOIN ingest_positions p USING (tenant_id)
WHERE %(tenants)s::uuid[] IS NULL OR t.tenant_id = ANY (%(tenants)s)
ORDER BY t.tenant_id, p.partition
"""
# No more of these will come, so that waiting gains nothing.
SENT_WHOLE = """
SELECT DISTINCT tenant_id FROM entity_syncs WHERE pipe IS NOT NULL
    AND (state = 'sent' AND settled_at IS NULL OR state = 'deleting' AND swept_to IS NOT NULL)
"""
# The same ranges may have been a batch before, which `accept-loss` emptied: it becomes another attempt.
PLAN_BATCH = """
INSERT INTO ingest_batches AS b (batch_id, kind) VALUES (%s, %s)
ON CONFLICT (batch_id) DO UPDATE SET state = 'planned', attempt = b.attempt + 1, planned_at = now(),
    kind = EXCLUDED.kind, not_before = now(), started_at = NULL, settled_at = NULL, last_error = NULL,
    last_cause = NULL
WHERE b.state = 'settled' AND NOT EXISTS (SELECT FROM ingest_ranges r WHERE r.batch_id = b.batch_id)
"""


@dataclass(frozen=True)
class Alarm:
    """A topic that cannot be ingested without an operator's decision. Never skipped silently."""

    tenant: Tenant
    partition: int
    problem: str
    fix: str


@dataclass(frozen=True)
class IngestStatus:
    """The positions of all topics compared with the broker: backlogs, lag, and alarms."""

    backlogs: tuple[Backlog, ...]
    """Only of tenants without an open batch."""
    waiting: frozenset[UUID]
    """Tenants with events that are in no batch yet, including tenants with an open batch."""
    sent_whole: frozenset[UUID]
    """Tenants with a sync of a pipe, or deletions of one, sent to the end and not settled: due at once."""
    tenants: Mapping[UUID, Tenant]
    topic_ids: Mapping[str, str]
    """The broker's ids of the topics with a backlog."""
    bases: Mapping[tuple[str, int], int]
    """What is added to the broker's offsets, by topic and partition."""
    alarms: tuple[Alarm, ...]
    lag: Mapping[UUID, int]
    """Unsettled events by tenant; a tenant is missing if the broker did not answer for all its partitions."""


def ingest_status(tenant_ids: Collection[UUID] | None = None) -> IngestStatus:
    """Compare the positions of topics with the broker, in three requests for any number of tenants.

    Args:
        tenant_ids: the tenants to compare; None: all.
    """
    chosen = None if tenant_ids is None else list(tenant_ids)
    with postgres.transaction("pulse_pipeline") as connection:
        rows = postgres.select(connection, _Position, POSITIONS, {"tenants": chosen})
        sent_whole = frozenset(tenant_id for (tenant_id,) in connection.execute(SENT_WHOLE))
    tenants = {row.tenant_id: Tenant(row.tenant_id, row.slug) for row in rows}
    counts = kafka.partition_counts(None if chosen is None else [t.topic for t in tenants.values()])
    rows += _new_partitions(rows, tenants, counts)
    partitions = [(tenants[row.tenant_id].topic, row.partition) for row in rows]
    bases = dict(zip(partitions, (row.base for row in rows), strict=True))
    ends = _positions(kafka.offsets(partitions, "latest"), bases)
    # Without a backlog, retention cannot have removed events that were still to be ingested.
    waits = [pair for row, pair in zip(rows, partitions, strict=True) if _beyond(ends[pair], row.planned)]
    starts = _positions(kafka.offsets(waits, "earliest"), bases)
    ranges: dict[UUID, list[OffsetRange]] = defaultdict(list)
    event_bytes: Counter[UUID] = Counter()
    alarms: list[Alarm] = []
    busy = {row.tenant_id for row in rows if row.planned != row.settled}
    for row in rows:
        tenant = tenants[row.tenant_id]
        where = tenant.topic, row.partition
        start, end = starts.get(where, row.planned), ends[where]
        if row.ahead is not None:
            alarms.append(_ledger_ahead(tenant, row))
        elif problem := _problem(row, counts.get(tenant.topic), start, end):
            alarms.append(_lost(tenant, row, problem))
        elif _beyond(end, row.planned) and row.tenant_id not in busy:
            offsets = OffsetRange(row.tenant_id, row.partition, row.planned, end)
            ranges[row.tenant_id].append(offsets)
            event_bytes[row.tenant_id] = max(event_bytes[row.tenant_id], row.event_bytes)
    ids = kafka.topic_ids(tenants[tenant_id].topic for tenant_id in ranges)
    for row in rows:
        current = ids.get(tenants[row.tenant_id].topic)
        if row.tenant_id in ranges and row.topic_id and current != row.topic_id:
            problem = "the topic was recreated: its offsets are not those that were ingested"
            alarms.append(_lost(tenants[row.tenant_id], row, problem))
    stopped = {alarm.tenant.tenant_id for alarm in alarms}
    backlogs = tuple(
        Backlog(tenant_id, tuple(due), event_bytes[tenant_id])
        for tenant_id, due in ranges.items()
        if tenant_id not in stopped
    )
    waiting = frozenset(row.tenant_id for row, pair in zip(rows, partitions, strict=True) if pair in starts)
    lag = _lag(rows, tenants, ends)
    return IngestStatus(backlogs, waiting, sent_whole, tenants, ids, bases, tuple(alarms), lag)


class _Position(NamedTuple):
    tenant_id: UUID
    slug: str
    partition: int
    planned: int
    settled: int
    topic_id: str | None
    base: int
    event_bytes: int
    ahead: int | None
    """Start of a ledger range at or beyond the planned position."""


Answers = Mapping[tuple[str, int], int | KafkaException]


def _positions(answers: Answers, bases: Mapping[tuple[str, int], int]) -> Answers:
    """The broker's offsets as Pulse counts them (see `ingest.data_loss`)."""
    return {
        where: bases[where] + answer if isinstance(answer, int) else answer
        for where, answer in answers.items()
    }


def _beyond(end: int | KafkaException, position: int) -> TypeGuard[int]:
    return isinstance(end, int) and end > position


def _lag(
    rows: Sequence[_Position],
    tenants: Mapping[UUID, Tenant],
    ends: Answers,
) -> dict[UUID, int]:
    lag: Counter[UUID] = Counter()
    unknown: set[UUID] = set()
    for row in rows:
        end = ends[tenants[row.tenant_id].topic, row.partition]
        if isinstance(end, int):
            lag[row.tenant_id] += max(0, end - row.settled)
        else:
            unknown.add(row.tenant_id)
    return {tenant_id: waiting for tenant_id, waiting in lag.items() if tenant_id not in unknown}


def _lost(tenant: Tenant, row: _Position, problem: str) -> Alarm:
    command = f"pulse tenant accept-loss {tenant.slug}"
    fix = f"Restore the topic; or, to continue without what is lost: {command}"
    return Alarm(tenant, row.partition, problem, fix)


def _ledger_ahead(tenant: Tenant, row: _Position) -> Alarm:
    problem = f"the ledger has a range at {row.ahead}, and the position is {row.planned}"
    fix = f"Somebody changed one of them by hand: compare them with `pulse reconcile {tenant.slug}`"
    return Alarm(tenant, row.partition, problem, fix)


def missing_partition(count: int) -> str:
    """The problem of a partition that its topic, now of `count` partitions, lacks."""
    return f"the topic was recreated with {count} partition{'' if count == 1 else 's'}, without this one"


def _problem(row: _Position, count: int | None, start: object, end: object) -> str | None:
    """Why a partition cannot be ingested from its position, if so."""
    if count is not None and row.partition >= count:
        return missing_partition(count)
    if not isinstance(start, int) or not isinstance(end, int):
        return f"the broker does not answer: {kafka.error_text(start if isinstance(end, int) else end)}"
    if end < row.planned:
        return f"the topic ends at {end}, before the position {row.planned}: it was recreated, or cut"
    if start > row.planned:
        return f"retention removed the offsets {row.planned} to {start} before they were ingested"
    return None


def _new_partitions(
    rows: Sequence[_Position], tenants: Mapping[UUID, Tenant], counts: Mapping[str, int]
) -> list[_Position]:
    """Positions for partitions that an operator added to a topic."""
    partition_counts = Counter(row.tenant_id for row in rows)
    added = [
        _Position(tenant_id, tenant.slug, partition, 0, 0, None, 0, 0, None)
        for tenant_id, tenant in tenants.items()
        for partition in range(partition_counts[tenant_id], counts.get(tenant.topic, 0))
    ]
    for position in added:
        with postgres.tenant_transaction("pulse_pipeline", position.tenant_id) as connection:
            ledger.add_partition(connection, position.tenant_id, position.partition)
    return added


def plan_batch(
    ranges: Sequence[OffsetRange], status: IngestStatus, costs: TenantCosts | None = None
) -> str | None:
    """Record a batch of these ranges, without tenants whose positions moved since the status was read.

    The next plan sees those again: as they are by then, or with an alarm.

    Args:
        ranges: those of one batch.
        status: the status that they were chosen from.
        costs: of the tenants at least; None: they are computed.

    Returns:
        The batch; None when no tenant is left.

    Raises:
        Terminal: the batch exists, though none of its ranges was planned.
    """
    costs = costs or tenant_costs({r.tenant_id for r in ranges})
    with postgres.transaction("pulse_pipeline") as connection:
        free = [
            r
            for _, tenant_ranges in groupby(sorted(ranges), key=lambda r: r.tenant_id)
            for r in _advance(connection, list(tenant_ranges), status)
        ]
        if not free:
            return None
        name = batch_id(free)
        planned = {r.tenant_id for r in free}
        kind = batch_kind([b for b in status.backlogs if b.tenant_id in planned], costs)
        if connection.execute(PLAN_BATCH, [name, kind]).rowcount != 1:
            raise Terminal("the batch was planned before", fix="Compare with `pulse reconcile`", batch=name)
        for r in free:
            postgres.set_tenant(connection, r.tenant_id)
            ledger.plan(connection, name, r)
        fail_point("plan.before_commit")
    fail_point("plan.after_commit")
    return name


def _advance(
    connection: postgres.Connection, ranges: Sequence[OffsetRange], status: IngestStatus
) -> Sequence[OffsetRange]:
    """Move one tenant's positions to the ends of its ranges, and return these; none if any position moved."""
    tenant = status.tenants[ranges[0].tenant_id]
    try:
        with connection.transaction():
            postgres.set_tenant(connection, tenant.tenant_id)
            for r in ranges:
                topic_id, base = status.topic_ids.get(tenant.topic), status.bases[tenant.topic, r.partition]
                if not ledger.advance_planned(connection, r, topic_id, base):
                    raise _OvertakenError
    except _OvertakenError:
        _log.info("tenant %s: another planner, or an operator, moved its positions", tenant.slug)
        return ()
    return ranges


class _OvertakenError(Exception):
    """Rolls the savepoint back."""
