"""Settle: the one Postgres transaction per tenant that makes its part of a batch real.

Fence, swap the metadata pointers, claim the ids of the rows, advance the positions, write the ledger, commit.
All of it or none; when the answer to COMMIT is lost, the ledger alone says what happened.
"""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import UUID

import psycopg

from pulse_pipelines.stages import dead_letter, land, ledger
from pulse_pipelines.stages.handles import (
    Failure,
    Landed,
    LandingFailed,
    Plan,
    Settled,
    StagedTable,
    TenantSettled,
)
from pulse_pipelines.stages.ledger import TenantPart
from pulse_pipelines.stages.staging import named
from pulse_resources import iceberg, postgres
from pulse_resources.errors import Fenced, Terminal, Transient
from pulse_resources.faults import fail_point

MAX_RESTAGES = 10
CONNECTIONS = 4
"""Tenants that settle at a time."""

FENCE = """
SELECT 1 FROM ingest_batches WHERE batch_id = %s AND attempt = %s AND state = 'running' FOR SHARE
"""
SETTLE_RANGE = """
UPDATE ingest_ranges
SET settled_at = now(), drained = %(drained)s, landed = %(landed)s, duplicates = %(duplicates)s,
    dead_letters = %(dead_letters)s, duplicate_offsets = %(duplicate_offsets)s,
    absent_offsets = %(absent_offsets)s, oldest_received = %(oldest_received)s
WHERE batch_id = %(batch)s AND tenant_id = %(tenant)s AND partition = %(partition)s
  AND start_offset = %(start)s AND settled_at IS NULL
"""
ADVANCE = """
UPDATE ingest_positions SET settled_offset = %(end)s, landed = landed + %(landed)s,
    duplicates = duplicates + %(duplicates)s, dead_letters = dead_letters + %(dead_letters)s
WHERE tenant_id = %(tenant)s AND partition = %(partition)s AND settled_offset = %(start)s
"""
DEAD_LETTERS = """
INSERT INTO dead_letters (tenant_id, partition, event_offset, dataset, event_id, reason, pointer,
    detail, payload, received_at, batch_id)
SELECT tenant_id, partition, event_offset, dataset, event_id, reason, pointer, detail, payload,
    received_at, %(batch)s
FROM staging.{dead_letters} WHERE tenant_id = %(tenant)s AND part = ANY(%(parts)s)
"""
OWE_PUBLICATION = "INSERT INTO dead_letter_outbox (tenant_id, batch_id) VALUES (%s, %s)"
# The ids that the gate left in the staging table are those of the rows that land.
CLAIM = """
INSERT INTO processed_event_ids (tenant_id, dataset_id, partition, event_offset, event_id)
SELECT %(tenant)s, dataset_id, partition, event_offset, event_id
FROM staging.{ids} WHERE dataset_id = ANY(%(datasets)s) AND part = ANY(%(parts)s)
ORDER BY dataset_id, event_id
"""
LANDING = """
INSERT INTO landings (batch_id, tenant_id, dataset_id, slug, day, rows, duplicates, bytes, files,
    snapshot_id, metadata_location)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
RAW_OBJECT = """
INSERT INTO raw_objects (tenant_id, path, slug, day, events, bytes, batch_id)
VALUES (%s, %s, %s, %s, %s, %s, %s)
"""
USAGE = """
INSERT INTO usage AS u (tenant_id, month, records, bytes)
VALUES (%s, date_trunc('month', now() AT TIME ZONE 'UTC')::date, %s, %s)
ON CONFLICT (tenant_id, kind, month)
DO UPDATE SET records = u.records + EXCLUDED.records, bytes = u.bytes + EXCLUDED.bytes
"""
FINISH = """
UPDATE ingest_batches b
SET state = 'settled', settled_at = now(), settle_seconds = %s, commit_seconds = %s
WHERE batch_id = %s AND attempt = %s AND state = 'running' AND NOT EXISTS (
    SELECT 1 FROM ingest_ranges r WHERE r.batch_id = b.batch_id AND r.settled_at IS NULL)
"""
IS_SETTLED = """
SELECT b.attempt, bool_and(r.settled_at IS NOT NULL)
FROM ingest_ranges r JOIN ingest_batches b USING (batch_id)
WHERE r.batch_id = %s AND r.tenant_id = %s GROUP BY b.attempt
"""


class _SwapLost(Exception):  # noqa: N818 - another writer committed to this table first
    def __init__(self, table: StagedTable) -> None:
        self.table = table


def settle(landed: Landed, landing_parts: dict[UUID, int]) -> Settled:
    """Settle every tenant whose part came this far; the others stay for the next attempt.

    Args:
        landed: the staged batch.
        landing_parts: by dataset, the staging mark of the dead letters of a refused dataset.

    Raises:
        Fenced: a newer attempt owns the batch.
    """
    started, slowest = time.monotonic(), 0.0
    plan = landed.gated.drained.plan
    failures = [*landed.gated.drained.failures, *landed.gated.failures, *landed.failures]
    tenants: list[TenantSettled] = []
    tables: list[StagedTable] = []
    parts = ledger.tenant_parts(landed, {f.tenant_id for f in failures}, landing_parts)
    with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="settle") as pool:
        for outcome in pool.map(lambda part: _settle_safely(landed, part), parts):
            if isinstance(outcome, Failure):
                failures.append(outcome)
                continue
            settled, part, seconds = outcome
            tenants.append(settled)
            tables.extend(part.tables)
            slowest = max(slowest, seconds)
    with postgres.transaction("pulse_pipeline") as connection:
        taken = time.monotonic() - started
        connection.execute(FINISH, [taken, slowest, plan.batch_id, plan.attempt])
    return Settled(plan, tuple(tenants), tuple(tables), tuple(failures))


_Outcome = tuple[TenantSettled, TenantPart, float]
"""What became of a tenant's part, the part as it was settled in the end, the seconds of its transaction."""


def _settle_safely(landed: Landed, part: TenantPart) -> _Outcome | Failure:
    try:
        return _settle_tenant(landed, part)
    except Fenced:
        raise
    except Exception as error:  # whatever it is, it must not become the neighbours' failure
        return Failure(part.tenant.tenant_id, "settle", f"{type(error).__name__}: {error}")


def _settle_tenant(landed: Landed, part: TenantPart) -> _Outcome:
    plan = landed.gated.drained.plan
    became = [ledger.of_range(landed, part, r) for r in part.ranges]
    outcome = ledger.outcome(part, became)
    for _ in range(MAX_RESTAGES):
        started = time.monotonic()
        try:
            with postgres.tenant_transaction("pulse_pipeline", part.tenant.tenant_id) as connection:
                _write(connection, plan, part, became, outcome)
                fail_point("settle.before_commit")
            fail_point("settle.after_commit")
            return outcome, part, time.monotonic() - started
        except _SwapLost as lost:
            try:
                part = _restage(part, lost.table, plan.batch_id)
            except Terminal as error:  # the dataset was deleted meanwhile
                landed, part = _refuse(landed, part, lost.table, error)
                became = [ledger.of_range(landed, part, r) for r in part.ranges]
                outcome = ledger.outcome(part, became)
        except psycopg.OperationalError:
            if _is_settled(plan, part.tenant.tenant_id):  # only the answer was lost
                return outcome, part, time.monotonic() - started
            raise
    raise Transient("other writers keep committing first", tenant=part.tenant.slug, batch=plan.batch_id)


def _write(
    connection: postgres.Connection,
    plan: Plan,
    part: TenantPart,
    became: Sequence[dict[str, object]],
    outcome: TenantSettled,
) -> None:
    tenant_id = part.tenant.tenant_id
    if connection.execute(FENCE, [plan.batch_id, plan.attempt]).fetchone() is None:
        raise Fenced("a newer attempt owns this batch", batch=plan.batch_id, attempt=plan.attempt)
    for table in sorted(part.tables, key=lambda t: t.table):  # one order, so no two deadlock
        if table.snapshot_id is not None:
            fail_point("settle.before_swap")
            if not iceberg.swap(connection, table.table, table.old_location, table.new_location):
                raise _SwapLost(table)
            fail_point("settle.after_swap")
    staged: dict[str, object] = {"batch": plan.batch_id, "tenant": tenant_id, "parts": list(part.parts)}
    fail_point("settle.before_claim")
    _compare(part, plan, "ids", _claim(connection, plan, part, staged), outcome.landed)
    fail_point("settle.before_advance")
    for r, entry in zip(part.ranges, became, strict=True):
        values = {"batch": plan.batch_id, "tenant": tenant_id, "partition": r.partition}
        values |= {"start": r.start, "end": r.end} | entry
        advanced = connection.execute(SETTLE_RANGE, values).rowcount
        if advanced != 1 or connection.execute(ADVANCE, values).rowcount != 1:
            raise Fenced(
                "the position is not where this batch begins",
                tenant=part.tenant.slug,
                batch=plan.batch_id,
                partition=r.partition,
                offset=r.start,
            )
    fail_point("settle.after_advance")
    letters = connection.execute(named(DEAD_LETTERS, plan), staged).rowcount
    _compare(part, plan, "dead letters", letters, outcome.dead_letters)
    if letters:
        connection.execute(OWE_PUBLICATION, [tenant_id, plan.batch_id])
    with connection.cursor() as cursor:
        cursor.executemany(LANDING, list(landings(plan.batch_id, part.tables)))
        cursor.executemany(
            RAW_OBJECT,
            [
                (tenant_id, raw.path, raw.slug, raw.day, raw.events, raw.bytes, plan.batch_id)
                for topic in part.topics
                for raw in topic.raw
            ],
        )
    size = sum(file.bytes for table in part.tables for file in table.files)
    connection.execute(USAGE, [tenant_id, outcome.landed, size])


def _claim(connection: postgres.Connection, plan: Plan, part: TenantPart, staged: dict[str, object]) -> int:
    """Claim the ids of the rows that land; how many they are."""
    landing = {"datasets": [table.dataset_id for table in part.tables]}
    try:
        return connection.execute(named(CLAIM, plan), staged | landing).rowcount
    except psycopg.errors.UniqueViolation:  # not chained: it tells the event's id
        raise Transient(
            "a backfill landed an event with the id of one of this batch meanwhile",
            fix="The next attempt drops it as a duplicate",
            tenant=part.tenant.slug,
            batch=plan.batch_id,
        ) from None


def _compare(part: TenantPart, plan: Plan, what: str, written: int, counted: int) -> None:
    """The staging tables hold what the tasks counted, or nothing settles.

    They are unlogged: when Postgres crashes it empties them, and the fence may not have noticed yet.
    """
    if written != counted:
        raise Transient(
            f"the staging table holds {written} {what}, and {counted} were counted: did Postgres crash?",
            fix="The next attempt drains the events again",
            tenant=part.tenant.slug,
            batch=plan.batch_id,
        )


def landings(batch: str, tables: Iterable[StagedTable]) -> Iterable[tuple[object, ...]]:
    """Rows of `LANDING`: what the batch landed, by table and day."""
    for t in tables:
        for d in t.days:
            yield (
                batch, t.tenant_id, t.dataset_id, t.slug, d.day, d.rows, d.duplicates, d.bytes,
                d.files, t.snapshot_id, t.new_location,
            )  # fmt: skip


def _restage(part: TenantPart, lost: StagedTable, batch: str) -> TenantPart:
    now = land.current_location(part.tenant.tenant_id, lost.table)
    again = land.stage(replace(lost, old_location=now), batch)
    return replace(part, tables=tuple(again if t is lost else t for t in part.tables))


def _refuse(
    landed: Landed, part: TenantPart, table: StagedTable, error: Terminal
) -> tuple[Landed, TenantPart]:
    """The batch and the part with the rows of one table among the dead letters."""
    refused = LandingFailed(table.tenant_id, table.dataset_id, str(error))
    mark = dead_letter.stage_rows_of(landed, refused)
    landed = replace(landed, refused=(*landed.refused, refused))
    part = replace(
        part,
        tables=tuple(t for t in part.tables if t is not table),
        refused=(*part.refused, refused),
        parts=(*part.parts, mark),
    )
    return landed, part


def _is_settled(plan: Plan, tenant_id: UUID) -> bool:
    """Whether this very attempt did settle the tenant's part. Raises Fenced: a newer one owns the batch."""
    with postgres.transaction("pulse_pipeline") as connection:
        found = connection.execute(IS_SETTLED, [plan.batch_id, tenant_id]).fetchone()
    if found and found[0] != plan.attempt:
        raise Fenced("a newer attempt owns this batch", batch=plan.batch_id, attempt=plan.attempt)
    return found is not None and found[1] is True
