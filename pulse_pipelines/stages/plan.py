"""Plan: see what waits in the topics, and record the batches that take it.

A batch is planned in one transaction that moves `planned_offset`; two planners can therefore never
take the same offsets. A tenant has one open batch at a time.
"""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard
from uuid import UUID

import psycopg
from confluent_kafka import KafkaException

from pulse_pipelines.domain.batch import Backlog, OffsetRange, batch_id
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import kafka, postgres
from pulse_resources.faults import fail_point

POSITIONS = """
SELECT t.tenant_id, t.slug, p.partition, p.planned_offset, p.settled_offset, p.topic_id, p.base_offset
FROM pdm_tenants t JOIN ingest_positions p USING (tenant_id)
ORDER BY t.tenant_id, p.partition
"""
ADD_POSITION = """
INSERT INTO ingest_positions (tenant_id, partition, planned_offset, settled_offset)
VALUES (%s, %s, 0, 0) ON CONFLICT DO NOTHING
"""
PLAN_BATCH = "INSERT INTO ingest_batches (batch_id) VALUES (%s)"
PLAN_RANGE = """
INSERT INTO ingest_ranges (batch_id, tenant_id, partition, start_offset, end_offset)
VALUES (%s, %s, %s, %s, %s)
"""
ADVANCE_PLANNED = """
UPDATE ingest_positions SET planned_offset = %(end)s, topic_id = %(topic_id)s
WHERE tenant_id = %(tenant)s AND partition = %(partition)s
  AND planned_offset = %(start)s AND settled_offset = planned_offset
"""


@dataclass(frozen=True)
class Alarm:
    """A topic that cannot be ingested without an operator's decision. Never skipped silently."""

    tenant: Tenant
    partition: int
    problem: str

    @property
    def fix(self) -> str:
        command = f"pulse tenant accept-loss {self.tenant.slug}"
        return f"Restore the topic; or, to go on without what is lost: {command}"


@dataclass(frozen=True)
class Survey:
    """What waits in the topics, and what is wrong with some of them."""

    backlogs: tuple[Backlog, ...]
    """Of topics that have no open batch."""
    waiting: frozenset[UUID]
    """Tenants with events that no batch has taken, whether or not one is open."""
    tenants: Mapping[UUID, Tenant]
    topic_ids: Mapping[str, str]
    """The broker's ids of the topics with a backlog."""
    alarms: tuple[Alarm, ...]
    lag: Mapping[UUID, int]
    """Events that are not settled, of every tenant for all of whose topic the broker answered."""


def survey() -> Survey:
    """Compare the positions of every topic with the broker: three requests, however many tenants."""
    with postgres.transaction("pulse_pipeline") as connection:
        rows = [_Position(*row) for row in connection.execute(POSITIONS)]
    tenants = {row.tenant_id: Tenant(row.tenant_id, row.slug) for row in rows}
    rows += _new_partitions(rows, tenants)
    asked = [(tenants[row.tenant_id].topic, row.partition) for row in rows]
    bases = dict(zip(asked, (row.base for row in rows), strict=True))
    ends = _positions(kafka.offsets(asked, "latest"), bases)
    # Where nothing waits, retention can have removed nothing that does.
    waits = [pair for row, pair in zip(rows, asked, strict=True) if _beyond(ends[pair], row.planned)]
    starts = _positions(kafka.offsets(waits, "earliest"), bases)
    ranges: dict[UUID, list[OffsetRange]] = defaultdict(list)
    alarms: list[Alarm] = []
    busy = {row.tenant_id for row in rows if row.planned != row.settled}
    for row in rows:
        tenant = tenants[row.tenant_id]
        where = tenant.topic, row.partition
        start, end = starts.get(where, row.planned), ends[where]
        if problem := _problem(row.planned, start, end):
            alarms.append(Alarm(tenant, row.partition, problem))
        elif _beyond(end, row.planned) and row.tenant_id not in busy:
            found = OffsetRange(row.tenant_id, row.partition, row.planned, end)
            ranges[row.tenant_id].append(found)
    ids = kafka.topic_ids(tenants[tenant_id].topic for tenant_id in ranges)
    for row in rows:
        current = ids.get(tenants[row.tenant_id].topic)
        if row.tenant_id in ranges and row.topic_id and current != row.topic_id:
            problem = "the topic was recreated: its offsets are not those that were ingested"
            alarms.append(Alarm(tenants[row.tenant_id], row.partition, problem))
    stopped = {alarm.tenant.tenant_id for alarm in alarms}
    backlogs = tuple(
        Backlog(tenant_id, tuple(found)) for tenant_id, found in ranges.items() if tenant_id not in stopped
    )
    waiting = frozenset(row.tenant_id for row, pair in zip(rows, asked, strict=True) if pair in starts)
    return Survey(backlogs, waiting, tenants, ids, tuple(alarms), _lag(rows, tenants, ends))


class _Position(NamedTuple):
    tenant_id: UUID
    slug: str
    partition: int
    planned: int
    settled: int
    topic_id: str | None
    base: int


Answers = Mapping[tuple[str, int], int | KafkaException]


def _positions(answers: Answers, bases: Mapping[tuple[str, int], int]) -> Answers:
    """The broker's offsets as Pulse counts them (see `losses`)."""
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


def _problem(planned: int, start: object, end: object) -> str | None:
    """Why a partition cannot be ingested from its position, if so."""
    if not isinstance(start, int) or not isinstance(end, int):
        return f"the broker does not answer: {end}"
    if end < planned:
        return f"the topic ends at {end}, before the position {planned}: it was recreated, or cut"
    if start > planned:
        return f"retention removed the offsets {planned} to {start} before they were ingested"
    return None


def _new_partitions(rows: Sequence[_Position], tenants: Mapping[UUID, Tenant]) -> list[_Position]:
    """Positions for partitions that an operator added to a topic."""
    counts = kafka.partition_counts()
    known = Counter(row.tenant_id for row in rows)
    added = [
        _Position(tenant_id, tenant.slug, partition, 0, 0, None, 0)
        for tenant_id, tenant in tenants.items()
        for partition in range(known[tenant_id], counts.get(tenant.topic, 0))
    ]
    for position in added:
        with postgres.tenant_transaction("pulse_pipeline", position.tenant_id) as connection:
            connection.execute(ADD_POSITION, [position.tenant_id, position.partition])
    return added


def plan_batch(ranges: Sequence[OffsetRange], survey: Survey) -> str | None:
    """Record a batch of these ranges; None when another planner took some of them first."""
    name = batch_id(ranges)
    overtaken = (_Overtaken, psycopg.errors.UniqueViolation)
    with contextlib.suppress(*overtaken):
        _record(name, ranges, survey)
        fail_point("plan.after_commit")
        return name
    return None


def _record(name: str, ranges: Sequence[OffsetRange], survey: Survey) -> None:
    with postgres.transaction("pulse_pipeline") as connection:
        connection.execute(PLAN_BATCH, [name])
        for r in sorted(ranges):
            postgres.set_tenant(connection, r.tenant_id)
            connection.execute(PLAN_RANGE, [name, r.tenant_id, r.partition, r.start, r.end])
            moved = connection.execute(
                ADVANCE_PLANNED,
                {
                    "tenant": r.tenant_id,
                    "partition": r.partition,
                    "start": r.start,
                    "end": r.end,
                    "topic_id": survey.topic_ids.get(survey.tenants[r.tenant_id].topic),
                },
            )
            if moved.rowcount != 1:
                raise _Overtaken
        fail_point("plan.before_commit")


class _Overtaken(Exception):  # noqa: N818 - rolls the transaction back
    pass
